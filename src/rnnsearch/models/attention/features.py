"""Features: what the alignment model sees of each source position besides query and annotation.

A feature gives [B, Q, J, F] numbers a target position, from what it remembers of the weights so far (coverage,
Markov, fertility) or from the positions alone. They enter inside the score, through a matrix of their own:
e_ij = v_a^T tanh(W_a s + U_a h_j + W_f f_ij) (Tu et al. 2016; Cohn et al. 2016).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from rnnsearch.config.attention import (
    LinguisticCoverageOptions,
    LocalFertilityOptions,
    MarkovOptions,
    NeuralCoverageOptions,
    PositionOptions,
)
from rnnsearch.kernels.linear import linear
from rnnsearch.models.cells import GRU
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import Encoded, Hidden, Memory
from rnnsearch.tensors import at_least_fp32

Positions = Int[Tensor, "B Q"]
Values = Float[Tensor, "B Q J F"]
Queries = Float[Tensor, "N D"]
Weights = Float[Tensor, "N J"]


class Feature(nn.Module, ABC):
    """A feature of `width` numbers (F) a source position."""

    name: ClassVar[str]
    remembers: ClassVar[bool] = True
    """Whether it depends on the weights so far, so that one target position must come after the other."""
    width: int

    @classmethod
    @abstractmethod
    def make(cls, options: Any, query_size: int, annotation_size: int) -> Feature:
        """A feature of its own options."""

    def on(self, encoded: Encoded) -> Tensor | None:
        """What it computes once a sentence, [B, ...]; kept in `Memory.features`."""
        return None

    @abstractmethod
    def start(self, memory: Memory, prepared: Tensor | None) -> Any:
        """Its state before the first target position: a named tuple of tensors, one row a sentence."""

    @abstractmethod
    def values(self, state: Any, prepared: Tensor | None, memory: Memory, position: Positions) -> Values:
        """The feature of every source position for Q queries a sentence; rows of `state` are B * Q."""

    @abstractmethod
    def after(self, state: Any, prepared: Tensor | None, memory: Memory, query: Queries, alpha: Weights) -> Any:
        """The state after a target position whose weights were alpha; N = B * Q rows."""


class Past(NamedTuple):
    """What is remembered of the weights so far, alpha [N, J]: their last, or a sum of them."""

    alpha: Tensor


def _no_past(memory: Memory) -> Past:
    """Nothing yet, in the precision of weights."""
    return Past(torch.zeros_like(at_least_fp32(memory.annotations[:, :, 0])))


class LinguisticCoverage(Feature):
    """Tu et al. 2016, section 3.1.1: C_ij = C_{i-1,j} + alpha_ij / Phi_j, the part of source symbol j that has been
    translated, with its fertility Phi_j = N sigma(U_f h_j), the number of target symbols that it stands for."""

    name = "coverage-linguistic"
    width = 1

    def __init__(self, annotation_size: int, most: float) -> None:
        super().__init__()
        self.most = most
        """N."""
        self.fertility = Linear(annotation_size, 1, bias=False)
        """U_f."""

    @classmethod
    def make(cls, options: LinguisticCoverageOptions, query_size: int, annotation_size: int) -> LinguisticCoverage:
        return cls(annotation_size, options.fertility)

    def on(self, encoded: Encoded) -> Tensor:
        """Phi [B, J]."""
        return self.most * torch.sigmoid(at_least_fp32(self.fertility(encoded.annotations)[:, :, 0]))

    def start(self, memory: Memory, prepared: Tensor | None) -> Past:
        return _no_past(memory)

    def values(self, state: Any, prepared: Tensor | None, memory: Memory, position: Positions) -> Values:
        coverage: Tensor = state.alpha
        return coverage.view(*position.shape, -1, 1)

    def after(self, state: Any, prepared: Tensor | None, memory: Memory, query: Queries, alpha: Weights) -> Past:
        assert prepared is not None
        rows = alpha.view(*prepared.shape[:1], -1, prepared.shape[1])
        return Past(state.alpha + (rows / prepared.unsqueeze(1)).flatten(0, 1))


class Covered(NamedTuple):
    """C [N, J, d]."""

    vectors: Tensor


class NeuralCoverage(Feature):
    """Tu et al. 2016, section 3.1.2: C_ij = f(C_{i-1,j}, alpha_ij, h_j, s_{i-1}), d numbers a source position, f a GRU
    (that of Bahdanau et al., as in the paper's own system) that reads the other three side by side."""

    name = "coverage-neural"

    def __init__(self, query_size: int, annotation_size: int, size: int) -> None:
        super().__init__()
        self.width = size
        self.annotation_size = annotation_size
        self.cell = GRU(1 + annotation_size + query_size, size)
        """f; its inputs are alpha_ij, h_j and s_{i-1}, in this order."""

    @classmethod
    def make(cls, options: NeuralCoverageOptions, query_size: int, annotation_size: int) -> NeuralCoverage:
        return cls(query_size, annotation_size, options.coverage_size)

    def on(self, encoded: Encoded) -> Tensor:
        """The annotations' share of all gates, bias and all, [B, J, 3 d]."""
        weight = self.cell.input.weight[:, 1 : 1 + self.annotation_size]
        return linear(encoded.annotations, weight, self.cell.input.bias)

    def start(self, memory: Memory, prepared: Tensor | None) -> Covered:
        B, J, _ = memory.annotations.shape
        return Covered(at_least_fp32(memory.annotations.new_zeros(B, J, self.width)))

    def values(self, state: Any, prepared: Tensor | None, memory: Memory, position: Positions) -> Values:
        coverage: Tensor = state.vectors
        return coverage.view(*position.shape, -1, self.width)

    def after(self, state: Any, prepared: Tensor | None, memory: Memory, query: Queries, alpha: Weights) -> Covered:
        assert prepared is not None
        (N, J), B = alpha.shape, prepared.shape[0]
        weight = self.cell.input.weight
        fixed = linear(query, weight[:, 1 + self.annotation_size :]).view(B, -1, 1, weight.shape[0])
        gates = prepared.unsqueeze(1) + fixed + alpha.view(B, -1, J, 1) * weight[:, 0]
        new = self.cell.step(gates.view(N * J, -1), Hidden(state.vectors.flatten(0, 1)))
        return Covered(new.h.view(N, J, self.width).to(state.vectors.dtype))


class Nothing(NamedTuple):
    """The state of a feature that remembers nothing."""


class Position(Feature):
    """Position bias (Cohn et al. 2016, section 3.1): [log(1 + i), log(1 + j), log(1 + J)] of target position i, source
    position j (both from 1) and the number J of real source positions."""

    name = "position"
    remembers = False
    width = 3

    @classmethod
    def make(cls, options: PositionOptions, query_size: int, annotation_size: int) -> Position:
        return cls()

    def on(self, encoded: Encoded) -> Tensor:
        """log(1 + j) and log(1 + J) of every source position, [B, J, 2]."""
        at = torch.arange(1, encoded.mask.shape[1] + 1, device=encoded.mask.device).expand(encoded.mask.shape)
        count = encoded.mask.sum(1, keepdim=True).expand(at.shape)
        return torch.log1p(torch.stack([at, count], dim=2).to(at_least_fp32(encoded.annotations).dtype))

    def start(self, memory: Memory, prepared: Tensor | None) -> Nothing:
        return Nothing()

    def values(self, state: Any, prepared: Tensor | None, memory: Memory, position: Positions) -> Values:
        assert prepared is not None
        B, J, _ = prepared.shape
        target = torch.log1p((position + 1).to(prepared.dtype))[:, :, None, None].expand(-1, -1, J, 1)
        return torch.cat([target, prepared.unsqueeze(1).expand(B, position.shape[1], J, 2)], dim=3)

    def after(self, state: Any, prepared: Tensor | None, memory: Memory, query: Queries, alpha: Weights) -> Nothing:
        return Nothing()


class _Neighbours(Feature):
    """A window [j - k, j + k] over numbers remembered of every source position, zero outside the sentence."""

    def __init__(self, neighbours: int) -> None:
        super().__init__()
        self.neighbours = neighbours
        """k."""
        self.width = 2 * neighbours + 1

    @classmethod
    def make(cls, options: MarkovOptions | LocalFertilityOptions, query_size: int, annotation_size: int) -> _Neighbours:
        return cls(options.neighbours)

    def start(self, memory: Memory, prepared: Tensor | None) -> Past:
        return _no_past(memory)

    def values(self, state: Any, prepared: Tensor | None, memory: Memory, position: Positions) -> Values:
        around = pad(state.alpha, (self.neighbours, self.neighbours)).unfold(1, self.width, 1)
        return around.view(*position.shape, -1, self.width)

    def after(self, state: Any, prepared: Tensor | None, memory: Memory, query: Queries, alpha: Weights) -> Past:
        return Past(self.kept(state.alpha, alpha))

    @abstractmethod
    def kept(self, before: Float[Tensor, "N J"], alpha: Float[Tensor, "N J"]) -> Float[Tensor, "N J"]:
        """What is remembered after a target position whose weights were alpha, from what was before."""


class Markov(_Neighbours):
    """Markov condition (Cohn et al. 2016, section 3.2): xi_1 = [alpha_{i-1,j-k}, ..., alpha_{i-1,j+k}], the weights of
    the target position before; zeros before the first."""

    name = "markov"

    def kept(self, before: Float[Tensor, "N J"], alpha: Float[Tensor, "N J"]) -> Float[Tensor, "N J"]:
        return alpha


class LocalFertility(_Neighbours):
    """Local fertility (Cohn et al. 2016, section 3.3): xi_2 = sum_{i'<i} [alpha_{i',j-k}, ..., alpha_{i',j+k}], all
    weights so far."""

    name = "fertility-local"

    def kept(self, before: Float[Tensor, "N J"], alpha: Float[Tensor, "N J"]) -> Float[Tensor, "N J"]:
        return before + alpha


FEATURES: dict[str, type[Feature]] = {
    c.name: c for c in (LinguisticCoverage, NeuralCoverage, Position, Markov, LocalFertility)
}
