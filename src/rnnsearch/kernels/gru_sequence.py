"""The whole sequence of Bahdanau et al.'s GRU: the fast twin of `Cell.sequence` for `cells.GRU`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rnnsearch.kernels.native import gru_sequence as native
from rnnsearch.kernels.products import gru_backward, weight_gradient
from rnnsearch.kernels.recorded import replayed
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
    # In C++ where that can be had, else in PyTorch.
    if native.can_run(x, candidate):
        outputs = native.gru_sequence(x, mask, gates, candidate, start, backward)
    else:
        apply: Callable[..., Tensor] = _GRUSequence.apply
        training = torch.is_grad_enabled()  # within `forward` it never is
        outputs = apply(training, x, mask, gates, candidate, start, backward)
    return outputs, outputs[:, 0] if backward else outputs[:, -1]


class _GRUSequence(torch.autograd.Function):
    """h_j = h_{j-1} + z_j m_j * (h~_j - h_{j-1}): padding (m = 0) leaves the state as it is."""

    @staticmethod
    def forward(
        ctx: Any, training: bool, x: Tensor, mask: Tensor, U_gates: Tensor, U: Tensor, start: Tensor, backward: bool
    ) -> Tensor:
        kind = product_type(x)
        W_gates, W = U_gates.to(kind), U.to(kind)
        xs, keep = x.transpose(0, 1).to(U.dtype), mask.t().unsqueeze(-1).to(U.dtype)
        if backward:  # in the order of reading
            xs, keep = xs.flip(0), keep.flip(0)
        inputs = xs, keep, W_gates, W, start
        with torch.autocast(x.device.type, enabled=False):
            made = replayed(_onward, inputs) if training else _onward(*inputs)
        states = made[0]
        ctx.save_for_backward(*made, keep, W_gates, W)
        ctx.reads_backward = backward
        ctx.start_type = start.dtype
        outputs = states[1:].flip(0) if backward else states[1:]
        return outputs.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, zr, _, _, _, W = ctx.saved_tensors
        kind, D = W.dtype, W.shape[0]
        d_outputs = grads[0].transpose(0, 1)
        if ctx.reads_backward:
            d_outputs = d_outputs.flip(0)
        with torch.autocast(states.device.type, enabled=False):
            d_h, d_pre = replayed(_back, (d_outputs, *ctx.saved_tensors))
            d_gates = weight_gradient(d_pre[..., : 2 * D], states[:-1].to(kind))
            d_U = weight_gradient(d_pre[..., 2 * D :], (zr[..., D:] * states[:-1]).to(kind))
        d_x = d_pre.flip(0) if ctx.reads_backward else d_pre
        return None, d_x.transpose(0, 1), None, d_gates, d_U, d_h.to(ctx.start_type), None


def _onward(xs: Tensor, keep: Tensor, W_gates: Tensor, W: Tensor, start: Tensor) -> tuple[Tensor, ...]:
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


def _back(d_outputs: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
    """d of h_0 and of the gates' pre-activations."""
    states, zr, candidates, keep, W_gates, W = saved
    J, B, D = candidates.shape
    d_pre = W.new_empty(J, B, 3 * D)
    d_h = torch.zeros_like(states[0])
    for j in range(J - 1, -1, -1):
        part = gru_backward(d_h + d_outputs[j], states[j], zr[j], candidates[j], keep[j], W)
        d_pre[j] = part.gates
        d_h = part.state + part.gates[:, : 2 * D] @ W_gates
    return d_h, d_pre
