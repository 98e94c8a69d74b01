"""Normalisers: from masked energies (-inf outside) to weights that sum to 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.tensors import at_least_fp32


class Normaliser(nn.Module, ABC):
    """From energies to weights."""

    name: ClassVar[str]

    @abstractmethod
    def forward(self, energy: Float[Tensor, "B Q J"]) -> Float[Tensor, "B Q J"]:
        """alpha, in fp32 at least; exactly 0 where the energy is -inf."""


class Softmax(Normaliser):
    """alpha_ij = exp(e_ij) / sum_k exp(e_ik) (Bahdanau et al., eq. 6)."""

    name = "softmax"

    def forward(self, energy: Float[Tensor, "B Q J"]) -> Float[Tensor, "B Q J"]:
        return torch.softmax(at_least_fp32(energy), dim=-1)


NORMALISERS: dict[str, type[Normaliser]] = {c.name: c for c in (Softmax,)}
