"""Features: what the alignment model sees of each source position besides query and annotation.

A feature gives [B, Q, J, F] numbers a target position, from what it remembers of the weights and words so far
(coverage, Markov, fertility) or from the positions alone. They enter inside the score, through a matrix of their own:
e_ij = v_a^T tanh(W_a s + U_a h_j + W_f f_ij) (Tu et al. 2016; Cohn et al. 2016).
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
Queries = Float[Tensor, "N D"]
Alpha = Float[Tensor, "N J"]


class WordSizes(NamedTuple):
    """Numbers of what a feature that reads words is given of one. source: E, its embedding; target: G, the decoder's
    share of it, W E y."""

    source: int = 0
    target: int = 0


NO_WORDS = WordSizes()


class FeatureSizes(NamedTuple):
    """Numbers of a query (D), of an annotation (H), and of words."""

    query: int
    annotation: int
    words: WordSizes = NO_WORDS


class Feature(nn.Module, ABC):
    """A feature of `width` numbers (F) a source position, made of its own options and sizes.

    `state` is what it remembers, one row a hypothesis; `prepared` what `on` made, one row a sentence.
    """

    component: ClassVar[type[FeatureOptions]]
    """The declaration of the component, set by `@implements`."""
    is_sequential: ClassVar[bool] = True
    """Whether it depends on the weights so far, so that one target position must come after the other."""
    reads_words: ClassVar[bool] = False
    """Whether it reads the source's words, and each target word once that is known."""
    width: int

    def __init__(self, options: Any, sizes: FeatureSizes) -> None:
        super().__init__()

    def prepare(self, encoded: Encoded) -> Tensor | None:
        """What it computes once a sentence, [B, ...]; kept in `Memory.features`."""
        return None

    def start(self, memory: Memory) -> Any:
        """Its state before the first target position: zeros [B, J], in the precision of weights."""
        return torch.zeros_like(at_least_fp32(memory.annotations[:, :, 0]))

    def read_word(self, state: Any, word: Float[Tensor, "N G"], position: Int[Tensor, "N"]) -> Any:
        """The state of a feature that reads words at a target position, before its values: after the word before."""
        return state

    def untranslated(self, state: Any) -> Alpha | None:
        """How much of each source position it holds untranslated, of one that `says_what_is_left`."""
        return None

    @abstractmethod
    def values(self, state: Any, prepared: Any, position: Positions) -> Values:
        """The feature of every source position for Q queries a sentence; rows of `state` are B * Q."""

    @abstractmethod
    def update(self, state: Any, prepared: Any, query: Queries, alpha: Alpha) -> Any:
        """The state after a target position whose weights were alpha; N = B * Q rows."""


@implements(LinguisticCoverageOptions)
class LinguisticCoverage(Feature):
    """Tu et al. 2016, section 3.1.1: C_ij = C_{i-1,j} + alpha_ij / Phi_j, the part of source symbol j that has been
    translated, with its fertility Phi_j = N sigma(U_f h_j), the number of target symbols that it stands for."""

    width = 1

    def __init__(self, options: LinguisticCoverageOptions, sizes: FeatureSizes) -> None:
        super().__init__(options, sizes)
        self.max_fertility = options.fertility
        """N."""
        self.fertility = Linear(sizes.annotation, 1, bias=False)
        """U_f."""

    def on(self, encoded: Encoded) -> Tensor:
        """Phi [B, J]."""
        return self.max_fertility * torch.sigmoid(at_least_fp32(self.fertility(encoded.annotations)[:, :, 0]))

    def values(self, state: Tensor, prepared: Tensor, position: Positions) -> Values:
        return state.view(*position.shape, -1, 1)

    def after(self, state: Tensor, prepared: Tensor, query: Queries, alpha: Alpha) -> Tensor:
        rows = alpha.view(*prepared.shape[:1], -1, prepared.shape[1])
        return state + (rows / prepared.unsqueeze(1)).flatten(0, 1)


@implements(NeuralCoverageOptions)
class NeuralCoverage(Feature):
    """Tu et al. 2016, section 3.1.2: C_ij = f(C_{i-1,j}, alpha_ij, h_j, s_{i-1}), d numbers a source position, f a GRU
    (that of Bahdanau et al., as in the paper's own system) that reads the other three side by side. The state is C."""

    def __init__(self, options: NeuralCoverageOptions, sizes: FeatureSizes) -> None:
        super().__init__(options, sizes)
        self.width = options.coverage_size
        self.annotation_size = sizes.annotation
        self.cell = GRU(1 + sizes.annotation + sizes.query, self.width)
        """f; its inputs are alpha_ij, h_j and s_{i-1}, in this order."""

    def on(self, encoded: Encoded) -> Tensor:
        """The annotations' share of all gates, bias and all, [B, J, 3 d]."""
        weight = self.cell.input.weight[:, 1 : 1 + self.annotation_size]
        return linear(encoded.annotations, weight, self.cell.input.bias)

    def start(self, memory: Memory) -> Tensor:
        B, J, _ = memory.annotations.shape
        return at_least_fp32(memory.annotations.new_zeros(B, J, self.width))

    def values(self, state: Tensor, prepared: Tensor, position: Positions) -> Values:
        return state.view(*position.shape, -1, self.width)

    def after(self, state: Tensor, prepared: Tensor, query: Queries, alpha: Alpha) -> Tensor:
        (N, J), B = alpha.shape, prepared.shape[0]
        weight = self.cell.input.weight
        fixed = linear(query, weight[:, 1 + self.annotation_size :]).view(B, -1, 1, weight.shape[0])
        gates = prepared.unsqueeze(1) + fixed + alpha.view(B, -1, J, 1) * weight[:, 0]
        new = self.cell.step(gates.view(N * J, -1), Hidden(state.flatten(0, 1)))
        return new.h.view(N, J, self.width).to(state.dtype)


class CoverageState(NamedTuple):
    """c: [N, J, d], each source word's coverage embedding; alpha: [N, J], the weights of the target position before,
    which has not changed it yet."""

    c: Tensor
    alpha: Tensor


@implements(CoverageEmbeddingOptions)
class CoverageEmbedding(Feature):
    """Mi et al. 2016 ("Coverage embedding models for neural machine translation"): each source word begins with a full
    coverage embedding of its own, c_0j, which each target word changes by its weights, c_tj = f(c_{t-1,j}, alpha_tj,
    y_t), f a GRU, before the weights of the next are made.

    Assumed: f is Bahdanau et al.'s GRU; of y_t it reads what the decoder's gates do, W E y_t, whose linear functions
    are those of E y_t; and c_0j = W_0 E x_j, of the word's embedding in the place of a table of its own, so that words
    that are made of characters have one, too. Where an annotation is of several words, it is of their mean.
    """

    reads_words = True

    def __init__(self, options: CoverageEmbeddingOptions, sizes: FeatureSizes) -> None:
        super().__init__(options, sizes)
        self.width = options.coverage_size
        self.full = Linear(sizes.words.source, self.width, bias=False)
        """W_0."""
        self.cell = GRU(1 + sizes.words.target, self.width)
        """f; its inputs are alpha_tj and y_t's share, in this order."""

    def start(self, memory: Memory) -> CoverageState:
        words, J = memory.words, memory.mask.shape[1]
        assert words is not None
        c = self.full(words if memory.origin is None else memory.origin.mean_per_annotation(words, J))
        return CoverageState(at_least_fp32(c), super().start(memory))

    def heard(self, state: CoverageState, word: Tensor, position: Tensor) -> CoverageState:
        """Nothing, before the first target word."""
        (N, J), weight = state.alpha.shape, self.cell.input.weight
        of_word = linear(word, weight[:, 1:], self.cell.input.bias)[:, None]
        gates = of_word + state.alpha.to(of_word.dtype)[:, :, None] * weight[:, 0]
        new = self.cell.step(gates.flatten(0, 1), Hidden(state.c.flatten(0, 1))).h.view(N, J, self.width)
        return state._replace(c=torch.where(position[:, None, None] > 0, new.to(state.c.dtype), state.c))

    def left(self, state: CoverageState) -> Alpha:
        """||c_tj||."""
        norm: Tensor = torch.linalg.vector_norm(state.c, dim=2)
        return norm

    def values(self, state: CoverageState, prepared: None, position: Positions) -> Values:
        return state.c.view(*position.shape, -1, self.width)

    def after(self, state: CoverageState, prepared: None, query: Queries, alpha: Alpha) -> CoverageState:
        return state._replace(alpha=alpha)


@implements(PositionOptions)
class Position(Feature):
    """Position bias (Cohn et al. 2016, section 3.1): [log(1 + i), log(1 + j), log(1 + J)] of target position i, source
    position j (both from 1) and the number J of real source positions."""

    remembers = False
    width = 3

    def on(self, encoded: Encoded) -> Tensor:
        """log(1 + j) and log(1 + J) of every source position, [B, J, 2]."""
        at = torch.arange(1, encoded.mask.shape[1] + 1, device=encoded.mask.device).expand(encoded.mask.shape)
        count = encoded.mask.sum(1, keepdim=True).expand(at.shape)
        return torch.log1p(torch.stack([at, count], dim=2).to(at_least_fp32(encoded.annotations).dtype))

    def start(self, memory: Memory) -> None:
        return None

    def values(self, state: None, prepared: Tensor, position: Positions) -> Values:
        B, J, _ = prepared.shape
        target = torch.log1p((position + 1).to(prepared.dtype))[:, :, None, None].expand(-1, -1, J, 1)
        return torch.cat([target, prepared.unsqueeze(1).expand(B, position.shape[1], J, 2)], dim=3)

    def after(self, state: None, prepared: Tensor, query: Queries, alpha: Alpha) -> None:
        return None


class _Neighbours(Feature):
    """A window [j - k, j + k] over numbers remembered of every source position, zero outside the sentence."""

    def __init__(self, options: MarkovOptions | LocalFertilityOptions, sizes: FeatureSizes) -> None:
        super().__init__(options, sizes)
        self.neighbours = options.neighbours
        """k."""
        self.width = 2 * self.neighbours + 1

    def values(self, state: Tensor, prepared: None, position: Positions) -> Values:
        return neighbourhood(state, self.neighbours).view(*position.shape, -1, self.width)


@implements(MarkovOptions)
class Markov(_Neighbours):
    """Markov condition (Cohn et al. 2016, section 3.2): xi_1 = [alpha_{i-1,j-k}, ..., alpha_{i-1,j+k}], the weights of
    the target position before; zeros before the first."""

    def after(self, state: Tensor, prepared: None, query: Queries, alpha: Alpha) -> Tensor:
        return alpha


@implements(LocalFertilityOptions)
class LocalFertility(_Neighbours):
    """Local fertility (Cohn et al. 2016, section 3.3): xi_2 = sum_{i'<i} [alpha_{i',j-k}, ..., alpha_{i',j+k}], all
    weights so far."""

    def after(self, state: Tensor, prepared: None, query: Queries, alpha: Alpha) -> Tensor:
        return state + alpha


@implements(RecurrentOptions)
class RecurrentFeature(Feature):
    """Recurrent attention (Yang et al. 2017, "Neural machine translation with recurrent attention modeling", section
    3): each source position's memory d_ij = LSTM(d_{i-1,j}, [alpha_{i-1,j-k}, ..., alpha_{i-1,j+k}]) of the weights
    around it. The state is the LSTM's, for all positions [N, J, d]; the score is told its output."""

    def __init__(self, options: RecurrentOptions, sizes: FeatureSizes) -> None:
        super().__init__(options, sizes)
        self.neighbours = options.neighbours
        """k."""
        self.width = options.recurrent_size
        self.cell = LSTM(2 * self.neighbours + 1, self.width)

    def start(self, memory: Memory) -> HiddenAndCell:
        B, J, _ = memory.annotations.shape
        zeros = at_least_fp32(memory.annotations.new_zeros(B, J, self.width))
        return HiddenAndCell(zeros, zeros)

    def values(self, state: HiddenAndCell, prepared: None, position: Positions) -> Values:
        return state.h.view(*position.shape, -1, self.width)

    def after(self, state: HiddenAndCell, prepared: None, query: Queries, alpha: Alpha) -> HiddenAndCell:
        around = neighbourhood(alpha, self.neighbours).flatten(0, 1)
        new = self.cell.step(self.cell.inputs(around), HiddenAndCell(state.h.flatten(0, 1), state.c.flatten(0, 1)))
        return HiddenAndCell(*(part.view_as(old).to(old.dtype) for part, old in zip(new, state, strict=True)))


def neighbourhood(numbers: Alpha, neighbours: int) -> Float[Tensor, "N J W"]:
    """[w_{j-k}, ..., w_{j+k}] of every position j, zero outside the sentence."""
    return pad(numbers, (neighbours, neighbours)).unfold(1, 2 * neighbours + 1, 1)


FEATURES: Implementations[type[Feature]] = Implementations(attention.FEATURES)
