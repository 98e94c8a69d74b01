"""The decoder contract: four small pieces, split by what depends on what.

`start` runs once a sentence, `inputs` and `readout` for all target positions at once, and only `step`
runs position by position. Training, search and forced decoding all run these same pieces.
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
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.memory import CellOnly, Encoded, Hidden, HiddenAndCell, Memory
from rnnsearch.utils.tensors import at_least_fp32, stack

State = Any
"""A named tuple of batch-first tensors, one row a hypothesis; each decoder has its own."""


UNTRANSLATED = "left"
"""In a reading's extras: [N, J], what attention held untranslated before this target position, where it says so."""


class Reading(NamedTuple):
    """What the readout and the objectives need of one target position (or, stacked, of all: [B, I, ...]).

    state: [N, D], what the readout reads of the decoder: s_{i-1} for Bahdanau, h_t for Cho and Luong, h~_t itself
        with input feeding.
    context: [N, H], c_i.
    alpha: [N, J], the attention weights; None for a decoder without attention.
    expected: [N, J], the distribution a hard alpha was drawn from; None where alpha is soft.
    extras: [N, ...] each, what a decoder adds for an objective or another pass, by name.
    beside: [N, L], what a language model inside says to the readout; None without.
    """

    state: Tensor
    context: Tensor
    alpha: Tensor | None
    expected_alpha: Tensor | None = None
    extras: dict[str, Tensor] = {}  # noqa: RUF012 (nobody writes into it)
    fusion: Tensor | None = None

    @classmethod
    def from_attention(cls, state: Tensor, attended: AttentionOutput) -> Reading:
        """The reading of a decoder with attention."""
        extras = {} if attended.untranslated is None else {UNTRANSLATED: attended.untranslated}
        return cls(state, attended.context, attended.alpha, attended.expected_alpha, extras)

    @property
    def soft_alpha(self) -> Tensor | None:
        """[N, J], alpha, or of hard attention the distribution that it was drawn from; None without attention."""
        return self.alpha if self.expected_alpha is None else self.expected_alpha


class Decoder(nn.Module, ABC):
    """A decoder over embedded previous words, of its own options in `[model]`, over an encoder's annotations."""

    component: ClassVar[type[DecoderConfig]]
    """The declaration of the component, set by `@implements`."""
    readout_attribute: ClassVar[str | None] = None
    """The attribute that is the layer between state and output, of a decoder whose readout is one and can read more."""
    attention: Attention
    deep_output: Readout | StateReadout
    """What reads state, word and context; it may be one tanh layer, or none. Model folders store its name."""
    fast_forward: Callable[[Any, Tensor, State, Memory], Reading] | None = None

    def __init__(self, options: Any, model: ModelConfig, encoder: Encoder) -> None:
        super().__init__()
        self.readout_size: int = options.readout_size
        """R, what the output layer reads."""
        self.state_size: int = options.size
        """Of `Reading.state`."""
        self.state_dropout = model.dropout.state

    @property
    def attends(self) -> bool:
        """True if the decoder has attention."""
        return self.component.attends

    def remember(self, encoded: Encoded) -> Memory:
        """The memory of B sentences, and what attention computes once."""
        return self.attention.on(encoded) if self.attends else Memory(*encoded)

    @abstractmethod
    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> State:
        """The state before the first target word, and what else is computed once a sentence; one row each.

        With `draws`, the random numbers of all `steps` target positions are drawn here.
        """

    @abstractmethod
    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        """Everything that depends on the embedded previous words alone, for any number of positions."""

    @abstractmethod
    def step(self, x: Float[Tensor, "N G"], state: State, memory: Memory) -> tuple[State, Reading]:
        """One target position of N = B * K hypotheses (K consecutive rows a sentence): only what feeds back."""

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        """Everything after the recurrence, for any number of positions: its layer, where nothing else is said."""
        layer = self.readout_layer or self.deep_output
        t: Tensor = layer(reading.state, y_prev, reading.context, reading.fusion)
        return t

    @property
    def readout_layer(self) -> ReadoutLayer | None:
        """Its layer of that name."""
        return None if self.readout_attribute is None else getattr(self, self.readout_attribute)

    def unroll(self, x: Float[Tensor, "N I G"], state: State, memory: Memory) -> Reading:
        """All I target positions of N = B * K rows: the step repeated, or a chosen twin of it (`accel/registry.py`)."""
        if self.fast_forward is not None:
            return self.fast_forward(self, x, state, memory)
        return self.repeat_step(x, state, memory)

    def repeat_step(self, x: Float[Tensor, "N I G"], state: State, memory: Memory) -> Reading:
        """What every twin of `unroll` must equal."""
        return repeat_steps(self.step, x, state, memory)

    def unroll_separate(self, x: Float[Tensor, "N I G"], state: State, memory: Memory) -> Reading:
        """As `unroll`, for `readout_apart`: what the readout reads, where another can take c_i's place."""
        return self.unroll(x, state, memory)

    def readout_separate(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        """The readout, of the readings of `unroll_apart`."""
        return self.readout(y_prev, reading)


StepFunction = Callable[[Tensor, State, Memory], tuple[State, Reading]]


def repeat_steps(step: StepFunction, x: Float[Tensor, "N I G"], state: State, memory: Memory) -> Reading:
    """The readings of a step at all target positions, one after the other."""
    readings = []
    for x_i in x.unbind(1):
        state, reading = step(x_i, state, memory)
        readings.append(reading)
    return stack(readings, dim=1)


def map_hidden(function: Callable[[Tensor], Tensor], state: State) -> State:
    """A state with `function` of the h of each cell in it, or of the c where that alone goes on; what attention
    remembers stays as it is."""
    if isinstance(state, CellOnly):
        return state._replace(c=function(state.c))
    if isinstance(state, Hidden | HiddenAndCell):
        return state._replace(h=function(state.h))
    if not isinstance(state, tuple) or isinstance(state, AttentionState):
        return state
    parts = [map_hidden(function, part) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def make_attention(model: ModelConfig, encoder: Encoder, word_size: int) -> Attention:
    """The attention that the decoder's states ask; `check` has seen that there is one. word: G, the numbers of the
    decoder's inputs."""
    assert model.attention is not None
    attended, words = model.decoder.attended_size(encoder.annotation_size), WordSizes(model.embedding, word_size)
    return Attention(model.attention, model.decoder.size, attended, model.dropout.attention, words)


def mean_annotation(memory: Memory) -> Float[Tensor, "B H"]:
    """(1 / Tx) sum_j h_j over the real source positions (Nematus: Sennrich et al. 2017, section 3)."""
    real = memory.mask.unsqueeze(-1)
    total = memory.annotations.masked_fill(~real, 0.0).sum(1)
    return total / real.sum(1)


def initial_state(initial: nn.Linear, summary: Float[Tensor, "B S"]) -> Float[Tensor, "B D"]:
    """s_0 = tanh(W summary + b), in fp32 at least, so that what the recurrence carries is, too."""
    return at_least_fp32(torch.tanh(initial(summary)))
