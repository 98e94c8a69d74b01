"""The positions of Bahdanau et al.'s GRU in C++ (`gru_sequence.cpp`), in order and in reverse: see
`kernels/gru_sequence.py`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rnnsearch.kernels.native.library import function, serves


class Found(NamedTuple):
    """What a loop's way back gives. Rows of all positions, in one order: d of the gates before their sigmoids [., 3 D],
    the state before, and r times it. Then d of what the loop has read, in its shapes."""

    d_gates: Tensor
    before: Tensor
    reset: Tensor
    d_x: Tensor
    d_start: Tensor


def can_run(x: Tensor, U: Tensor) -> bool:
    """Whether the compiled functions are there for this input and these weights."""
    return serves("gru_forward", "gru_sequence", x, U, sizes=(U.shape[0],))


def onward(
    backward: bool, x: Tensor, mask: Tensor, start: Tensor, W_gates: Tensor, W: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The state after each position [B, J, D], and what `back` needs."""
    run = function("gru_forward", "gru_sequence", W.dtype)
    assert run is not None
    B, J, D = *x.shape[:2], W.shape[0]
    x, mask, start, W_gates, W = (part.contiguous() for part in (x.to(W.dtype), mask, start, W_gates, W))
    h, candidate, zr = (start.new_empty(B, J, n) for n in (D, D, 2 * D))
    before, reset = W.new_empty(B, J, D), W.new_empty(B, J, D)
    run(B, J, D, int(backward), x, mask, start, W_gates, W, h, before, zr, candidate, reset)
    return h, (mask, start, W_gates, W, h, before, zr, candidate, reset)


def back(backward: bool, d_h: Tensor, saved: tuple[Tensor, ...]) -> Found:
    """The positions in reverse."""
    mask, start, W_gates, W, h, before, zr, candidate, reset = saved
    B, J, D = h.shape
    run = function("gru_backward", "gru_sequence", W.dtype)
    assert run is not None
    d_x, d_start, d_h = W.new_empty(B, J, 3 * D), torch.empty_like(start), d_h.to(h.dtype).contiguous()
    run(B, J, D, int(backward), mask, start, W_gates, W, h, zr, candidate, d_h, d_x, d_start)
    return Found(d_x, before, reset, d_x, d_start)
