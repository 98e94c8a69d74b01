"""The whole sequence of Bahdanau et al.'s GRU in C++ (`gru_sequence.cpp`): the twin of `fused/gru_sequence.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rnnsearch.kernels.native.library import function, serves
from rnnsearch.kernels.products import weight_gradient
from rnnsearch.tensors import product_type


def can_run(x: Tensor, U: Tensor) -> bool:
    """Whether the compiled functions are there for this input and these weights."""
    return serves("gru_forward", "gru_sequence", x, U, sizes=(U.shape[0],))


def gru_sequence(x: Tensor, mask: Tensor, U_gates: Tensor, U: Tensor, start: Tensor, backward: bool) -> Tensor:
    """The state after each position [B, J, D]; arguments as `fused.gru_sequence.gru_sequence`'s."""
    apply: Callable[..., Tensor] = _GRUSequence.apply
    return apply(x, mask, U_gates, U, start, backward)


class _GRUSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, U_gates: Tensor, U: Tensor, start: Tensor, backward: bool) -> Tensor:
        kind = product_type(x)
        run = function("gru_forward", "gru_sequence", kind)
        assert run is not None
        B, J, _ = x.shape
        D = U.shape[0]
        x, start = x.to(kind).contiguous(), start.to(U.dtype).contiguous()
        mask, W_gates, W = mask.contiguous(), U_gates.to(kind).contiguous(), U.to(kind).contiguous()
        h, candidate, zr = U.new_empty(B, J, D), U.new_empty(B, J, D), U.new_empty(B, J, 2 * D)
        before, reset = W.new_empty(B, J, D), W.new_empty(B, J, D)
        run(B, J, D, int(backward), x, mask, start, W_gates, W, h, before, zr, candidate, reset)
        ctx.save_for_backward(mask, start, W_gates, W, h, before, zr, candidate, reset)
        ctx.reads_backward = backward
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        mask, start, W_gates, W, h, before, zr, candidate, reset = ctx.saved_tensors
        B, J, D = h.shape
        run = function("gru_backward", "gru_sequence", W.dtype)
        assert run is not None
        d_x, d_start = W.new_empty(B, J, 3 * D), torch.empty_like(start)
        d_h = grads[0].to(h.dtype).contiguous()
        run(B, J, D, int(ctx.reads_backward), mask, start, W_gates, W, h, zr, candidate, d_h, d_x, d_start)
        with torch.autocast("cpu", enabled=False):
            d_gates = weight_gradient(d_x[..., : 2 * D], before)
            d_U = weight_gradient(d_x[..., 2 * D :], reset)
        return d_x, None, d_gates, d_U, d_start, None
