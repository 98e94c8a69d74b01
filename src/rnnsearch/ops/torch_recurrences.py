"""The whole recurrence of RNNsearch's decoder in PyTorch, its backward pass by hand: the twin of `Bahdanau.unroll` with
the papers' GRU, the additive score, global attention and softmax, where there is no native code, on GPUs above all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rnnsearch.ops.linear import gru_backward, gru_weight_gradients, weight_gradient
from rnnsearch.utils.tensors import product_type


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


# The whole sequence of Bahdanau et al.'s GRU in PyTorch, its backward pass by hand: the twin of `Cell.run` for
# `cells.GRU` where there is no native code, on GPUs above all.


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
            outputs, saved = _gru_forward(*given)
        ctx.save_for_backward(*saved)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, zr, _, _, _, W = ctx.saved_tensors
        D, before, d_outputs = W.shape[0], states[:-1], grads[0].transpose(0, 1)
        with torch.autocast(d_outputs.device.type, enabled=False):
            d_outputs = d_outputs.flip(0) if ctx.backward else d_outputs
            d_start, d_gates = _gru_positions_backward(d_outputs, *ctx.saved_tensors)
            reset = (zr[..., D:] * before).to(W.dtype)
            weights = gru_weight_gradients(d_gates, before.to(W.dtype), reset)
        d_x = (d_gates.flip(0) if ctx.backward else d_gates).transpose(0, 1)
        return None, d_x, None, d_start.to(ctx.start_type), *weights


def _gru_forward(
    backward: bool, x: Tensor, mask: Tensor, start: Tensor, W_gates: Tensor, W: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The outputs, and what the way back needs."""
    xs, keep = x.transpose(0, 1).to(start.dtype), mask.t().unsqueeze(-1).to(start.dtype)
    if backward:  # in the order of reading
        xs, keep = xs.flip(0), keep.flip(0)
    inputs = xs, keep, W_gates, W, start
    made = _gru_positions(*inputs)
    outputs = made[0][1:].flip(0) if backward else made[0][1:]
    return outputs.transpose(0, 1), (*made, keep, W_gates, W)


def _gru_positions(xs: Tensor, keep: Tensor, W_gates: Tensor, W: Tensor, start: Tensor) -> tuple[Tensor, ...]:
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


def _gru_positions_backward(d_outputs: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
    """d of h_0 and of the gates' pre-activations."""
    states, zr, candidates, keep, W_gates, W = saved
    J, B, D = candidates.shape
    d_pre = W.new_empty(J, B, 3 * D)
    d_h = torch.zeros_like(states[0])
    for j in range(J - 1, -1, -1):
        d_pre[j], past = gru_backward(d_h + d_outputs[j], states[j], zr[j], candidates[j], keep[j], W)
        d_h = past + d_pre[j, :, : 2 * D] @ W_gates
    return d_h, d_pre


# The whole sequence of the LSTM and of PyTorch's GRU through the library's fused recurrences: the fast twins of
# `Cell.sequence` for `cells.LSTM` and `cells.TorchGRU`.
#
# Nothing is packed or sorted, so nothing waits for the device. Padding is an input of its own instead, which holds what
# carries the state: the memory of the LSTM passes through it exactly (gate i shut, f open), the GRU's state within
# rounding (z open). What stands at padding is never read: at trailing padding the last output is fetched from its
# position, and leading padding (read backward, from zero) leaves zero exactly.

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
