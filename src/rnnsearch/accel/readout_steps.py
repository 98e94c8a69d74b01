"""Readouts, which native search has in its step, written as the steps of decoders are in `steps.py`.

The definitions are in `models`; a law holds each equal to its own.
"""

from __future__ import annotations

from rnnsearch.accel.decoder_steps import Read, attentional
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
from rnnsearch.ops.step import Step, Value


def readout_sums(step: Step, part: Readout, word: int, read: Read) -> tuple[Value, ...]:
    """A `Readout`, maxout or tanh, of the decoder's state, the context and the word, whose share of the sums is the
    inputs' from `word` on."""
    assert read.context is not None
    width = part.state.weight.shape[0]
    hidden = step.sums(width)
    step.input(word, hidden)
    assert part.state.bias is not None
    step.bias(part.state.bias, hidden)
    step.product(part.state.weight, step.read((read.state, None)), hidden)
    step.product(part.context.weight, step.read((read.context, None)), hidden)
    if type(part) is DeepOutput:
        return (step.maxout(hidden),)
    bent = step.value(width)
    step.tanh(hidden, bent)
    return (bent,)


def lexical(step: Step, part: Lexical, context: Value) -> Value:
    """`Lexical`, of the attended words behind a context."""
    size = part.hidden.weight.shape[0]
    attended, hidden, bent = step.bend(context.part(context.size, size)), step.sums(size), step.value(size)
    step.bias(part.hidden.bias, hidden)
    step.product(part.hidden.weight, step.read((attended, None)), hidden)
    step.tanh(hidden, bent)
    return step.add(bent, attended)


def lexical_lacks(model: TranslationModel) -> str | None:
    """Why a model's lexical model, where it has one, cannot be written so; None where it can."""
    if model.lexical is None:
        return None
    if type(model.lexical) is not Lexical:
        return "a lexical model of a derived class"
    if any(isinstance(module, Attention) and module.score.heads > 1 for module in model.decoder.modules()):
        return "a lexical model with several heads"
    if isinstance(model.decoder, Neubig):
        return "a lexical model beside a context that is part of the state"
    return "a lexical model over merged positions" if model.encoder.merges_positions else None


def readout_lacks(decoder: Decoder) -> str | None:
    """Why the layer between a decoder's state and the output, where it has one, cannot be written so; None where it
    can."""
    layer = decoder.readout_layer
    return None if layer is None or type(layer) in LAYERS else f"its readout is {type(layer).__name__}"


LAYERS = (DeepOutput, TanhOutput, StateOutput, Attentional, BiasedAttentional)


def readout(step: Step, decoder: Decoder, word: int, read: Read) -> tuple[Value, ...]:
    """`Decoder.readout`: what stands side by side before the output layer. word: where the word's share of a deep
    output begins in the inputs'."""
    deep = deep_part(decoder)
    if deep is not None:
        return readout_sums(step, deep, word, read)
    if type(decoder) is Luong:
        assert read.context is not None
        to = step.value(decoder.attentional.combine.weight.shape[0])
        attentional(step, decoder.attentional, read.context, read.state, to)
        return (to,)
    if isinstance(decoder, Neubig | RNMTPlus):
        assert read.context is not None
        return read.state, read.context
    return (read.state,)


def deep_part(decoder: Decoder) -> Readout | None:
    """The readout that reads the word too, of a decoder that has one."""
    found = decoder.readout_layer
    return found if isinstance(found, Readout) else None
