"""Normalisers: from masked energies (-inf outside) to weights that sum to 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.util import find_spec
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
    """Whether training draws positions: it needs random numbers, one a source position and target position."""
    package: ClassVar[str | None] = None
    """A package that it needs beside the others."""

    @classmethod
    def fault(cls) -> str | None:
        """Why it cannot be had here, or None."""
        if cls.package is None or find_spec(cls.package) is not None:
            return None
        return (
            f"model.attention.normaliser: {cls.name} needs the package {cls.package}, which is not installed; "
            f"install it with pip install {cls.package}"
        )

    @abstractmethod
    def forward(self, energy: Float[Tensor, "B Q J"], noise: Float[Tensor, "B Q J"] | None) -> Weights:
        """The weights, in fp32 at least. `noise`: in training uniform in (0, 1), or 0 where the expected value is used;
        in search None."""


class Softmax(Normaliser):
    """alpha_ij = exp(e_ij) / sum_k exp(e_ik) (Bahdanau et al., eq. 6)."""

    name = "softmax"

    def forward(self, energy: Float[Tensor, "B Q J"], noise: Float[Tensor, "B Q J"] | None) -> Weights:
        return Weights(torch.softmax(at_least_fp32(energy), dim=-1))


class Sparsemax(Normaliser):
    """The distribution nearest to the energies: alpha_j = max(e_j - tau, 0), tau such that they sum to 1
    (Martins & Astudillo 2016, eq. 2)."""

    name = "sparsemax"
    package = "entmax"

    def forward(self, energy: Float[Tensor, "B Q J"], noise: Float[Tensor, "B Q J"] | None) -> Weights:
        from entmax import sparsemax

        return Weights(sparsemax(at_least_fp32(energy), dim=-1))


class Entmax15(Normaliser):
    """1.5-entmax, between softmax and sparsemax: alpha_j = max(e_j / 2 - tau, 0)^2, tau such that they sum to 1
    (Peters et al. 2019, eq. 10 with alpha = 1.5)."""

    name = "entmax15"
    package = "entmax"

    def forward(self, energy: Float[Tensor, "B Q J"], noise: Float[Tensor, "B Q J"] | None) -> Weights:
        from entmax import entmax15

        return Weights(entmax15(at_least_fp32(energy), dim=-1))


class Hard(Normaliser):
    """One position a query (Xu et al. 2015, section 4.1): drawn from the softmax in training, its best one in search.

    Drawn as argmax_j (e_j - log(-log u_j)), u_j uniform (the Gumbel trick), so that one draw follows from the noise
    alone. alpha is one-hot and has no gradient: energies learn through `expected`, by REINFORCE. "With probability 0.5
    for a given image" (here: a sentence) alpha is its expected value instead, the softmax itself, with its gradient.
    """

    name = "hard"
    draws_noise = True

    def forward(self, energy: Float[Tensor, "B Q J"], noise: Float[Tensor, "B Q J"] | None) -> Weights:
        energy = at_least_fp32(energy)
        expected = torch.softmax(energy, dim=-1)
        drawn = energy.detach() if noise is None else energy.detach() - torch.log(-torch.log(noise))
        best = drawn.argmax(dim=-1, keepdim=True)
        alpha = torch.zeros_like(expected).scatter(-1, best, 1.0)
        return Weights(alpha if noise is None else torch.where(noise == 0, expected, alpha), expected)


NORMALISERS: dict[str, type[Normaliser]] = {c.name: c for c in (Softmax, Sparsemax, Entmax15, Hard)}
