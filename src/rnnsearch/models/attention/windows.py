"""Windows: which source positions a query may attend to, and how its weights fall off within them.

Positions count from 0, in the original source order (also under source reversal); t is the target position from 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rnnsearch.config import attention
from rnnsearch.config.attention import (
    GlobalOptions,
    LocalMonotonicOptions,
    LocalPredictiveOptions,
    MixtureOptions,
    WaitOptions,
    WindowOptions,
)
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.models.layers import Linear, parameter
from rnnsearch.models.memory import Memory
from rnnsearch.utils.tensors import at_least_fp32


class WindowMask(NamedTuple):
    """Where Q queries a sentence may attend, at P source positions.

    allowed: [B, Q or 1, P], True inside the window and on real positions; somewhere True in every row of a sentence.
    factor: [B, Q, P], what the normalised weights are multiplied with (local-p's Gaussian, not renormalised:
        Luong et al., eq. 10; the mixture's); None for 1.
    """

    allowed: Tensor
    factor: Tensor | None = None


Queries = Float[Tensor, "B Q D"]
Mask = Bool[Tensor, "B J"]
Targets = Int[Tensor, "B Q"] | None
Centres = Float[Tensor, "B Q *n"]
Sources = Int[Tensor, "b q P"]
Real = Bool[Tensor, "B r P"]


class Window(nn.Module, ABC):
    """A window over the source positions, made of its own options."""

    component: ClassVar[type[WindowOptions]]
    """The declaration of the component, set by `@implements`."""
    needs_position: ClassVar[bool] = False
    """Whether it needs the target position t."""
    is_sequential: ClassVar[bool] = False
    """Whether a centre depends on the one before it, so that one target position must come after the other."""
    reach: int | None = None
    """D: a query sees the positions within D of its centre alone, so no more than 2 D + 1; None: it sees all."""

    def __init__(self, options: Any, query_size: int) -> None:
        super().__init__()

    def start(self, memory: Memory) -> Tensor | None:
        """The centres [B, ...] before the first target position, of a window that remembers."""
        return None

    def centre(self, query: Queries, mask: Mask, position: Targets, last: Tensor | None = None) -> Centres | None:
        """p_t of Q queries a sentence at target positions t (None unless `counts`), in fp32 at least; None where the
        window has no centre. last: those of the position before [B * Q, ...], for a window that remembers."""
        return None

    @abstractmethod
    def mask(self, centre: Centres | None, positions: Sources, real: Real) -> WindowMask:
        """Which of the given source positions are in the windows around `centre`; `real`: no padding."""


@implements(GlobalOptions)
class Global(Window):
    """All real source positions."""

    def place(self, centre: Centres | None, positions: Sources, real: Real) -> WindowMask:
        return WindowMask(real)


@implements(LocalMonotonicOptions)
class LocalMonotonic(Window):
    """local-m (Luong et al. 2015, section 3.2): p_t = t and the window [p_t - D, p_t + D], weights within it even.

    Where the target grows longer than the source, p_t stays at the last source position: the paper leaves such a
    window empty, and there would be nothing to take weights over.
    """

    counts = True

    def __init__(self, options: LocalMonotonicOptions, query_size: int) -> None:
        super().__init__(options, query_size)
        self.reach: int = options.width

    def centre(self, query: Queries, mask: Mask, position: Targets, last: Tensor | None = None) -> Centres:
        assert position is not None
        return torch.minimum(position, mask.sum(1, keepdim=True) - 1).to(torch.float32)

    def place(self, centre: Centres | None, positions: Sources, real: Real) -> WindowMask:
        assert centre is not None
        return WindowMask(((positions - centre.unsqueeze(2)).abs() <= self.reach) & real)


@implements(LocalPredictiveOptions)
class LocalPredictive(Window):
    """local-p (Luong et al. 2015, eq. 9-10): p_t = S sigmoid(v_p^T tanh(W_p h_t)), S the number of real source
    positions; the whole positions s with |s - p_t| <= D; weights times exp(-(s - p_t)^2 / (2 sigma^2)), sigma = D / 2,
    around the real-valued p_t. The weights do not add up to 1: the Gaussian comes after the softmax.

    p_t learns through the Gaussian alone: the window's ends have no gradient.
    """

    def __init__(self, options: LocalPredictiveOptions, query_size: int) -> None:
        super().__init__(options, query_size)
        self.reach: int = options.width
        self.query = Linear(query_size, query_size, bias=False)
        """W_p."""
        self.vector = parameter("weight", query_size)
        """v_p."""

    def centre(self, query: Queries, mask: Mask, position: Targets, last: Tensor | None = None) -> Centres:
        hidden = torch.tanh(self.query(query))
        share = torch.sigmoid(at_least_fp32(hidden @ self.vector.to(hidden.dtype)))
        return mask.sum(1, keepdim=True) * share

    def place(self, centre: Centres | None, positions: Sources, real: Real) -> WindowMask:
        assert centre is not None
        distance = positions - centre.unsqueeze(2)
        sigma = self.reach / 2
        return WindowMask((distance.abs() <= self.reach) & real, torch.exp(distance.square() / (-2 * sigma**2)))


@implements(WaitOptions)
class WaitK(Window):
    """wait-k (Ma et al. 2019, "STACL: simultaneous translation with implicit anticipation and controllable latency",
    section 3): at target position t the source positions before t + k, as if the others had not arrived yet. A model
    that has really not seen them has an encoder that reads forward and a decoder that begins at zero."""

    counts = True

    def __init__(self, options: WaitOptions, query_size: int) -> None:
        super().__init__(options, query_size)
        self.wait: int = options.wait
        """k."""

    def centre(self, query: Queries, mask: Mask, position: Targets, last: Tensor | None = None) -> Centres:
        """The last position that has arrived."""
        assert position is not None
        return (position + self.wait - 1).to(torch.float32)

    def place(self, centre: Centres | None, positions: Sources, real: Real) -> WindowMask:
        assert centre is not None
        return WindowMask((positions <= centre.unsqueeze(2)) & real)


@implements(MixtureOptions)
class Mixture(Window):
    """A mixture of K bells that move rightward alone (Graves 2013, "Generating sequences with recurrent neural
    networks", eq. 46-51), u the source position from 1:

    (log alpha_t, log beta_t, log step_t) = W s + b;  kappa_t = kappa_{t-1} + step_t;
    phi(t, u) = sum_k alpha_t^k exp(-beta_t^k (kappa_t^k - u)^2).

    Weights are multiplied with phi, which is what Graves attends with: it is all there is beside the `even` score and
    the `exponential` normaliser.
    """

    remembers = True

    def __init__(self, options: MixtureOptions, query_size: int) -> None:
        super().__init__(options, query_size)
        self.components: int = options.components
        """K."""
        self.bells = Linear(query_size, 3 * self.components)
        """W and b."""

    def start(self, memory: Memory) -> Tensor:
        zeros = memory.annotations.new_zeros(memory.mask.shape[0], 3, self.components)
        return at_least_fp32(zeros)

    def centre(self, query: Queries, mask: Mask, position: Targets, last: Tensor | None = None) -> Centres:
        """alpha, beta and kappa [B, Q, 3, K]."""
        assert last is not None
        bells = at_least_fp32(self.bells(query)).unflatten(2, (3, self.components))
        alpha, beta, step = bells.exp().unbind(2)
        return torch.stack([alpha, beta, last.unflatten(0, (mask.shape[0], -1))[:, :, 2] + step], dim=2)

    def place(self, centre: Centres | None, positions: Sources, real: Real) -> WindowMask:
        assert centre is not None
        alpha, beta, kappa = centre.unsqueeze(4).unbind(2)
        distance = kappa - (positions + 1).unsqueeze(2)
        return WindowMask(real, (alpha * torch.exp(-beta * distance.square())).sum(2))


WINDOWS: Implementations[type[Window]] = Implementations(attention.WINDOWS)
