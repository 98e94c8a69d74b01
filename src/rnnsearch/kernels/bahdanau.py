"""The whole recurrence of RNNsearch's decoder in PyTorch, its backward pass by hand: the twin of `Bahdanau.unroll` with
the papers' GRU, the additive score, global attention and softmax, where there is no native code, on GPUs above all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.kernels.products import gru_backward, gru_weight_gradients, weight_gradient
from rnnsearch.tensors import product_type


class Parameters(NamedTuple):
    """The recurrence's parameters, by the paper's letters.

    W_a: [A, D]; v_a: [A]; C: [3 D, H], of z, r and the candidate; U_gates: [2 D, D], U_z above U_r; U: [D, D].
    """

    W_a: Tensor
    v_a: Tensor
    C: Tensor
    U_gates: Tensor
    U: Tensor


class Trace(NamedTuple):
    """What the loop leaves for its way back, positions first: s_0..s_I; z and r; the candidates; W_a s_{i-1}; c_i;
    alpha_i."""

    states: Tensor
    zr: Tensor
    candidates: Tensor
    queries: Tensor
    contexts: Tensor
    alphas: Tensor


def unroll(
    x: Tensor, s_0: Tensor, annotations: Tensor, keys: Tensor, mask: Tensor, weights: Parameters
) -> tuple[Tensor, Tensor, Tensor]:
    """s_{i-1} [B, I, D], c_i [B, I, H] and alpha_i [B, I, J] of all target positions.

    x: [B, I, 3 D], the previous words' share of the gates. keys: [B, J, A], U_a h_j. mask: [B, J].
    """
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Recurrence.apply
    return apply(x, s_0, annotations, keys, mask, *weights)


class _Recurrence(torch.autograd.Function):
    """Forward: the step of `Bahdanau.step`, position by position. Backward: the same positions in reverse, the hidden
    layer tanh(W_a s + U_a h) computed again, and all weights' gradients formed once after the loop."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, s_0: Tensor, h: Tensor, k: Tensor, mask: Tensor, *w: Tensor) -> tuple[Tensor, ...]:
        kind = product_type(x)
        W_a, _, C, U_gates, U = (weight.to(kind) for weight in w)
        fed_back = torch.cat([W_a, U_gates])  # both read s: one product
        given = x, s_0, h.to(kind), k.to(kind), mask, w[1], fed_back, C, U
        with torch.autocast(x.device.type, enabled=False):
            outputs, saved = _onward(*given)
        ctx.save_for_backward(*saved)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        run = Trace(*saved[: len(Trace._fields)])
        states, kind, D = run.states[:-1], run.contexts.dtype, run.states.shape[2]
        with torch.autocast(grads[0].device.type, enabled=False):
            made = _positions_back(*(g.transpose(0, 1) for g in grads), *saved)
            d_s_0, d_gates, d_queries, d_c, d_keys, d_v = made
            before, reset = states.to(kind), (run.zr[..., D:] * states).to(kind)
            d_h = torch.bmm(run.alphas.permute(1, 2, 0).to(kind), d_c.transpose(0, 1))
            d_W_a = weight_gradient(d_queries, before, kind)
            d_C = weight_gradient(d_gates, run.contexts, kind)
            weights = d_W_a, d_v, d_C, *gru_weight_gradients(d_gates, before, reset)
        return d_gates.transpose(0, 1), d_s_0, d_h, d_keys, None, *weights


def _onward(
    x: Tensor,
    s_0: Tensor,
    h: Tensor,
    k: Tensor,
    mask: Tensor,
    v_a: Tensor,
    fed_back: Tensor,
    C: Tensor,
    U: Tensor,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The outputs, and what the way back needs."""
    full, v_a = v_a.dtype, v_a.to(U.dtype)
    outside = torch.zeros(mask.shape, dtype=full, device=x.device).masked_fill_(~mask, -torch.inf)
    inputs = (x.transpose(0, 1).to(full), s_0, h, k, outside, v_a, C, fed_back, U)
    run = _positions(*inputs)
    outputs = run.states[:-1].transpose(0, 1), run.contexts.transpose(0, 1), run.alphas.transpose(0, 1)
    return outputs, (*run, h, k, v_a, C, fed_back, U)


def _positions(
    xs: Tensor,
    s_0: Tensor,
    h: Tensor,
    k: Tensor,
    outside: Tensor,
    v_a: Tensor,
    C: Tensor,
    fed_back: Tensor,
    U: Tensor,
) -> Trace:
    """All positions in order. xs: [I, B, 3 D]. outside: [B, J], -inf on padding. fed_back: W_a above U_gates."""
    I, B, G = xs.shape
    D, A, J = G // 3, v_a.shape[0], h.shape[1]
    states = xs.new_empty(I + 1, B, D)
    states[0] = s_0
    zr, candidates = states.new_empty(I, B, 2 * D), states.new_empty(I, B, D)
    queries, contexts = h.new_empty(I, B, A), h.new_empty(I, B, h.shape[2])
    alphas = states.new_empty(I, B, J)
    for i in range(I):
        s = states[i]
        from_s = s.to(U.dtype) @ fed_back.t()
        queries[i] = from_s[:, :A]
        energy = torch.tanh_(k + queries[i].unsqueeze(1)) @ v_a
        torch.softmax(energy.to(xs.dtype) + outside, dim=-1, out=alphas[i])
        torch.bmm(alphas[i].unsqueeze(1).to(h.dtype), h, out=contexts[i].unsqueeze(1))
        g = (contexts[i] @ C.t()) + xs[i]
        torch.sigmoid(g[:, : 2 * D] + from_s[:, A:], out=zr[i])
        z, r = zr[i].chunk(2, dim=-1)
        torch.tanh((r * s).to(U.dtype) @ U.t() + g[:, 2 * D :], out=candidates[i])
        torch.addcmul(s, z, candidates[i] - s, out=states[i + 1])
    return Trace(states, zr, candidates, queries, contexts, alphas)


def _positions_back(d_read: Tensor, d_contexts: Tensor, d_alphas: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
    """All positions in reverse: d of s_0, of the gates before their sigmoids, of W_a s_{i-1}, c_i, the keys and v_a."""
    states, zr, candidates, queries, contexts, alphas, h, k, v_a, C, fed_back, U = saved
    I, B, D = candidates.shape
    kind, full = U.dtype, states.dtype
    d_c, d_gates, d_queries = torch.empty_like(contexts), U.new_empty(I, B, 3 * D), torch.empty_like(queries)
    d_keys = torch.zeros(k.shape, dtype=full, device=k.device)
    d_v = torch.zeros_like(v_a, dtype=full)
    d_s = torch.zeros_like(states[0])
    for i in range(I - 1, -1, -1):
        d_gates[i], past = gru_backward(d_s, states[i], zr[i], candidates[i], None, U)
        torch.add(d_gates[i] @ C, d_contexts[i].to(kind), out=d_c[i])
        d_alpha = torch.bmm(h, d_c[i].unsqueeze(2)).squeeze(2).to(full) + d_alphas[i]
        weighted = alphas[i] * d_alpha
        d_energy = weighted - alphas[i] * weighted.sum(-1, keepdim=True)
        hidden = torch.tanh_(k + queries[i].unsqueeze(1))
        d_e = d_energy.to(kind)
        d_v += (d_e.flatten() @ hidden.flatten(0, 1)).to(full)
        # d of tanh's argument: d_e v_a (1 - hidden^2)
        d_hidden = torch.addcmul(v_a, hidden, hidden * v_a, value=-1).mul_(d_e.unsqueeze(2))
        d_keys += d_hidden
        torch.sum(d_hidden, dim=1, out=d_queries[i])
        d_from_s = torch.cat([d_queries[i], d_gates[i, :, : 2 * D]], dim=-1)
        d_s = past + d_from_s @ fed_back + d_read[i]
    return d_s, d_gates, d_queries, d_c, d_keys, d_v
