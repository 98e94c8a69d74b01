"""Normalisers: from masked energies (-inf outside the window) to attention weights.

The weights sum to 1, except those of `exponential` and `monotonic`.

By default a checked equivalent (native or fused) of the softmax runs, as a step of a decoder's fast implementation; set
`RNNSEARCH_FAST=0` to debug the definition.

`Attention.forward` calls them. Fast implementations (`accel/fast_forwards.py`, `accel/decoder_steps.py`) and ONNX
graphs (`export/onnx.py`) select normalisers by exact class.

Axes: B sentences, Q queries per sentence (several heads count as queries), J source positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rnnsearch.config import attention
from rnnsearch.config.attention import (
    Entmax15Options,
    ExponentialOptions,
    HardOptions,
    LinearChainOptions,
    MonotonicOptions,
    NormaliserOptions,
    SoftmaxOptions,
    SparsemaxOptions,
)
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.layers import parameter
from rnnsearch.models.memory import Memory
from rnnsearch.utils.tensors import at_least_fp32

Energies = Float[Tensor, "B Q J"]
"""Energies, noise or weights; Q counts the heads of each query, too."""

EXPECTED_RATE = 0.5
"""Fraction of sentences for which hard attention uses its expected value in training (Xu et al. 2015, section 4.1)."""


class AttentionWeights(NamedTuple):
    """Weights of Q queries per sentence.

    alpha: [B, Q, J], exactly 0 where the energy is -inf.
    expected_alpha: [B, Q, J], the distribution that hard weights were sampled from; None if alpha is not sampled.
    """

    alpha: Tensor
    expected_alpha: Tensor | None = None


class Normaliser(nn.Module, ABC):
    """A function from energies to weights."""

    component: ClassVar[type[NormaliserOptions]]
    """The declaration of the component, set by `@implements`."""
    is_sequential: ClassVar[bool] = False
    """True if weights depend on the previous ones, so that target positions must be processed in order."""

    def noise(self, rng: BatchRng, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return the random numbers for training, if the component needs noise."""
        raise AssertionError("the normaliser has no noise")

    def start(self, memory: Memory) -> Float[Tensor, "B J"] | None:
        """Return the weights before the first target position, for a sequential normaliser."""
        return None

    @abstractmethod
    def forward(
        self, energy: Energies, noise: Energies | None = None, previous: Energies | None = None
    ) -> AttentionWeights:
        """Return the weights, in fp32 or wider.

        Args:
            noise: Random numbers from `noise` in training; None in search.
            previous: Weights of the previous target position, for a sequential normaliser.
        """


@implements(SoftmaxOptions)
class Softmax(Normaliser):
    """alpha_ij = exp(e_ij) / sum_k exp(e_ik) (Bahdanau et al., eq. 6)."""

    def forward(
        self, energy: Energies, noise: Energies | None = None, previous: Energies | None = None
    ) -> AttentionWeights:
        return AttentionWeights(torch.softmax(at_least_fp32(energy), dim=-1))


@implements(SparsemaxOptions)
class Sparsemax(Normaliser):
    """The distribution nearest to the energies (Martins & Astudillo 2016, eq. 2).

    alpha_j = max(e_j - tau, 0), with tau such that they sum to 1.
    """

    def forward(
        self, energy: Energies, noise: Energies | None = None, previous: Energies | None = None
    ) -> AttentionWeights:
        from entmax import sparsemax

        return AttentionWeights(sparsemax(at_least_fp32(energy), dim=-1))


@implements(Entmax15Options)
class Entmax15(Normaliser):
    """1.5-entmax, between softmax and sparsemax (Peters et al. 2019, eq. 10 with alpha = 1.5).

    alpha_j = max(e_j / 2 - tau, 0)^2, with tau such that they sum to 1.
    """

    def forward(
        self, energy: Energies, noise: Energies | None = None, previous: Energies | None = None
    ) -> AttentionWeights:
        from entmax import entmax15

        return AttentionWeights(entmax15(at_least_fp32(energy), dim=-1))


@implements(HardOptions)
class Hard(Normaliser):
    """One source position per query (Xu et al. 2015, section 4.1).

    In training it is sampled from the softmax as argmax_j (e_j - log(-log u_j)) with uniform u_j (the Gumbel trick), so
    that the sample is a function of the noise; in search it is the position with the highest energy. alpha is one-hot
    and has no gradient: energies learn through `expected_alpha`, by REINFORCE. "With probability 0.5 for a given image"
    (here: sentence), alpha is its expected value instead, the softmax with its gradient.
    """

    def noise(self, rng: BatchRng, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return uniform random numbers in (0, 1), or 0 for sentences that use the expected value."""
        # One choice per sentence. `uniform` never returns 0, so that 0 can mark the other sentences.
        is_sampled = rng.uniform((shape[0], 1, 1, 1), like) >= EXPECTED_RATE
        return rng.uniform(shape, like) * is_sampled

    def forward(
        self, energy: Energies, noise: Energies | None = None, previous: Energies | None = None
    ) -> AttentionWeights:
        energy = at_least_fp32(energy)
        expected = torch.softmax(energy, dim=-1)
        if noise is None:
            return AttentionWeights(_one_hot_argmax(energy.detach()), expected)
        # Where the noise is 0 all perturbed energies are -inf, but these sentences use the expected value.
        sampled = _one_hot_argmax(energy.detach() - torch.log(-torch.log(noise)))
        return AttentionWeights(torch.where(noise == 0, expected, sampled), expected)


def _one_hot_argmax(x: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter(-1, x.argmax(dim=-1, keepdim=True), 1.0)


@implements(ExponentialOptions)
class Exponential(Normaliser):
    """alpha_ij = exp(e_ij), with any sum; constant 1 with the `even` score.

    For Graves 2013 (eq. 46), where only the mixture window determines the weights.
    """

    def forward(
        self, energy: Energies, noise: Energies | None = None, previous: Energies | None = None
    ) -> AttentionWeights:
        return AttentionWeights(at_least_fp32(energy).exp())


@implements(MonotonicOptions)
class Monotonic(Normaliser):
    """Reading that continues where it stopped, and learns where to stop (Raffel et al. 2017, section 2.3, algorithm 1).

    "Online and linear-time attention by enforcing monotonic alignments": a policy for sources that are still arriving.

    p_ij = sigmoid(e_ij + r + noise) is the probability that reading stops at j if it gets there; q_ij is the
    probability that it gets there; alpha_ij is the product of both:

    q_ij = (1 - p_{i,j-1}) q_{i,j-1} + alpha_{i-1,j};  alpha_ij = p_ij q_ij;  alpha_0 is 1 at the first position.

    In training, noise ~ N(0, 1) pushes p_ij towards 0 or 1. In search, reading stops at the first j with p_ij > 0.5; if
    there is none, nothing is attended to from then on.
    """

    is_sequential = True

    def __init__(self) -> None:
        super().__init__()
        self.offset = parameter(-1.0, 1)  # r

    def noise(self, rng: BatchRng, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return standard normal random numbers."""
        # ndtri is infinite at 0 and 1.
        normal: Tensor = torch.special.ndtri(rng.uniform(shape, like).clamp(1e-6, 1 - 1e-6))
        return normal

    def start(self, memory: Memory) -> Float[Tensor, "B J"]:
        first = torch.zeros_like(at_least_fp32(memory.annotations[:, :, 0]))
        first[:, 0] = 1.0
        return first

    def forward(
        self, energy: Energies, noise: Energies | None = None, previous: Energies | None = None
    ) -> AttentionWeights:
        assert previous is not None
        energy = at_least_fp32(energy) + self.offset
        if noise is None:
            # p > 0.5 is energy > 0. `previous` is one-hot, or 0: its running sum is 1 from the last stop on.
            stops = (energy > 0) * previous.cumsum(-1)
            # Only the first possible stop.
            return AttentionWeights(stops * (stops.cumsum(-1) == 1))
        energy = energy + noise
        # Reading goes from k to j with probability prod_{k<=l<j} (1 - p_l) = exp(passed_j - passed_k), and q_j is the
        # sum over k of this times alpha_{i-1,k}. In logarithms, this is a running sum, without a J x J matrix.
        log_continue = F.logsigmoid(-energy)  # log(1 - p)
        passed = log_continue.cumsum(-1) - log_continue  # sum over l < j, [B, Q, J]
        # Weights of 0 get a finite logarithm, so that the running sum has gradients.
        log_previous = previous.clamp(min=torch.finfo(previous.dtype).tiny).log()
        log_q = passed + torch.logcumsumexp(log_previous - passed, dim=-1)
        return AttentionWeights(torch.sigmoid(energy) * log_q.exp())


@implements(LinearChainOptions)
class LinearChain(Normaliser):
    """Structured attention over all positions together, as a linear chain (after Kim et al. 2017, section 4.2).

    "Structured attention networks": z_j is 1 if position j is attended to, and p(z) is proportional to
    exp(sum_j z_j e_j + sum_j t(z_{j-1}, z_j)). alpha_j is p(z_j = 1), divided by the sum over all positions.

    Assumptions: one t for all positions, t(0, 0) = 0, and the division.
    """

    def __init__(self) -> None:
        super().__init__()
        self.transitions = parameter(0.0, 3)  # t(0, 1), t(1, 0) and t(1, 1)

    def forward(
        self, energy: Energies, noise: Energies | None = None, previous: Energies | None = None
    ) -> AttentionWeights:
        energy = at_least_fp32(energy)
        is_inside = torch.isfinite(energy)
        # `_messages` and the softmax below exclude these positions, so that their energies can be finite.
        energy = energy.masked_fill(~is_inside, 0.0)
        enter, leave, stay = self.transitions.to(energy.dtype)
        forward = _messages(energy, is_inside, enter, leave, stay)
        # From right to left, entering and leaving exchange their roles.
        backward = _messages(energy.flip(-1), is_inside.flip(-1), leave, enter, stay).flip(-1)
        marginal = F.logsigmoid(forward + energy + backward)  # log p(z_j = 1)
        # The softmax of log p(z_j = 1) is p(z_j = 1) divided by its sum.
        return AttentionWeights(torch.softmax(marginal.masked_fill(~is_inside, -torch.inf), dim=-1))


def _messages(energy: Energies, is_inside: Tensor, enter: Tensor, leave: Tensor, stay: Tensor) -> Energies:
    """Return the log-odds of z_j = 1 given the energies before j, for every position.

    The chain runs only over positions inside the window.
    """
    message = torch.zeros_like(energy[..., 0])
    messages = [message]
    for e, inside in zip(energy[..., :-1].unbind(-1), is_inside[..., :-1].unbind(-1), strict=True):
        odds = message + e
        # log [exp(t(0, 1)) + exp(odds + t(1, 1))] - log [1 + exp(odds + t(1, 0))], because t(0, 0) = 0.
        message = torch.logaddexp(enter, odds + stay) - F.softplus(odds + leave)
        message = message.where(inside, 0.0)
        messages.append(message)
    return torch.stack(messages, dim=-1)


NORMALISERS: Implementations[type[Normaliser]] = Implementations(attention.NORMALISERS)
"""Class by `normaliser` of `[model.attention]`; names are stored in model folders."""
