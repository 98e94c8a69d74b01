"""The whole sequence of the LSTM through the library's fused recurrence: the fast twin of `Cell.sequence` for
`cells.LSTM`, which has one bias and the gates i, f, o, candidate where the library has two and i, f, candidate, o.

Nothing is packed or sorted, so nothing waits for the device. Padding is an input of its own instead, which shuts the
gate i and opens f all the way: the memory c passes through it exactly. h does not, but then it is never read: at
trailing padding the last output is fetched from its position, and leading padding (read backward) meets c = 0 and
gives h = 0.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

PADDING_COLUMNS = 8
"""Columns of inputs that stand for padding. One would do; eight keep the rows' addresses aligned."""
SHUT = 1e4
"""A pre-activation whose sigmoid is exactly 1, and that of its negative exactly 0, in every precision."""


def lstm_sequence(
    x: Float[Tensor, "B J E"],
    mask: Bool[Tensor, "B J"] | None,
    weight: Float[Tensor, "G E"],
    bias: Float[Tensor, "G"],
    recurrent: Float[Tensor, "G D"],
    backward: bool = False,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Float[Tensor, "B J D"], Float[Tensor, "B D"], Float[Tensor, "B D"]]:
    """All outputs, and the last output and memory, from a zero state unless `start` is given.

    Padding must be at the end of a row. Backward from a given start, every position must be real (no mask).
    """
    assert mask is None or start is None or not backward
    D = recurrent.shape[1]
    W = weight
    if mask is not None:
        shut = weight.new_zeros(4, D, PADDING_COLUMNS)
        shut[0, :, 0], shut[1, :, 0] = -SHUT, SHUT
        W = torch.cat([weight, shut.flatten(0, 1)], dim=1)
        padding = (~mask).to(x.dtype).unsqueeze(-1).expand(-1, -1, PADDING_COLUMNS)
        x = torch.cat([x.masked_fill(~mask.unsqueeze(-1), 0.0), padding], dim=-1)
    zeros = x.new_zeros(1, x.shape[0], D)
    first = (zeros, zeros) if start is None else tuple(part.to(x.dtype).unsqueeze(0) for part in start)
    weights = (*(_gates_of_library(w) for w in (W, recurrent, bias)), torch.zeros_like(bias))
    outputs, h, c = torch._VF.lstm(  # type: ignore[attr-defined]
        x.flip(1) if backward else x, first, weights, True, 1, 0.0, True, False, True
    )
    if backward:
        return outputs.flip(1), h[0], c[0]
    if mask is None:
        return outputs, h[0], c[0]
    last = (mask.sum(1) - 1).clamp_min(0)
    return outputs, outputs.gather(1, last[:, None, None].expand(-1, 1, D))[:, 0], c[0]


def _gates_of_library(w: Tensor) -> Tensor:
    """Blocks i, f, o, candidate as i, f, candidate, o."""
    i, f, o, candidate = w.chunk(4)
    return torch.cat([i, f, candidate, o])
