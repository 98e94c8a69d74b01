"""Features: inputs of the alignment model in addition to query and annotation, one class per paper.

A feature gives F values per target and source position, computed from earlier weights and words (coverage, Markov,
fertility) or from the positions. They enter the score's hidden layer through a matrix W_f (Tu et al. 2016; Cohn et
al. 2016):

    e_ij = v_a^T tanh(W_a s + U_a h_j + W_f f_ij)

`decoders/decoder.py` passes the sizes of words (`WordSizes`); `Attention` calls `prepare` once per sentence, `start`
before the first target position, and `read_word`, `values` and `update` at each one.

To add one, register its options in `config/attention.py` and write its equation in `EQUATIONS` of tests/models.
`accel/decoder_steps.py`, `accel/program_writer.py` and `export/onnx.py` have their versions of some features, by exact
class; change those too.

Axes: N = B * K hypotheses of B sentences, Q queries per sentence, J source positions, F values per feature, W width
of a feature's state, D query, H annotation, G gate inputs of the decoder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from rnnsearch.config import attention
from rnnsearch.config.attention import (
    CoverageEmbeddingOptions,
    FeatureOptions,
    LinguisticCoverageOptions,
    LocalFertilityOptions,
    MarkovOptions,
    NeuralCoverageOptions,
    PositionOptions,
    RecurrentOptions,
)
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.models.cells import GRU, LSTM
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import Encoded, Hidden, HiddenAndCell, Memory
from rnnsearch.ops.linear import linear
from rnnsearch.utils.tensors import at_least_fp32

Positions = Int[Tensor, "B Q"]
Values = Float[Tensor, "B Q J F"]
QueryRows = Float[Tensor, "N D"]
Alpha = Float[Tensor, "N J"]


class WordSizes(NamedTuple):
    """Sizes of the word vectors that a feature can read."""

    source: int = 0
    """E, the size of a source word's embedding."""
    target: int = 0
    """G, the size of the decoder's gate inputs of a target word, W E y."""


NO_WORDS = WordSizes()
"""Sizes for an attention whose features read no words."""


class FeatureSizes(NamedTuple):
    """Sizes of a query (D), of an annotation (H), and of word vectors."""

    query: int
    """Size of a query (D)."""
    annotation: int
    """Size of an annotation (H)."""
    words: WordSizes = NO_WORDS
    """Sizes of the word vectors."""


class Feature(nn.Module, ABC):
    """A feature with `width` values (F) per source position, created from its options and `FeatureSizes`.

    `state` is what it carries from one target position to the next, one row per hypothesis (N = B * Q); `prepared` is
    the result of `prepare`, one row per sentence.
    """

    component: ClassVar[type[FeatureOptions]]
    """The declaration of the component, set by `@implements`."""
    is_sequential: ClassVar[bool] = True
    """True if it depends on earlier weights, so that target positions must be processed in order."""
    reads_words: ClassVar[bool] = False
    """True if it reads the source words, and each target word through `read_word`."""
    width: int

    def __init__(self, options: Any, sizes: FeatureSizes) -> None:
        super().__init__()

    def prepare(self, encoded: Encoded) -> Tensor | None:
        """Return what is computed once per sentence, [B, ...]; it is stored in `Memory.features`."""
        return None

    def start(self, memory: Memory) -> Any:
        """Return the state before the first target position; by default zeros [B, J] in fp32 or wider."""
        return torch.zeros_like(at_least_fp32(memory.annotations[:, :, 0]))

    def read_word(self, state: Any, word: Float[Tensor, "N G"], position: Int[Tensor, "N"]) -> Any:
        """Return the state after the previous target word; called before `values` if the feature reads words."""
        return state

    def untranslated(self, state: Any) -> Alpha | None:
        """Return the untranslated amount of each source position, if the component tracks it."""
        return None

    @abstractmethod
    def values(self, state: Any, prepared: Any, position: Positions) -> Values:
        """Return the values of every source position for Q queries per sentence."""

    @abstractmethod
    def update(self, state: Any, prepared: Any, query: QueryRows, alpha: Alpha) -> Any:
        """Return the state after a target position with weights alpha."""


@implements(LinguisticCoverageOptions)
class LinguisticCoverage(Feature):
    """Coverage C_ij = C_{i-1,j} + alpha_ij / Phi_j, the translated fraction of source word j (Tu et al. 2016, 3.1.1).

    Phi_j = N sigma(U_f h_j) is its fertility, the expected number of target words.
    """

    width = 1

    def __init__(self, options: LinguisticCoverageOptions, sizes: FeatureSizes) -> None:
        super().__init__(options, sizes)
        self.max_fertility = options.fertility  # N
        self.fertility = Linear(sizes.annotation, 1, bias=False)  # U_f

    def prepare(self, encoded: Encoded) -> Tensor:
        """Return the fertilities Phi, [B, J]."""
        return self.max_fertility * torch.sigmoid(at_least_fp32(self.fertility(encoded.annotations)[:, :, 0]))

    def values(self, state: Tensor, prepared: Tensor, position: Positions) -> Values:
        return state.view(*position.shape, -1, 1)

    def update(self, state: Tensor, prepared: Tensor, query: QueryRows, alpha: Alpha) -> Tensor:
        B, J = prepared.shape
        alpha = alpha.view(B, -1, J)
        # [B, Q, J] / [B, 1, J]: fertilities have one row per sentence, the state one per hypothesis.
        return state + (alpha / prepared.unsqueeze(1)).flatten(0, 1)


@implements(NeuralCoverageOptions)
class NeuralCoverage(Feature):
    """Coverage C_ij = f(C_{i-1,j}, alpha_ij, h_j, s_{i-1}) of size d, f a GRU (Tu et al. 2016, section 3.1.2).

    The GRU is that of Bahdanau et al., as in the paper's system; it reads [alpha_ij; h_j; s_{i-1}]. The state is C,
    [N, J, d].
    """

    def __init__(self, options: NeuralCoverageOptions, sizes: FeatureSizes) -> None:
        super().__init__(options, sizes)
        self.width = options.coverage_size
        self.annotation_size = sizes.annotation
        self.cell = GRU(1 + sizes.annotation + sizes.query, self.width)  # f

    def prepare(self, encoded: Encoded) -> Tensor:
        """Return the annotations' part of the gate inputs, with the biases, [B, J, 3 d]."""
        # The columns of h; those of alpha and s depend on the target position (`update`).
        weight = self.cell.input.weight[:, 1 : 1 + self.annotation_size]
        return linear(encoded.annotations, weight, self.cell.input.bias)

    def start(self, memory: Memory) -> Tensor:
        B, J, _ = memory.annotations.shape
        return at_least_fp32(memory.annotations.new_zeros(B, J, self.width))

    def values(self, state: Tensor, prepared: Tensor, position: Positions) -> Values:
        return state.view(*position.shape, -1, self.width)

    def update(self, state: Tensor, prepared: Tensor, query: QueryRows, alpha: Alpha) -> Tensor:
        N, J = alpha.shape
        B = prepared.shape[0]
        weight = self.cell.input.weight  # [3 d, 1 + H + D], columns of alpha, h and s
        # [B, Q, 1, 3 d], the same for all source positions; products with h_j were computed by `prepare`.
        query_gates = linear(query, weight[:, 1 + self.annotation_size :]).view(B, -1, 1, weight.shape[0])
        gates = prepared.unsqueeze(1) + query_gates + alpha.view(B, -1, J, 1) * weight[:, 0]  # [B, Q, J, 3 d]
        # Every source position of every hypothesis is a row of the cell.
        new = self.cell.step(gates.view(N * J, -1), Hidden(state.flatten(0, 1)))
        return new.h.view(N, J, self.width).to(state.dtype)  # autocast may have narrowed it


class CoverageState(NamedTuple):
    """The coverage embedding c [N, J, d] of each source word, and the previous weights alpha [N, J].

    The weights have not changed c yet: the GRU also reads the target word, which is known one position later.
    """

    c: Tensor
    alpha: Tensor


@implements(CoverageEmbeddingOptions)
class CoverageEmbedding(Feature):
    """Coverage embeddings (Mi et al. 2016, "Coverage embedding models for neural machine translation").

    Each source word starts with a full coverage embedding c_0j. Each target word reduces it by its weights,
    c_tj = f(c_{t-1,j}, alpha_tj, y_t), f a GRU, before the weights of the next word are computed.

    Assumptions: f is the GRU of Bahdanau et al. It reads y_t as the decoder's gate inputs W E y_t; any linear function
    of them is one of E y_t. c_0j = W_0 E x_j is computed from the word's embedding instead of having its own table, so
    that words composed of characters have one, too. An annotation of several words starts with their mean.
    """

    reads_words = True

    def __init__(self, options: CoverageEmbeddingOptions, sizes: FeatureSizes) -> None:
        super().__init__(options, sizes)
        self.width = options.coverage_size
        self.full = Linear(sizes.words.source, self.width, bias=False)  # W_0
        self.cell = GRU(1 + sizes.words.target, self.width)  # f, over [alpha_tj; W E y_t]

    def start(self, memory: Memory) -> CoverageState:
        words = memory.words
        assert words is not None
        if memory.origin is not None:
            words = memory.origin.mean_per_annotation(words, memory.mask.shape[1])
        return CoverageState(at_least_fp32(self.full(words)), super().start(memory))

    def read_word(self, state: CoverageState, word: Tensor, position: Tensor) -> CoverageState:
        N, J = state.alpha.shape
        weight = self.cell.input.weight  # [3 d, 1 + G], columns of alpha and the word
        word_gates = linear(word, weight[:, 1:], self.cell.input.bias)[:, None]  # [N, 1, 3 d]
        gates = word_gates + state.alpha.to(word_gates.dtype)[:, :, None] * weight[:, 0]  # [N, J, 3 d]
        new = self.cell.step(gates.flatten(0, 1), Hidden(state.c.flatten(0, 1))).h.view(N, J, self.width)
        # At position 0 there is no previous word.
        return state._replace(c=torch.where(position[:, None, None] > 0, new.to(state.c.dtype), state.c))

    def untranslated(self, state: CoverageState) -> Alpha:
        """Return ||c_tj||."""
        norm: Tensor = torch.linalg.vector_norm(state.c, dim=2)
        return norm

    def values(self, state: CoverageState, prepared: None, position: Positions) -> Values:
        return state.c.view(*position.shape, -1, self.width)

    def update(self, state: CoverageState, prepared: None, query: QueryRows, alpha: Alpha) -> CoverageState:
        return state._replace(alpha=alpha)


@implements(PositionOptions)
class Position(Feature):
    """Position bias [log(1 + i), log(1 + j), log(1 + J)] (Cohn et al. 2016, section 3.1).

    i and j are the target and source position, counted from 1, and J is the number of real source positions.
    """

    is_sequential = False
    width = 3

    def prepare(self, encoded: Encoded) -> Tensor:
        """Return log(1 + j) and log(1 + J) of every source position, [B, J, 2]."""
        j = torch.arange(1, encoded.mask.shape[1] + 1, device=encoded.mask.device).expand(encoded.mask.shape)
        length = encoded.mask.sum(1, keepdim=True).expand(j.shape)
        return torch.log1p(torch.stack([j, length], dim=2).to(at_least_fp32(encoded.annotations).dtype))

    def start(self, memory: Memory) -> None:
        return None

    def values(self, state: None, prepared: Tensor, position: Positions) -> Values:
        B, J, _ = prepared.shape
        Q = position.shape[1]
        target = torch.log1p((position + 1).to(prepared.dtype))[:, :, None, None].expand(-1, -1, J, 1)  # [B, Q, J, 1]
        return torch.cat([target, prepared.unsqueeze(1).expand(B, Q, J, 2)], dim=3)

    def update(self, state: None, prepared: Tensor, query: QueryRows, alpha: Alpha) -> None:
        return None


class _NeighbourFeature(Feature):
    """The state [N, J] in a window [j - k, j + k] around each source position, zeros outside the sentence."""

    def __init__(self, options: MarkovOptions | LocalFertilityOptions, sizes: FeatureSizes) -> None:
        super().__init__(options, sizes)
        self.neighbours = options.neighbours  # k
        self.width = 2 * self.neighbours + 1

    def values(self, state: Tensor, prepared: None, position: Positions) -> Values:
        return neighbourhood(state, self.neighbours).view(*position.shape, -1, self.width)


@implements(MarkovOptions)
class Markov(_NeighbourFeature):
    """Markov condition: the weights of the previous target position around j (Cohn et al. 2016, section 3.2).

    xi_1 = [alpha_{i-1,j-k}, ..., alpha_{i-1,j+k}], zeros at the first position.
    """

    def update(self, state: Tensor, prepared: None, query: QueryRows, alpha: Alpha) -> Tensor:
        return alpha


@implements(LocalFertilityOptions)
class LocalFertility(_NeighbourFeature):
    """Local fertility: the sum of all earlier weights around j (Cohn et al. 2016, section 3.3).

    xi_2 = sum_{i'<i} [alpha_{i',j-k}, ..., alpha_{i',j+k}].
    """

    def update(self, state: Tensor, prepared: None, query: QueryRows, alpha: Alpha) -> Tensor:
        return state + alpha


@implements(RecurrentOptions)
class RecurrentFeature(Feature):
    """Recurrent attention (Yang et al. 2017, "Neural machine translation with recurrent attention modeling").

    Section 3: d_ij = LSTM(d_{i-1,j}, [alpha_{i-1,j-k}, ..., alpha_{i-1,j+k}]) summarises the earlier weights around
    each source position. The state is the LSTM's, [N, J, d]; the score reads its output.
    """

    def __init__(self, options: RecurrentOptions, sizes: FeatureSizes) -> None:
        super().__init__(options, sizes)
        self.neighbours = options.neighbours  # k
        self.width = options.recurrent_size
        self.cell = LSTM(2 * self.neighbours + 1, self.width)

    def start(self, memory: Memory) -> HiddenAndCell:
        B, J, _ = memory.annotations.shape
        zeros = at_least_fp32(memory.annotations.new_zeros(B, J, self.width))
        return HiddenAndCell(zeros, zeros)

    def values(self, state: HiddenAndCell, prepared: None, position: Positions) -> Values:
        return state.h.view(*position.shape, -1, self.width)

    def update(self, state: HiddenAndCell, prepared: None, query: QueryRows, alpha: Alpha) -> HiddenAndCell:
        gates = self.cell.inputs(neighbourhood(alpha, self.neighbours).flatten(0, 1))  # [N * J, 4 d]
        new = self.cell.step(gates, HiddenAndCell(state.h.flatten(0, 1), state.c.flatten(0, 1)))
        return HiddenAndCell(*(after.view_as(old).to(old.dtype) for after, old in zip(new, state, strict=True)))


def neighbourhood(weights: Alpha, neighbours: int) -> Float[Tensor, "N J W"]:
    """Return [w_{j-k}, ..., w_{j+k}] for every position j, zeros outside the sentence; k = `neighbours`."""
    return pad(weights, (neighbours, neighbours)).unfold(1, 2 * neighbours + 1, 1)  # [N, J, 2 k + 1]


FEATURES: Implementations[type[Feature]] = Implementations(attention.FEATURES)
"""Class by name of `features` in `[model.attention]`; names are stored in model folders."""
