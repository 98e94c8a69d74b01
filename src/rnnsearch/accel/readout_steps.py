"""Readouts as operations, which native search runs after a decoder's step (`decoder_steps.py`).

In training, readouts run for all positions at once and need no operations. Property tests compare each function with
its definition in `models`, and so does `verification.py`.

A new readout layer in `models/decoders/readouts.py` needs an entry in `SUPPORTED_LAYERS` and its equations here; until
then, models with it have no native search. Tests: tests/properties/test_native_search.py.
"""

from __future__ import annotations

from rnnsearch.accel.decoder_steps import ReadoutInputs, add_attentional
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.copying import Lexical
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.decoders.readouts import (
    Attentional,
    BiasedAttentional,
    DeepOutput,
    Readout,
    StateOutput,
    TanhOutput,
)
from rnnsearch.models.decoders.stack_decoders import Luong, Neubig, RNMTPlus
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops.step import StepBuilder, Value

SUPPORTED_LAYERS = (DeepOutput, TanhOutput, StateOutput, Attentional, BiasedAttentional)
"""Layers whose equations are written here, by exact class."""


def add_readout(step: StepBuilder, decoder: Decoder, word_offset: int, inputs: ReadoutInputs) -> tuple[Value, ...]:
    """Write `Decoder.readout` and return the values whose concatenation the output layer reads.

    Args:
        word_offset: Offset, in the projected inputs x, of the word's part of a deep output.
    """
    deep_output = deep_output_of(decoder)
    if deep_output is not None:
        return (add_deep_output(step, deep_output, word_offset, inputs),)
    if type(decoder) is Luong:
        assert inputs.context is not None
        h_tilde = step.value(decoder.attentional.combine.weight.shape[0])
        add_attentional(step, decoder.attentional, inputs.context, inputs.state, h_tilde)
        return (h_tilde,)
    if isinstance(decoder, Neubig | RNMTPlus):
        assert inputs.context is not None
        return inputs.state, inputs.context
    return (inputs.state,)


def add_deep_output(step: StepBuilder, layer: Readout, word_offset: int, inputs: ReadoutInputs) -> Value:
    """Write a `Readout` with maxout or tanh over the decoder's state, the context and the word."""
    assert inputs.context is not None and layer.state.bias is not None
    size = layer.state.weight.shape[0]
    sums = step.sums(size)
    # The word's part does not depend on the state: it comes from the table of projected words.
    step.input(word_offset, sums)
    step.bias(layer.state.bias, sums)
    step.product(layer.state.weight, step.read((inputs.state, None)), sums)
    step.product(layer.context.weight, step.read((inputs.context, None)), sums)
    if type(layer) is DeepOutput:
        return step.maxout(sums)
    t = step.value(size)
    step.tanh(sums, t)
    return t


def add_lexical(step: StepBuilder, lexical: Lexical, context: Value) -> Value:
    """Write the lexical model of the attended words, which follow the context in the values."""
    size = lexical.hidden.weight.shape[0]
    # `with_words` has appended the embedded words to the values that contexts are sums of.
    attended = step.tanh_values(context.slice(context.size, size))
    sums = step.sums(size)
    hidden = step.value(size)
    step.bias(lexical.hidden.bias, sums)
    step.product(lexical.hidden.weight, step.read((attended, None)), sums)
    step.tanh(sums, hidden)
    # Residual connection around the hidden layer.
    return step.add(hidden, attended)


def deep_output_of(decoder: Decoder) -> Readout | None:
    """Return the decoder's readout layer if it also reads the word."""
    layer = decoder.readout_layer
    return layer if isinstance(layer, Readout) else None


def readout_unsupported_reason(decoder: Decoder) -> str | None:
    """Return why a decoder's readout layer cannot be written as operations, or None if it can or there is none."""
    layer = decoder.readout_layer
    return None if layer is None or type(layer) in SUPPORTED_LAYERS else f"its readout is {type(layer).__name__}"


def lexical_unsupported_reason(model: TranslationModel) -> str | None:
    """Return why a model's lexical model cannot be written as operations, or None if it can or there is none."""
    if model.lexical is None:
        return None
    if type(model.lexical) is not Lexical:
        return "a lexical model of a derived class"
    if any(isinstance(module, Attention) and module.score.heads > 1 for module in model.decoder.modules()):
        return "a lexical model with several heads"
    if isinstance(model.decoder, Neubig):
        return "a lexical model with a context that is part of the state"
    return "a lexical model over merged positions" if model.encoder.merges_positions else None
