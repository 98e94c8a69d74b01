"""The whole sequence of the LSTM and of PyTorch's GRU through the library's fused recurrences: the fast twins of
`Cell.sequence` for `cells.LSTM` and `cells.TorchGRU`.

Nothing is packed or sorted, so nothing waits for the device. Padding is an input of its own instead, which holds what
carries the state: the memory of the LSTM passes through it exactly (gate i shut, f open), the GRU's state within
rounding (z open). What stands at padding is never read: at trailing padding the last output is fetched from its
position, and leading padding (read backward, from zero) leaves zero exactly.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

PADDING_COLUMNS = 8
"""Columns of inputs that stand for padding. One would do; eight keep the rows' addresses aligned."""
SHUT = 1e4
"""A pre-activation whose sigmoid is exactly 1, and that of its negative exactly 0, in every precision."""


def can_run(mask: Tensor | None, start: object, backward: bool) -> bool:
    """Padding that is read first must leave a state of zero: elsewhere there is no twin."""
    return mask is None or start is None or not backward


def lstm_sequence(
    x: Float[Tensor, "B J E"],
    mask: Bool[Tensor, "B J"] | None,
    weight: Float[Tensor, "G E"],
    bias: Float[Tensor, "G"],
    recurrent: Float[Tensor, "G D"],
    backward: bool = False,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Float[Tensor, "B J D"], Float[Tensor, "B D"], Float[Tensor, "B D"]]:
    """All outputs, and the last output and memory, from a zero state unless `start` is given. The cell has one bias and
    the gates i, f, o, candidate where the library has two and i, f, candidate, o.

    Padding must be at the end of a row. Backward from a given start, every position must be real (no mask).
    """
    assert can_run(mask, start, backward)
    x, weight = _with_padding(x, weight, mask, {0: -SHUT, 1: SHUT}, blocks=4)
    zeros = x.new_zeros(1, x.shape[0], recurrent.shape[1])
    first = (zeros, zeros) if start is None else tuple(part.to(x.dtype).unsqueeze(0).contiguous() for part in start)
    weights = (*(_gates_of_library(w) for w in (weight, recurrent, bias)), torch.zeros_like(bias))
    outputs, h, c = torch._VF.lstm(  # type: ignore[attr-defined]
        x.flip(1) if backward else x, first, weights, True, 1, 0.0, True, False, True
    )
    if backward:
        return outputs.flip(1), h[0], c[0]
    return outputs, _last(outputs, h, mask), c[0]


def torch_gru_sequence(
    x: Float[Tensor, "B J E"],
    mask: Bool[Tensor, "B J"] | None,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    backward: bool = False,
    start: Float[Tensor, "B D"] | None = None,
) -> tuple[Float[Tensor, "B J D"], Float[Tensor, "B D"]]:
    """All outputs and the last one, from zero unless `start` is given; `weights`: W, U and their biases, with the gates
    r, z, candidate.

    Padding must be at the end of a row. Backward from a given start, every position must be real (no mask).
    """
    assert can_run(mask, start, backward)
    W, U, b, b_U = weights
    x, W = _with_padding(x, W, mask, {1: SHUT}, blocks=3)
    first = x.new_zeros(x.shape[0], U.shape[1]) if start is None else start.to(x.dtype)
    outputs, h = torch._VF.gru(  # type: ignore[attr-defined]
        x.flip(1) if backward else x, first.unsqueeze(0).contiguous(), (W, U, b, b_U), True, 1, 0.0, True, False, True
    )
    if backward:
        return outputs.flip(1), h[0]
    return outputs, _last(outputs, h, mask)


def _with_padding(
    x: Tensor, weight: Tensor, mask: Tensor | None, gates: dict[int, float], blocks: int
) -> tuple[Tensor, Tensor]:
    """Inputs with columns that are 1 at padding, and weights that give some gates a pre-activation there."""
    if mask is None:
        return x, weight
    forced = weight.new_zeros(blocks, weight.shape[0] // blocks, PADDING_COLUMNS)
    for gate, value in gates.items():
        forced[gate, :, 0] = value
    padding = (~mask).to(x.dtype).unsqueeze(-1).expand(-1, -1, PADDING_COLUMNS)
    x = torch.cat([x.masked_fill(~mask.unsqueeze(-1), 0.0), padding], dim=-1)
    return x, torch.cat([weight, forced.flatten(0, 1)], dim=1)


def _last(outputs: Tensor, h: Tensor, mask: Tensor | None) -> Tensor:
    """The output at each row's last real position."""
    if mask is None:
        return h[0]
    last = (mask.sum(1) - 1).clamp_min(0)
    return outputs.gather(1, last[:, None, None].expand(-1, 1, outputs.shape[2]))[:, 0]


def _gates_of_library(w: Tensor) -> Tensor:
    """Blocks i, f, o, candidate as i, f, candidate, o."""
    i, f, o, candidate = w.chunk(4)
    return torch.cat([i, f, candidate, o])
