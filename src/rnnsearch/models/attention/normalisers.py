"""Normalisers: from masked energies (-inf outside) to weights that sum to 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.tensors import at_least_fp32


class Weights(NamedTuple):
    """alpha: [B, Q, J], exactly 0 where the energy is -inf. expected: [B, Q, J], the distribution that a hard alpha
    was drawn from; None where alpha is that distribution itself."""

    alpha: Tensor
    expected: Tensor | None = None


class Normaliser(nn.Module, ABC):
    """From energies to weights."""

    name: ClassVar[str]
    draws_noise: ClassVar[bool] = False
    """Whether training needs random numbers, one a source position and target position."""

    @abstractmethod
    def forward(self, energy: Float[Tensor, "B Q J"], noise: Float[Tensor, "B Q J"] | None) -> Weights:
        """The weights, in fp32 at least. `noise`: uniform in (0, 1), in training; None in search."""


class Softmax(Normaliser):
    """alpha_ij = exp(e_ij) / sum_k exp(e_ik) (Bahdanau et al., eq. 6)."""

    name = "softmax"

    def forward(self, energy: Float[Tensor, "B Q J"], noise: Float[Tensor, "B Q J"] | None) -> Weights:
        return Weights(torch.softmax(at_least_fp32(energy), dim=-1))


NORMALISERS: dict[str, type[Normaliser]] = {c.name: c for c in (Softmax,)}
