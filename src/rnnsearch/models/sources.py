"""Several sources: one encoder and one attention per source, and the combination of their last states and contexts.

A decoder over a `CombinedEncoder` gets a `CombinedAttention`, which has the methods of `Attention` that decoders call,
over a `Memory` with `sources`. `multi_source.py` has the model.

A source that a sentence does not have is encoded like padding and then left out: it has the weight 0 in means, and its
context and last states are zeros where sources are concatenated. `Memory.present` marks it.

Names of submodules are checkpoint keys. Tests: tests/models/test_sources.py, tests/training/test_several_sources.py.

Axes: B sentences, S sources, N = B * K hypotheses, I target positions, J_all positions of all sources, D state, G gate
inputs of the decoder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.config import ModelConfig, sources
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.config.sources import (
    ChildSumSourcesOptions,
    ConcatenatedSourcesOptions,
    MeanSourcesOptions,
    SourcesConfig,
)
from rnnsearch.models.attention.attention import Attention, AttentionOutput, AttentionState
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.encoders import ENCODERS, Encoder, EncoderSizes, final_shapes
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import (
    CellState,
    HiddenAndCell,
    Memory,
    SourceMemories,
    concatenation,
    mean_weights,
    weighted_mean,
    without_missing,
)
from rnnsearch.utils.tensors import at_least_fp32, repeat_rows

# Last states.


class LayerStates(NamedTuple):
    """The last states of one layer of all encoders, zeros for missing sources."""

    h: tuple[Tensor, ...]
    """[B, D] of each source."""
    c: tuple[Tensor, ...]
    """[B, D] of each source; empty if the cells have no memory."""
    weights: Float[Tensor, "B S"]
    """Weight of each source in a mean."""


class StateCombination(nn.Module, ABC):
    """A function from the last states of one layer of several encoders to one state of the same type and size."""

    component: ClassVar[type[SourcesConfig]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, sizes: Sequence[int], size: int) -> None:
        """Create the parameters, given the size of each source's state and that of the result."""
        super().__init__()

    @abstractmethod
    def forward(self, states: LayerStates) -> tuple[Tensor, ...]:
        """Return h [B, D] and, if the cells have a memory, c."""


@implements(ConcatenatedSourcesOptions)
class Concatenation(StateCombination):
    """h = tanh(W_c [h_1; h_2]),  c = c_1 + c_2 (Zoph & Knight 2016, eq. 1-2)."""

    def __init__(self, sizes: Sequence[int], size: int) -> None:
        super().__init__(sizes, size)
        self.hidden = Linear(sum(sizes), size, bias=False)  # W_c

    def forward(self, states: LayerStates) -> tuple[Tensor, ...]:
        h = torch.tanh(self.hidden(torch.cat(states.h, dim=-1)))
        return (h, sum(states.c[1:], states.c[0])) if states.c else (h,)


@implements(ChildSumSourcesOptions)
class ChildSum(StateCombination):
    """An LSTM over the sources (Zoph & Knight 2016, eq. 3-8, after Tai et al. 2015).

    i = sigma(W^i_1 h_1 + W^i_2 h_2), o and u = tanh(...) likewise;  f_k = sigma(W^f_k h_k) for each source k;
    c = i * u + f_1 * c_1 + f_2 * c_2,  h = o * tanh(c).
    """

    def __init__(self, sizes: Sequence[int], size: int) -> None:
        super().__init__(sizes, size)
        self.gates = Linear(sum(sizes), 3 * size, bias=False)  # W_1 and W_2 of i, o and u, stacked
        self.forget = nn.ModuleList(Linear(own_size, size, bias=False) for own_size in sizes)  # W^f_k

    def forward(self, states: LayerStates) -> tuple[Tensor, ...]:
        i, o, u = at_least_fp32(self.gates(torch.cat(states.h, dim=-1))).chunk(3, dim=-1)
        c = torch.sigmoid(i) * torch.tanh(u)
        for forget, h_k, c_k in zip(self.forget, states.h, states.c, strict=True):
            c = c + torch.sigmoid(at_least_fp32(forget(h_k))) * c_k
        return torch.sigmoid(o) * torch.tanh(c), c


@implements(MeanSourcesOptions)
class Mean(StateCombination):
    """The mean of the sources that a sentence has (Firat et al. 2016)."""

    def forward(self, states: LayerStates) -> tuple[Tensor, ...]:
        h = weighted_mean(states.h, states.weights)
        return (h, weighted_mean(states.c, states.weights)) if states.c else (h,)


STATE_COMBINATIONS: Implementations[type[StateCombination]] = Implementations(sources.SOURCES)
"""Class by `type` of `[model.sources]`; names are stored in model folders."""


# Encoders and memories.


class CombinedEncoder(EncoderSizes):
    """One encoder per source, with the sizes that a decoder reads from a single encoder."""

    def __init__(self, config: ModelConfig, names: Sequence[str]) -> None:
        """Create the encoders of the sources with these names, in this order."""
        super().__init__()
        options = config.sources
        assert options is not None
        encoders: list[Encoder] = []
        for name in names:
            encoder = options.encoder(name, config.encoder)
            encoders.append(ENCODERS[encoder.type](encoder, config.embedding, config.dropout))
        self.sources = nn.ModuleList(encoders)
        self.averages_contexts = options.averages_contexts
        self.averages_summaries = options.needs_equal_sizes
        self.shapes = final_shapes(config.encoder)
        sizes = [encoder.annotation_size for encoder in encoders]
        self.annotation_size = sizes[0] if self.averages_contexts else sum(sizes)
        sizes = [encoder.summary_size for encoder in encoders]
        self.summary_size = sizes[0] if self.averages_summaries else sum(sizes)
        self.states: nn.ModuleList | None = None
        """The combination of each layer's last states; None if the decoder does not read them."""
        if config.decoder.reads_last_states:
            combination = STATE_COMBINATIONS[options.type]
            # All encoders have the same layers, which the rules check.
            self.states = nn.ModuleList(combination([shape.size] * len(encoders), shape.size) for shape in self.shapes)

    @property
    def encoders(self) -> list[Encoder]:
        """The encoder of each source."""
        return [cast(Encoder, encoder) for encoder in self.sources]

    @property
    def merges_positions(self) -> bool:
        """True if an annotation of any source can belong to several source positions."""
        return any(encoder.merges_positions for encoder in self.encoders)

    def combine(self, memories: Sequence[Memory]) -> list[Memory]:
        """Return the memories of all sources with their combined summary and last states in place of their own."""
        present = presence(memories)
        summaries = [memory.summary for memory in memories]
        if self.averages_summaries:
            summary = weighted_mean(summaries, mean_weights(present))
        else:
            summary = concatenation(summaries, present)
        finals = self._combined_states(memories, present)
        return [memory._replace(summary=summary, finals=finals) for memory in memories]

    def _combined_states(self, memories: Sequence[Memory], present: Bool[Tensor, "B S"]) -> tuple[CellState, ...]:
        """Return the combined last state of each layer, bottom first; none if the decoder does not read them."""
        weights = mean_weights(present)
        combined: list[CellState] = []
        for l, combination in enumerate(self.states or ()):
            states = [memory.finals[l] for memory in memories]
            h = without_missing([state.h for state in states], present)
            memory_cells = [state.c for state in states if isinstance(state, HiddenAndCell)]
            c = without_missing(memory_cells, present) if memory_cells else []
            combined.append(self.shapes[l].state_type(*combination(LayerStates(tuple(h), tuple(c), weights))))
        return tuple(combined)


def presence(memories: Sequence[Memory]) -> Bool[Tensor, "B S"]:
    """Return True for the sources that each sentence has."""
    columns = []
    for memory in memories:
        assert memory.present is not None
        columns.append(memory.present)
    return torch.stack(columns, dim=1)


# Attention.


class CombinedAttention(nn.Module):
    """One attention per source, each over its own annotations; the contexts are combined.

    The memory is one with `sources`. The state is an `AttentionState` whose `features` are the states of the sources.
    The weights of all sources are concatenated; those of a missing source are 0.
    """

    def __init__(self, attentions: Sequence[Attention]) -> None:
        super().__init__()
        self.sources = nn.ModuleList(attentions)

    @property
    def attentions(self) -> list[Attention]:
        """The attention of each source."""
        return [cast(Attention, attention) for attention in self.sources]

    @property
    def is_parallel(self) -> bool:
        """True if all target positions can be computed at once."""
        return all(attention.is_parallel for attention in self.attentions)

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> AttentionState:
        """Return the state before the first target position (see `Attention.start`)."""
        assert memory.sources is not None
        pairs = zip(self.attentions, memory.sources.memories, strict=True)
        return AttentionState(features=tuple(attention.start(source, rng, steps) for attention, source in pairs))

    def step(
        self,
        query: Float[Tensor, "N D"],
        state: AttentionState,
        memory: Memory,
        word: Float[Tensor, "N G"] | None = None,
    ) -> tuple[AttentionOutput, AttentionState]:
        """Attend to all sources at one target position (see `Attention.step`)."""
        assert memory.sources is not None
        outputs = []
        states = []
        memories = memory.sources.memories
        for attention, source_state, source in zip(self.attentions, state.features, memories, strict=True):
            output, new_state = attention.step(query, source_state, source, word)
            outputs.append(output)
            states.append(new_state)
        return _combined_output(outputs, memory.sources), AttentionState(features=tuple(states))

    def attend_all(self, query: Float[Tensor, "N I D"], state: AttentionState, memory: Memory) -> AttentionOutput:
        """Attend to all sources at all target positions at once (see `Attention.attend_all`)."""
        assert memory.sources is not None
        outputs = []
        memories = memory.sources.memories
        for attention, source_state, source in zip(self.attentions, state.features, memories, strict=True):
            outputs.append(attention.attend_all(query, source_state, source))
        return _combined_output(outputs, memory.sources)


def _combined_output(outputs: Sequence[AttentionOutput], sources: SourceMemories) -> AttentionOutput:
    """Return the outputs for all sources as one, for N rows of one or all target positions."""
    present = repeat_rows(sources.present, len(outputs[0].alpha))
    expected = [output.expected_alpha for output in outputs if output.expected_alpha is not None]
    return AttentionOutput(
        alpha=concatenation([output.alpha for output in outputs], present),
        context=sources.combine([output.context for output in outputs]),
        expected_alpha=concatenation(expected, present) if expected else None,
    )


def split_attention(alpha: Float[Tensor, "*rows J_all"], memories: Sequence[Memory]) -> list[Tensor]:
    """Return the weights of each source over its positions, given those of a `CombinedAttention`."""
    widths = [memory.mask.shape[1] for memory in memories]
    pairs = zip(memories, alpha.split(widths, dim=-1), strict=True)
    return [memory.to_source(weights) for memory, weights in pairs]
