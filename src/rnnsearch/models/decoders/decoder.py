"""The decoder interface: four methods, split by what they depend on.

`start` runs once per sentence, `inputs` and `readout` run for all target positions at once, and only `step` runs
position by position. Training, search and forced decoding run the same methods.

All decoders in this package derive from `Decoder`. `translation_model.py` calls them. A subclass must keep each value
in the part that its dependencies require: tests/properties/test_search_agrees.py compares training with search, and
`state` must stay a tree of tensors with one row per hypothesis.

Axes: B sentences, N = B * K hypotheses (K consecutive rows per sentence), I target positions, J source positions, E
embedding, G gate inputs, D state, H annotation, R readout, S encoder summary, L vector of a language model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import DecoderConfig
from rnnsearch.models.attention.attention import Attention, AttentionOutput, AttentionState
from rnnsearch.models.attention.features import WordSizes
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.decoders.readouts import Readout, ReadoutLayer, StateReadout
from rnnsearch.models.encoders import EncoderSizes
from rnnsearch.models.memory import CellOnly, Encoded, Hidden, HiddenAndCell, Memory
from rnnsearch.models.sources import CombinedAttention, CombinedEncoder
from rnnsearch.utils.tensors import at_least_fp32, stack

State = Any
"""A named tuple of batch-first tensors with one row per hypothesis; each decoder has its own."""

UNTRANSLATED = "untranslated"
"""Key in `Reading.extras` of the remaining coverage [N, J] of each source position before this target position."""

HIDDEN = "hidden"
"""Key in `Reading.extras` of the states [N, D] before any result of attention was added, if a component reads them."""


class Reading(NamedTuple):
    """Inputs of the readout and of objectives at one target position; of all positions, stacked: [B, I, ...].

    state: [N, D], the decoder state for the readout: s_{i-1} for Bahdanau, h_t for Cho and Luong, and h~_t itself with
        input feeding.
    context: [N, H], c_i.
    alpha: [N, J], the attention weights; None without attention.
    expected_alpha: [N, J], the distribution that hard weights were sampled from; None for soft attention.
    extras: tensors [N, ...] that a decoder adds for an objective or a second pass, by name.
    fusion: [N, L], the vector of a language model inside the translation model; None without one.
    """

    state: Tensor
    context: Tensor
    alpha: Tensor | None
    expected_alpha: Tensor | None = None
    extras: dict[str, Tensor] = {}  # noqa: RUF012 (never modified)
    fusion: Tensor | None = None

    @classmethod
    def from_attention(cls, state: Tensor, output: AttentionOutput) -> Reading:
        """Create the reading of a decoder with attention."""
        extras = {} if output.untranslated is None else {UNTRANSLATED: output.untranslated}
        return cls(state, output.context, output.alpha, output.expected_alpha, extras)

    @property
    def hidden(self) -> Tensor:
        """The states before any result of attention was added, if they were requested; otherwise `state`."""
        return self.extras.get(HIDDEN, self.state)

    @property
    def soft_alpha(self) -> Tensor | None:
        """The attention weights, or the distribution that hard ones were sampled from; None without attention."""
        return self.alpha if self.expected_alpha is None else self.expected_alpha


class Decoder(nn.Module, ABC):
    """A decoder over embedded previous words, created from its options, `[model]` and the encoder."""

    component: ClassVar[type[DecoderConfig]]
    """The declaration of the component, set by `@implements`."""
    readout_attribute: ClassVar[str | None] = None
    """Name of the attribute with the layer between state and output, if there is one that fusion can be added to."""
    attention: Attention
    deep_output: Readout | StateReadout
    """The layer over state, word and context, of any type; model folders store this name."""
    fast_forward: Callable[[Any, Tensor, State, Memory], Reading] | None = None
    """Fast implementation of `unroll`, set by `accel/registry.py`."""

    def __init__(self, options: Any, model: ModelConfig, encoder: EncoderSizes) -> None:
        super().__init__()
        self.readout_size: int = options.readout_size
        """R, the size of the output layer's input."""
        self.state_size: int = options.size
        """Size of `Reading.state`."""
        self.state_dropout = model.dropout.state

    @property
    def attends(self) -> bool:
        """True if the decoder has attention."""
        return self.component.attends

    def remember(self, encoded: Encoded) -> Memory:
        """Return the memory of B sentences, with what attention computes once per sentence."""
        return self.attention.on(encoded) if self.attends else Memory(*encoded)

    @abstractmethod
    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> State:
        """Return the state before the first target word, one row per sentence.

        Args:
            rng: If given, the random numbers of all `steps` target positions are generated here.
        """

    @abstractmethod
    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        """Return everything that depends only on the embedded previous words, for any number of positions."""

    @abstractmethod
    def step(self, x: Float[Tensor, "N G"], state: State, memory: Memory) -> tuple[State, Reading]:
        """Compute what feeds back at one target position of N = B * K hypotheses, K consecutive rows per sentence.

        Args:
            x: From `inputs`.

        Returns:
            The next state and the input of `readout`.
        """

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        """Return everything after the recurrence, for any number of positions; by default, the readout layer's output.

        Args:
            y_prev: The embedded previous words.
            reading: From `step` or `unroll`.
        """
        layer = self.readout_layer or self.deep_output
        t: Tensor = layer(reading.state, y_prev, reading.context, reading.fusion)
        return t

    @property
    def readout_layer(self) -> ReadoutLayer | None:
        """The layer between state and output, if there is one that fusion can be added to."""
        return None if self.readout_attribute is None else getattr(self, self.readout_attribute)

    def unroll(self, x: Float[Tensor, "N I G"], state: State, memory: Memory) -> Reading:
        """Return the readings of all I target positions of N = B * K rows; see `step`."""
        if self.fast_forward is not None:
            return self.fast_forward(self, x, state, memory)
        return self.repeat_step(x, state, memory)

    def repeat_step(self, x: Float[Tensor, "N I G"], state: State, memory: Memory) -> Reading:
        """Return what `unroll` is defined as: the readings of `step` at each position."""
        return repeat_steps(self.step, x, state, memory)

    def unroll_separate(self, x: Float[Tensor, "N I G"], state: State, memory: Memory) -> Reading:
        """Return readings like `unroll`, but with state and context separate, for `readout_separate`.

        Search replaces the context of such a reading to find out what another source position would predict. (With
        input feeding, the state of an ordinary reading already contains the context.)
        """
        return self.unroll(x, state, memory)

    @property
    def hidden_size(self) -> int:
        """Size of the vectors of `hidden_states`."""
        return self.state_size

    def hidden_states(self, x: Float[Tensor, "N I G"], state: State, reading: Reading) -> Float[Tensor, "N I D"]:
        """Return the decoder states of all target positions, before any result of attention is added to them.

        Args:
            x: The decoder's inputs.
            state: The state before the first position.
            reading: The readings of `unroll` for these inputs.
        """
        return reading.state

    def readout_separate(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        """Return the readout of a reading of `unroll_separate`."""
        return self.readout(y_prev, reading)


StepFunction = Callable[[Tensor, State, Memory], tuple[State, Reading]]


def repeat_steps(step: StepFunction, x: Float[Tensor, "N I G"], state: State, memory: Memory) -> Reading:
    """Return the readings of a step function at all target positions, stacked."""
    readings = []
    for x_i in x.unbind(1):  # I times [N, G]
        state, reading = step(x_i, state, memory)
        readings.append(reading)
    return stack(readings, dim=1)  # [N, I, ...]


def map_hidden(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply a function to the h of each cell in a state, or to the c if only c is carried over.

    The state of attention is unchanged.
    """
    # First, because CellOnly is a subclass of HiddenAndCell.
    if isinstance(state, CellOnly):
        return state._replace(c=function(state.c))
    if isinstance(state, Hidden | HiddenAndCell):
        return state._replace(h=function(state.h))
    if not isinstance(state, tuple) or isinstance(state, AttentionState):
        return state
    fields = [map_hidden(function, field) for field in state]
    return type(state)(*fields) if hasattr(state, "_fields") else tuple(fields)


def make_attention(model: ModelConfig, encoder: EncoderSizes, word_size: int) -> Any:
    """Create the attention of a decoder: an `Attention` or, over a `CombinedEncoder`, a `CombinedAttention`.

    Args:
        model: `[model]`.
        encoder: The encoder, or those of several sources.
        word_size: G, the size of the decoder's gate inputs.
    """
    options = model.attention
    assert options is not None, "`check` requires it"
    words = WordSizes(model.embedding, word_size)

    def attention(annotation_size: int) -> Attention:
        attended_size = model.decoder.attended_size(annotation_size)
        return Attention(options, model.decoder.size, attended_size, model.dropout.attention, words)

    if isinstance(encoder, CombinedEncoder):
        return CombinedAttention([attention(source.annotation_size) for source in encoder.encoders])
    return attention(encoder.annotation_size)


def mean_annotation(memory: Memory) -> Float[Tensor, "B H"]:
    """Return (1 / Tx) sum_j h_j over the real source positions (Nematus: Sennrich et al. 2017, section 3).

    The means of several sources are combined like their contexts.
    """
    if memory.sources is not None:
        return memory.sources.combine([mean_annotation(source) for source in memory.sources.memories])
    real = memory.mask.unsqueeze(-1)
    # On padding, cells repeat their last state instead of returning zeros.
    total = memory.annotations.masked_fill(~real, 0.0).sum(1)
    return total / real.sum(1)


def initial_state(initial: nn.Linear, summary: Float[Tensor, "B S"]) -> Float[Tensor, "B D"]:
    """Return s_0 = tanh(W summary + b) in fp32 or wider, so that the recurrence is, too."""
    return at_least_fp32(torch.tanh(initial(summary)))
