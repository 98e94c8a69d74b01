"""Normalisers: from masked energies (-inf outside) to weights that sum to 1, but for `exponential` and `monotonic`."""

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
EXPECTED_RATE = 0.5
"""Share of the sentences for which hard attention uses its expected value in training (Xu et al. 2015, section 4.1)."""


class AttentionWeights(NamedTuple):
    """alpha: [B, Q, J], exactly 0 where the energy is -inf. expected: [B, Q, J], the distribution that a hard alpha
    was drawn from; None where alpha is that distribution itself."""

    alpha: Tensor
    expected_alpha: Tensor | None = None


class Normaliser(nn.Module, ABC):
    """From energies to weights."""

    component: ClassVar[type[NormaliserOptions]]
    """The declaration of the component, set by `@implements`."""
    is_sequential: ClassVar[bool] = False
    """Whether weights depend on those before them, so that one target position must come after the other."""

    def noise(self, draws: BatchRng, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """What it draws in training."""
        raise AssertionError("only of a normaliser that draws noise")

    def start(self, memory: Memory) -> Float[Tensor, "B J"] | None:
        """The weights before the first target position, of a normaliser that remembers."""
        return None

    @abstractmethod
    def forward(
        self, energy: Energies, noise: Energies | None = None, last: Energies | None = None
    ) -> AttentionWeights:
        """The weights, in fp32 at least. `noise`: in training what it draws, in search None. `last`: the weights of the
        position before, where it remembers."""


@implements(SoftmaxOptions)
class Softmax(Normaliser):
    """alpha_ij = exp(e_ij) / sum_k exp(e_ik) (Bahdanau et al., eq. 6)."""

    def forward(
        self, energy: Energies, noise: Energies | None = None, last: Energies | None = None
    ) -> AttentionWeights:
        return AttentionWeights(torch.softmax(at_least_fp32(energy), dim=-1))


@implements(SparsemaxOptions)
class Sparsemax(Normaliser):
    """The distribution nearest to the energies: alpha_j = max(e_j - tau, 0), tau such that they sum to 1
    (Martins & Astudillo 2016, eq. 2)."""

    def forward(
        self, energy: Energies, noise: Energies | None = None, last: Energies | None = None
    ) -> AttentionWeights:
        from entmax import sparsemax

        return AttentionWeights(sparsemax(at_least_fp32(energy), dim=-1))


@implements(Entmax15Options)
class Entmax15(Normaliser):
    """1.5-entmax, between softmax and sparsemax: alpha_j = max(e_j / 2 - tau, 0)^2, tau such that they sum to 1
    (Peters et al. 2019, eq. 10 with alpha = 1.5)."""

    def forward(
        self, energy: Energies, noise: Energies | None = None, last: Energies | None = None
    ) -> AttentionWeights:
        from entmax import entmax15

        return AttentionWeights(entmax15(at_least_fp32(energy), dim=-1))


@implements(HardOptions)
class Hard(Normaliser):
    """One position a query (Xu et al. 2015, section 4.1): drawn from the softmax in training, its best one in search.

    Drawn as argmax_j (e_j - log(-log u_j)), u_j uniform (the Gumbel trick), so that one draw follows from the noise
    alone. alpha is one-hot and has no gradient: energies learn through `expected`, by REINFORCE. "With probability 0.5
    for a given image" (here: a sentence) alpha is its expected value instead, the softmax itself, with its gradient.
    """

    def noise(self, draws: BatchRng, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Uniform in (0, 1), or 0 for the sentences that use the expected value."""
        sampled = draws.uniform((shape[0], 1, 1, 1), like) >= EXPECTED_RATE
        return draws.uniform(shape, like) * sampled

    def forward(
        self, energy: Energies, noise: Energies | None = None, last: Energies | None = None
    ) -> AttentionWeights:
        energy = at_least_fp32(energy)
        expected = torch.softmax(energy, dim=-1)
        drawn = energy.detach() if noise is None else energy.detach() - torch.log(-torch.log(noise))
        best = drawn.argmax(dim=-1, keepdim=True)
        alpha = torch.zeros_like(expected).scatter(-1, best, 1.0)
        return AttentionWeights(alpha if noise is None else torch.where(noise == 0, expected, alpha), expected)


@implements(ExponentialOptions)
class Exponential(Normaliser):
    """alpha_ij = exp(e_ij), which sum to anything: 1 at every position beside the `even` score, for Graves 2013 (eq.
    46), where the mixture window alone says how much."""

    def forward(
        self, energy: Energies, noise: Energies | None = None, last: Energies | None = None
    ) -> AttentionWeights:
        return AttentionWeights(at_least_fp32(energy).exp())


@implements(MonotonicOptions)
class Monotonic(Normaliser):
    """Reads on from where it stopped, and learns where to stop (Raffel et al. 2017, "Online and linear-time attention
    by enforcing monotonic alignments", section 2.3 and algorithm 1): a policy for sources that are still arriving.

    p_ij = sigmoid(e_ij + r + noise) is how likely reading stops at j;  q_ij, that it comes so far;  alpha_ij, both:
    q_ij = (1 - p_{i,j-1}) q_{i,j-1} + alpha_{i-1,j};  alpha_ij = p_ij q_ij;  alpha_0 is all on the first position.
    In training noise ~ N(0, 1) makes p_ij be sure. In search reading stops at the first j with p_ij > 0.5; where there
    is none, nothing is attended to, then and after.
    """

    remembers = True

    def __init__(self) -> None:
        super().__init__()
        self.offset = parameter(-1.0, 1)
        """r."""

    def noise(self, draws: BatchRng, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Standard normal."""
        normal: Tensor = torch.special.ndtri(draws.uniform(shape, like).clamp(1e-6, 1 - 1e-6))
        return normal

    def start(self, memory: Memory) -> Float[Tensor, "B J"]:
        first = torch.zeros_like(at_least_fp32(memory.annotations[:, :, 0]))
        first[:, 0] = 1.0
        return first

    def forward(
        self, energy: Energies, noise: Energies | None = None, last: Energies | None = None
    ) -> AttentionWeights:
        assert last is not None
        energy = at_least_fp32(energy) + self.offset
        if noise is None:
            stops = (energy > 0) * last.cumsum(-1)
            return AttentionWeights(stops * (stops.cumsum(-1) == 1))
        energy = energy + noise
        # Reading goes from k to j with probability prod_{k<=l<j} (1 - p_l) = exp(past_j - past_k), and q_j is the sum
        # over k of that times alpha_{i-1,k}: in logarithms a running sum, which no J x J matrix is kept for.
        on = F.logsigmoid(-energy)
        past = on.cumsum(-1) - on
        comes = past + torch.logcumsumexp(last.clamp(min=torch.finfo(last.dtype).tiny).log() - past, dim=-1)
        return AttentionWeights(torch.sigmoid(energy) * comes.exp())


@implements(LinearChainOptions)
class LinearChain(Normaliser):
    """Which positions are attended to is decided for all of them together: z_j is 1 where j is, by a chain of
    neighbours, p(z) ~ exp(sum_j z_j e_j + sum_j t(z_{j-1}, z_j)); alpha_j is p(z_j = 1), divided by their sum
    (after Kim et al. 2017, "Structured attention networks", section 4.2, with one t for all positions, t(0, 0) = 0 and
    the division assumed)."""

    def __init__(self) -> None:
        super().__init__()
        self.transitions = parameter(0.0, 3)
        """t(0, 1), t(1, 0) and t(1, 1)."""

    def forward(
        self, energy: Energies, noise: Energies | None = None, last: Energies | None = None
    ) -> AttentionWeights:
        energy = at_least_fp32(energy)
        inside = torch.isfinite(energy)
        energy = energy.masked_fill(~inside, 0.0)
        enters, leaves, stays = self.transitions.to(energy.dtype)
        onward = _messages(energy, inside, enters, leaves, stays)
        back = _messages(energy.flip(-1), inside.flip(-1), leaves, enters, stays).flip(-1)
        marginal = F.logsigmoid(onward + energy + back)
        return AttentionWeights(torch.softmax(marginal.masked_fill(~inside, -torch.inf), dim=-1))


def _messages(energy: Energies, inside: Tensor, enters: Tensor, leaves: Tensor, stays: Tensor) -> Energies:
    """log of how much likelier z_j = 1 is than z_j = 0 by what stands before j; the chain goes over the positions
    inside the window alone."""
    message = torch.zeros_like(energy[..., 0])
    messages = [message]
    for e, known in zip(energy[..., :-1].unbind(-1), inside[..., :-1].unbind(-1), strict=True):
        odds = message + e
        message = torch.logaddexp(enters, odds + stays) - F.softplus(odds + leaves)
        message = message.where(known, 0.0)
        messages.append(message)
    return torch.stack(messages, dim=-1)


NORMALISERS: Implementations[type[Normaliser]] = Implementations(attention.NORMALISERS)
