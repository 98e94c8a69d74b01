"""Windows: the source positions that a query can attend to, and a factor on their weights.

Source positions are counted from 0, in the original order (also if the encoder reads the source in reverse); t is the
target position, from 0. `Attention` calls `centre` and `mask` for each query.

`accel/windowed_attention.py` is a fast implementation for local windows, and `accel/decoder_steps.py` has native steps
for some classes (`SUPPORTED_WINDOWS`).

Axes: B sentences, Q queries per sentence, J source positions, P positions that the queries see, D query (D in the
papers' equations is the largest distance from the centre), K bell curves of a mixture.
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
    """The window of Q queries per sentence over P source positions.

    allowed: [B, Q or 1, P], True on real positions inside the window; every row has at least one.
    factor: [B, Q, P], a factor on the normalised weights (the Gaussian of local-p, not renormalised: Luong et al.,
        eq. 10; or the mixture); None for 1.
    """

    allowed: Tensor
    factor: Tensor | None = None


Queries = Float[Tensor, "B Q D"]
Mask = Bool[Tensor, "B J"]
TargetPositions = Int[Tensor, "B Q"] | None
Centres = Float[Tensor, "B Q *n"]
SourcePositions = Int[Tensor, "b q P"]
Real = Bool[Tensor, "B r P"]


class Window(nn.Module, ABC):
    """A window over the source positions, created from its options."""

    component: ClassVar[type[WindowOptions]]
    """The declaration of the component, set by `@implements`."""
    needs_position: ClassVar[bool] = False
    """True if it depends on the target position t."""
    is_sequential: ClassVar[bool] = False
    """True if a centre depends on the previous one, so that target positions must be processed in order."""
    reach: int | None = None
    """D, the largest distance from the centre that a query sees, at most 2 D + 1 positions; None if it sees all."""

    def __init__(self, options: Any, query_size: int) -> None:
        super().__init__()

    def start(self, memory: Memory) -> Tensor | None:
        """Return the centres [B, ...] before the first target position, for a sequential window."""
        return None

    def centre(
        self, query: Queries, mask: Mask, position: TargetPositions, previous: Tensor | None = None
    ) -> Centres | None:
        """Return the centre p_t of each query, in fp32 or wider; None if the window has no centre.

        Args:
            mask: True on real source positions.
            position: Target positions; can be None unless `needs_position`.
            previous: Centres of the previous position [B * Q, ...], for a sequential window.
        """
        return None

    @abstractmethod
    def mask(self, centre: Centres | None, positions: SourcePositions, real: Real) -> WindowMask:
        """Return the window around `centre` over the given source positions; `real` is False on padding."""


@implements(GlobalOptions)
class Global(Window):
    """All real source positions."""

    def mask(self, centre: Centres | None, positions: SourcePositions, real: Real) -> WindowMask:
        return WindowMask(real)


@implements(LocalMonotonicOptions)
class LocalMonotonic(Window):
    """local-m: p_t = t, and a uniform window [p_t - D, p_t + D] (Luong et al. 2015, section 3.2).

    If the target is longer than the source, p_t stays at the last source position, where the paper leaves the weights
    undefined. It is the last word if the encoder reads no end token, as in the authors' code, and otherwise EOS.
    """

    needs_position = True

    def __init__(self, options: LocalMonotonicOptions, query_size: int) -> None:
        super().__init__(options, query_size)
        self.reach: int = options.width  # D

    def centre(self, query: Queries, mask: Mask, position: TargetPositions, previous: Tensor | None = None) -> Centres:
        assert position is not None
        last = mask.sum(1, keepdim=True) - 1  # [B, 1]
        return torch.minimum(position, last).to(torch.float32)

    def mask(self, centre: Centres | None, positions: SourcePositions, real: Real) -> WindowMask:
        assert centre is not None
        distance = positions - centre.unsqueeze(2)  # s - p_t [B, Q, P]
        return WindowMask((distance.abs() <= self.reach) & real)


@implements(LocalPredictiveOptions)
class LocalPredictive(Window):
    """local-p: a predicted centre p_t and a Gaussian around it (Luong et al. 2015, eq. 9-10).

    p_t = S sigmoid(v_p^T tanh(W_p h_t)), with S real source positions; the window holds the positions s with
    |s - p_t| <= D; their weights are multiplied by exp(-(s - p_t)^2 / (2 sigma^2)), sigma = D / 2, around the
    real-valued p_t. The weights do not sum to 1, because the Gaussian comes after the softmax.

    p_t is learned only through the Gaussian: the ends of the window have no gradient.
    """

    def __init__(self, options: LocalPredictiveOptions, query_size: int) -> None:
        super().__init__(options, query_size)
        self.reach: int = options.width  # D
        self.query = Linear(query_size, query_size, bias=False)  # W_p
        self.vector = parameter("weight", query_size)  # v_p

    def centre(self, query: Queries, mask: Mask, position: TargetPositions, previous: Tensor | None = None) -> Centres:
        hidden = torch.tanh(self.query(query))  # [B, Q, D]
        # In bf16, neighbouring centres in a long sentence could be equal.
        fraction = torch.sigmoid(at_least_fp32(hidden @ self.vector.to(hidden.dtype)))  # [B, Q]
        return mask.sum(1, keepdim=True) * fraction  # S [B, 1] times [B, Q]

    def mask(self, centre: Centres | None, positions: SourcePositions, real: Real) -> WindowMask:
        assert centre is not None
        distance = positions - centre.unsqueeze(2)  # s - p_t [B, Q, P]
        sigma = self.reach / 2
        gaussian = torch.exp(distance.square() / (-2 * sigma**2))  # [B, Q, P]
        return WindowMask((distance.abs() <= self.reach) & real, gaussian)


@implements(WaitOptions)
class WaitK(Window):
    """wait-k: at target position t, the source positions before t + k (Ma et al. 2019, section 3).

    "STACL: simultaneous translation with implicit anticipation and controllable latency". Later positions are treated
    as not received yet. To be independent of them, a model also needs an encoder that reads forward and a decoder that
    starts at zero.
    """

    needs_position = True

    def __init__(self, options: WaitOptions, query_size: int) -> None:
        super().__init__(options, query_size)
        self.wait: int = options.wait  # k

    def centre(self, query: Queries, mask: Mask, position: TargetPositions, previous: Tensor | None = None) -> Centres:
        """Return the last position that has been received."""
        assert position is not None
        return (position + self.wait - 1).to(torch.float32)

    def mask(self, centre: Centres | None, positions: SourcePositions, real: Real) -> WindowMask:
        assert centre is not None
        return WindowMask((positions <= centre.unsqueeze(2)) & real)


@implements(MixtureOptions)
class Mixture(Window):
    """A mixture of K bell curves that only move right (Graves 2013, eq. 46-51); u is the source position from 1.

    "Generating sequences with recurrent neural networks":

    (log alpha_t, log beta_t, log step_t) = W s + b;  kappa_t = kappa_{t-1} + step_t;
    phi(t, u) = sum_k alpha_t^k exp(-beta_t^k (kappa_t^k - u)^2).

    The weights are multiplied by phi. With the `even` score and the `exponential` normaliser they are phi, as in the
    paper.
    """

    is_sequential = True

    def __init__(self, options: MixtureOptions, query_size: int) -> None:
        super().__init__(options, query_size)
        self.components: int = options.components  # K
        self.bells = Linear(query_size, 3 * self.components)  # W and b

    def start(self, memory: Memory) -> Tensor:
        zeros = memory.annotations.new_zeros(memory.mask.shape[0], 3, self.components)
        return at_least_fp32(zeros)

    def centre(self, query: Queries, mask: Mask, position: TargetPositions, previous: Tensor | None = None) -> Centres:
        """Return alpha, beta and kappa, stacked as [B, Q, 3, K]."""
        assert previous is not None
        bells = at_least_fp32(self.bells(query)).unflatten(2, (3, self.components))
        alpha, beta, step = bells.exp().unbind(2)  # [B, Q, K] each
        # [B, Q, K]; index 2 of the previous centres is kappa.
        kappa = previous.unflatten(0, (mask.shape[0], -1))[:, :, 2] + step
        return torch.stack([alpha, beta, kappa], dim=2)

    def mask(self, centre: Centres | None, positions: SourcePositions, real: Real) -> WindowMask:
        assert centre is not None
        alpha, beta, kappa = centre.unsqueeze(4).unbind(2)  # [B, Q, K, 1] each
        distance = kappa - (positions + 1).unsqueeze(2)  # kappa - u [B, Q, K, P]
        return WindowMask(real, (alpha * torch.exp(-beta * distance.square())).sum(2))


WINDOWS: Implementations[type[Window]] = Implementations(attention.WINDOWS)
"""Class by `window` of `[model.attention]`; names are stored in model folders."""
