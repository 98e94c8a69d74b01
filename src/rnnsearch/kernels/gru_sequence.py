"""The whole sequence of Bahdanau et al.'s GRU in PyTorch, its backward pass by hand: the twin of `Cell.run` for
`cells.GRU` where there is no native code, on GPUs above all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rnnsearch.kernels.products import gru_backward, gru_weight_gradients
from rnnsearch.tensors import product_type


def gru_sequence(
    x: Float[Tensor, "B J G"],
    mask: Bool[Tensor, "B J"] | None,
    gates: Float[Tensor, "G2 D"],
    candidate: Float[Tensor, "D D"],
    backward: bool,
    start: Float[Tensor, "B D"] | None = None,
) -> tuple[Float[Tensor, "B J D"], Float[Tensor, "B D"]]:
    """All states and the last one, from the inputs' share of the gates x, U_z above U_r, and U.

    Without a mask every position is real; without `start` the state before the first is zero.
    """
    if mask is None:
        mask = x.new_ones(x.shape[:2], dtype=torch.bool)
    if start is None:
        start = candidate.new_zeros(x.shape[0], candidate.shape[0])
    apply: Callable[..., Tensor] = _GRUSequence.apply
    outputs = apply(backward, x, mask, start, gates, candidate)
    return outputs, outputs[:, 0] if backward else outputs[:, -1]


class _GRUSequence(torch.autograd.Function):
    """h_j = h_{j-1} + z_j m_j * (h~_j - h_{j-1}): padding (m = 0) leaves the state as it is."""

    @staticmethod
    def forward(
        ctx: Any,
        backward: bool,
        x: Tensor,
        mask: Tensor,
        start: Tensor,
        U_gates: Tensor,
        U: Tensor,
    ) -> Tensor:
        kind = product_type(x)
        ctx.backward, ctx.start_type = backward, start.dtype
        given = backward, x, mask, start.to(U.dtype), U_gates.to(kind), U.to(kind)
        with torch.autocast(x.device.type, enabled=False):
            outputs, saved = _onward(*given)
        ctx.save_for_backward(*saved)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, zr, _, _, _, W = ctx.saved_tensors
        D, before, d_outputs = W.shape[0], states[:-1], grads[0].transpose(0, 1)
        with torch.autocast(d_outputs.device.type, enabled=False):
            d_outputs = d_outputs.flip(0) if ctx.backward else d_outputs
            d_start, d_gates = _positions_back(d_outputs, *ctx.saved_tensors)
            reset = (zr[..., D:] * before).to(W.dtype)
            weights = gru_weight_gradients(d_gates, before.to(W.dtype), reset)
        d_x = (d_gates.flip(0) if ctx.backward else d_gates).transpose(0, 1)
        return None, d_x, None, d_start.to(ctx.start_type), *weights


def _onward(
    backward: bool, x: Tensor, mask: Tensor, start: Tensor, W_gates: Tensor, W: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The outputs, and what the way back needs."""
    xs, keep = x.transpose(0, 1).to(start.dtype), mask.t().unsqueeze(-1).to(start.dtype)
    if backward:  # in the order of reading
        xs, keep = xs.flip(0), keep.flip(0)
    inputs = xs, keep, W_gates, W, start
    made = _positions(*inputs)
    outputs = made[0][1:].flip(0) if backward else made[0][1:]
    return outputs.transpose(0, 1), (*made, keep, W_gates, W)


def _positions(xs: Tensor, keep: Tensor, W_gates: Tensor, W: Tensor, start: Tensor) -> tuple[Tensor, ...]:
    """h_0..h_J, (z, r) and the candidates, positions first, in the order of reading. xs: [J, B, 3 D]; keep: m,
    [J, B, 1]."""
    J, B, G = xs.shape
    D, kind = G // 3, W.dtype
    states, zr, candidates = xs.new_empty(J + 1, B, D), xs.new_empty(J, B, 2 * D), xs.new_empty(J, B, D)
    states[0] = start
    for j in range(J):
        h = states[j]
        torch.sigmoid(h.to(kind) @ W_gates.t() + xs[j, :, : 2 * D], out=zr[j])
        z, r = zr[j].chunk(2, dim=-1)
        torch.tanh((r * h).to(kind) @ W.t() + xs[j, :, 2 * D :], out=candidates[j])
        torch.addcmul(h, z * keep[j], candidates[j] - h, out=states[j + 1])
    return states, zr, candidates


def _positions_back(d_outputs: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
    """d of h_0 and of the gates' pre-activations."""
    states, zr, candidates, keep, W_gates, W = saved
    J, B, D = candidates.shape
    d_pre = W.new_empty(J, B, 3 * D)
    d_h = torch.zeros_like(states[0])
    for j in range(J - 1, -1, -1):
        d_pre[j], past = gru_backward(d_h + d_outputs[j], states[j], zr[j], candidates[j], keep[j], W)
        d_h = past + d_pre[j, :, : 2 * D] @ W_gates
    return d_h, d_pre
