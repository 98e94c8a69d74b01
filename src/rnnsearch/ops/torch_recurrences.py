"""Recurrences in PyTorch with manual backward passes, for devices without native code, mainly GPUs.

`unroll_rnnsearch` is `Bahdanau.unroll` with the components of Bahdanau et al. (2015), and `gru_sequence` is `Cell.run`
of their GRU. `lstm_sequence` and `torch_gru_sequence` call PyTorch's fused recurrences. `accel/fast_forwards.py` calls
them; `autotune_cases.py` times them.

Axes: B sentences, I target positions, J source positions, D state, H annotation, A alignment hidden, E input of a
cell, G gate inputs.

Backward passes are written by hand: tests/properties/test_gradients.py and the comparison at first use
(`accel/verification.py`) check them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rnnsearch.ops.linear import weight_gradient
from rnnsearch.utils.tensors import matmul_dtype

# RNNsearch's decoder.


class RNNsearchParameters(NamedTuple):
    """Parameters of the recurrence, named as in the paper."""

    W_a: Tensor  # [A, D]
    v_a: Tensor  # [A]
    C: Tensor  # [3 D, H], of z, r and the candidate
    U_gates: Tensor  # [2 D, D], [U_z; U_r]
    U: Tensor  # [D, D]


class _Trace(NamedTuple):
    """Results of all positions that the backward pass needs."""

    states: Tensor  # [I + 1, B, D], s_0..s_I
    zr: Tensor  # [I, B, 2 D]
    candidates: Tensor  # [I, B, D]
    queries: Tensor  # [I, B, A], W_a s_{i-1}
    contexts: Tensor  # [I, B, H]
    alphas: Tensor  # [I, B, J]


def unroll_rnnsearch(
    x: Tensor, s_0: Tensor, annotations: Tensor, keys: Tensor, mask: Tensor, weights: RNNsearchParameters
) -> tuple[Tensor, Tensor, Tensor]:
    """Return s_{i-1} [B, I, D], c_i [B, I, H] and alpha_i [B, I, J] of all target positions.

    Args:
        x: Gate inputs of the previous words [B, I, 3 D].
        keys: U_a h_j [B, J, A].
        mask: True on real source positions [B, J].
    """
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _TorchRecurrence.apply
    return apply(x, s_0, annotations, keys, mask, *weights)


class _TorchRecurrence(torch.autograd.Function):
    """`Bahdanau.step` position by position, and in reverse in the backward pass.

    The backward pass computes the hidden layer tanh(W_a s + U_a h) again, and the gradients of weights at once after
    the loop.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, s_0: Tensor, h: Tensor, k: Tensor, mask: Tensor, *w: Tensor) -> tuple[Tensor, ...]:
        dtype = matmul_dtype(x)
        W_a, _, C, U_gates, U = (weight.to(dtype) for weight in w)
        v_a = w[1]
        from_state = torch.cat([W_a, U_gates])  # both read s: one product
        with torch.autocast(x.device.type, enabled=False):
            fp32 = v_a.dtype
            # [B, J], added to the energies: exp(-inf) is exactly 0.
            score_mask = torch.zeros(mask.shape, dtype=fp32, device=x.device).masked_fill_(~mask, -torch.inf)
            # Rounded once for all positions; states and scores stay in fp32.
            h, k, v_a = h.to(dtype), k.to(dtype), v_a.to(dtype)
            # Positions first: the rows of one position are then contiguous.
            trace = _run_positions(x.transpose(0, 1).to(fp32), s_0, h, k, score_mask, v_a, C, from_state, U)
        ctx.save_for_backward(*trace, h, k, v_a, C, from_state, U)
        return trace.states[:-1].transpose(0, 1), trace.contexts.transpose(0, 1), trace.alphas.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        trace = _Trace(*saved[: len(_Trace._fields)])
        states = trace.states[:-1]
        dtype = trace.contexts.dtype
        D = trace.states.shape[2]
        with torch.autocast(grads[0].device.type, enabled=False):
            position_grads = (grad.transpose(0, 1) for grad in grads)
            d_s_0, d_gates, d_queries, d_c, d_keys, d_v = _positions_backward(*position_grads, *saved)
            previous_states = states.to(dtype)  # [I, B, D]
            reset_states = (trace.zr[..., D:] * states).to(dtype)
            # [B, J, I] x [B, I, H]: the contexts of all positions in one product.
            d_h = torch.bmm(trace.alphas.permute(1, 2, 0).to(dtype), d_c.transpose(0, 1))
            # One product per weight over all I * B rows, instead of a small one per position.
            d_W_a = weight_gradient(d_queries, previous_states, dtype)
            d_C = weight_gradient(d_gates, trace.contexts, dtype)
            d_U_gates, d_U = _gru_weight_gradients(d_gates, previous_states, reset_states)
        return d_gates.transpose(0, 1), d_s_0, d_h, d_keys, None, d_W_a, d_v, d_C, d_U_gates, d_U


def _run_positions(
    xs: Tensor,
    s_0: Tensor,
    h: Tensor,
    k: Tensor,
    score_mask: Tensor,
    v_a: Tensor,
    C: Tensor,
    from_state: Tensor,
    U: Tensor,
) -> _Trace:
    """Run all positions in order.

    Args:
        xs: Gate inputs [I, B, 3 D].
        score_mask: -inf on padding, otherwise 0 [B, J].
        from_state: [W_a; U_gates].
    """
    I, B, G = xs.shape
    D = G // 3
    A = v_a.shape[0]
    states = xs.new_empty(I + 1, B, D)
    states[0] = s_0
    zr = states.new_empty(I, B, 2 * D)
    candidates = states.new_empty(I, B, D)
    queries = h.new_empty(I, B, A)
    contexts = h.new_empty(I, B, h.shape[2])
    alphas = states.new_empty(I, B, h.shape[1])
    for i in range(I):
        s = states[i]
        projected = s.to(U.dtype) @ from_state.t()  # [B, A + 2 D]
        queries[i] = projected[:, :A]
        energy = torch.tanh_(k + queries[i].unsqueeze(1)) @ v_a  # [B, J]
        # In fp32: bf16 has only 8 significant bits, too few for sums of probabilities.
        torch.softmax(energy.to(xs.dtype) + score_mask, dim=-1, out=alphas[i])
        torch.bmm(alphas[i].unsqueeze(1).to(h.dtype), h, out=contexts[i].unsqueeze(1))  # [B, 1, H]
        gates = (contexts[i] @ C.t()) + xs[i]  # [B, 3 D]
        torch.sigmoid(gates[:, : 2 * D] + projected[:, A:], out=zr[i])
        z, r = zr[i].chunk(2, dim=-1)
        torch.tanh((r * s).to(U.dtype) @ U.t() + gates[:, 2 * D :], out=candidates[i])
        # s_i = (1 - z) s_{i-1} + z s~ (Bahdanau et al. 2015, appendix A.2.2), written as s + z (s~ - s).
        torch.addcmul(s, z, candidates[i] - s, out=states[i + 1])
    return _Trace(states, zr, candidates, queries, contexts, alphas)


def _positions_backward(d_states: Tensor, d_contexts: Tensor, d_alphas: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
    """Run all positions in reverse.

    Args:
        d_states: Gradients of the outputs s_{i-1} [I, B, D]; the next two are those of c_i and alpha_i.
        saved: The fields of `_Trace`, and h, k, v_a, C, from_state and U.

    Returns:
        Gradients of s_0, the gates' pre-activations, W_a s_{i-1}, c_i, the keys and v_a.
    """
    states, zr, candidates, queries, contexts, alphas, h, k, v_a, C, from_state, U = saved
    I, B, D = candidates.shape
    dtype = U.dtype
    fp32 = states.dtype
    d_c = torch.empty_like(contexts)
    d_gates = U.new_empty(I, B, 3 * D)
    d_queries = torch.empty_like(queries)
    d_keys = torch.zeros(k.shape, dtype=fp32, device=k.device)
    d_v = torch.zeros_like(v_a, dtype=fp32)
    d_s = torch.zeros_like(states[0])
    for i in range(I - 1, -1, -1):
        d_gates[i], d_s_carried = _gru_backward(d_s, states[i], zr[i], candidates[i], None, U)
        torch.add(d_gates[i] @ C, d_contexts[i].to(dtype), out=d_c[i])
        d_alpha = torch.bmm(h, d_c[i].unsqueeze(2)).squeeze(2).to(fp32) + d_alphas[i]  # [B, J]
        weighted = alphas[i] * d_alpha
        # Backward pass of the softmax: alpha * (d_alpha - sum_j alpha_j d_alpha_j).
        d_energy = weighted - alphas[i] * weighted.sum(-1, keepdim=True)
        # Computed again: all positions together would take [I, B, J, A].
        hidden = torch.tanh_(k + queries[i].unsqueeze(1))  # [B, J, A]
        d_e = d_energy.to(dtype)
        d_v += (d_e.flatten() @ hidden.flatten(0, 1)).to(fp32)
        # Gradient of the argument of tanh: d_e v_a (1 - hidden^2)
        d_hidden = torch.addcmul(v_a, hidden, hidden * v_a, value=-1).mul_(d_e.unsqueeze(2))
        d_keys += d_hidden
        torch.sum(d_hidden, dim=1, out=d_queries[i])
        # [B, A + 2 D], in the order of the rows of `from_state`.
        d_projected = torch.cat([d_queries[i], d_gates[i, :, : 2 * D]], dim=-1)
        # d_states[i] belongs to s_{i-1}, because that is the output at position i.
        d_s = d_s_carried + d_projected @ from_state + d_states[i]
    return d_s, d_gates, d_queries, d_c, d_keys, d_v


# The GRU of Bahdanau et al. (2015).


def gru_sequence(
    x: Float[Tensor, "B J G"],
    mask: Bool[Tensor, "B J"] | None,
    gates: Float[Tensor, "G2 D"],
    candidate: Float[Tensor, "D D"],
    backward: bool,
    start: Float[Tensor, "B D"] | None = None,
) -> tuple[Float[Tensor, "B J D"], Float[Tensor, "B D"]]:
    """Return all states and the last one.

    Args:
        x: Gate inputs.
        mask: True on real positions; None if all are.
        gates: [U_z; U_r].
        candidate: U.
        start: State before the first position; None for zero.
    """
    if mask is None:
        mask = x.new_ones(x.shape[:2], dtype=torch.bool)
    if start is None:
        start = candidate.new_zeros(x.shape[0], candidate.shape[0])
    apply: Callable[..., Tensor] = _GRUSequence.apply
    outputs = apply(backward, x, mask, start, gates, candidate)
    return outputs, outputs[:, 0] if backward else outputs[:, -1]


class _GRUSequence(torch.autograd.Function):
    """h_j = h_{j-1} + z_j m_j * (h~_j - h_{j-1}): padding (m = 0) leaves the state unchanged."""

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
        dtype = matmul_dtype(x)
        ctx.backward = backward
        ctx.start_dtype = start.dtype
        start = start.to(U.dtype)
        U_gates, U = U_gates.to(dtype), U.to(dtype)
        with torch.autocast(x.device.type, enabled=False):
            xs = x.transpose(0, 1).to(start.dtype)  # [J, B, 3 D]
            active = mask.t().unsqueeze(-1).to(start.dtype)  # [J, B, 1]
            if backward:  # in reading order
                xs, active = xs.flip(0), active.flip(0)
            states, zr, candidates = _run_gru(xs, active, U_gates, U, start)
            outputs = states[1:].flip(0) if backward else states[1:]
        ctx.save_for_backward(states, zr, candidates, active, U_gates, U)
        return outputs.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states, zr, _, _, _, U = ctx.saved_tensors
        D = U.shape[0]
        previous_states = states[:-1]
        d_outputs = grads[0].transpose(0, 1)
        with torch.autocast(d_outputs.device.type, enabled=False):
            d_outputs = d_outputs.flip(0) if ctx.backward else d_outputs
            d_start, d_gates = _gru_positions_backward(d_outputs, *ctx.saved_tensors)
            reset_states = (zr[..., D:] * previous_states).to(U.dtype)
            d_U_gates, d_U = _gru_weight_gradients(d_gates, previous_states.to(U.dtype), reset_states)
        d_x = (d_gates.flip(0) if ctx.backward else d_gates).transpose(0, 1)
        return None, d_x, None, d_start.to(ctx.start_dtype), d_U_gates, d_U


def _run_gru(xs: Tensor, active: Tensor, U_gates: Tensor, U: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return h_0..h_J, [z, r] and the candidates, positions first in reading order.

    Args:
        xs: Gate inputs [J, B, 3 D].
        active: m [J, B, 1].
    """
    J, B, G = xs.shape
    D = G // 3
    dtype = U.dtype
    states = xs.new_empty(J + 1, B, D)
    zr = xs.new_empty(J, B, 2 * D)
    candidates = xs.new_empty(J, B, D)
    states[0] = start
    for j in range(J):
        h = states[j]
        torch.sigmoid(h.to(dtype) @ U_gates.t() + xs[j, :, : 2 * D], out=zr[j])
        z, r = zr[j].chunk(2, dim=-1)
        torch.tanh((r * h).to(dtype) @ U.t() + xs[j, :, 2 * D :], out=candidates[j])
        # At padding, active is 0 and the state stays exactly the same.
        torch.addcmul(h, z * active[j], candidates[j] - h, out=states[j + 1])
    return states, zr, candidates


def _gru_positions_backward(d_outputs: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of h_0 and of the gates' pre-activations."""
    states, zr, candidates, active, U_gates, U = saved
    J, B, D = candidates.shape
    d_gates = U.new_empty(J, B, 3 * D)
    d_h = torch.zeros_like(states[0])
    for j in range(J - 1, -1, -1):
        d_next = d_h + d_outputs[j]  # [B, D]
        d_gates[j], d_h_carried = _gru_backward(d_next, states[j], zr[j], candidates[j], active[j], U)
        d_h = d_h_carried + d_gates[j, :, : 2 * D] @ U_gates
    return d_h, d_gates


# PyTorch's fused LSTM and GRU.
#
# Nothing is packed or sorted, so that nothing waits for the device. Instead, padding is an additional input that makes
# the gates carry the state: the memory of the LSTM exactly (gate i closed, f open), the GRU's state up to rounding (z
# open). Outputs at padding are undefined: for trailing padding the last output is gathered from its position, and
# leading padding (read backward, from zero) leaves exactly zero.

PADDING_COLUMNS = 8  # input columns that mark padding; one would do, but eight keep the rows' addresses aligned
CLOSED = 1e4  # a pre-activation whose sigmoid is exactly 1, and that of its negative 0, in every precision


def can_run(mask: Tensor | None, start: object, backward: bool) -> bool:
    """Return True if the fused recurrences can run: padding that is read first must leave a state of zero."""
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
    """Return all outputs, the last output and the last memory of `cells.LSTM`.

    The cell has one bias and the gates i, f, o, candidate, where PyTorch has two and i, f, candidate, o.

    Args:
        mask: True on real positions, which must come first in each row; None if all are real, which is required to read
            backward from a given start.
        start: Output and memory before the first position; None for zeros.
    """
    assert can_run(mask, start, backward)
    # i = 0 and f = 1: c' = c exactly.
    x, weight = _mark_padding(x, weight, mask, {0: -CLOSED, 1: CLOSED}, blocks=4)  # gates i and f
    zeros = x.new_zeros(1, x.shape[0], recurrent.shape[1])
    initial = (zeros, zeros)
    if start is not None:
        initial = (_with_layer(start[0], x), _with_layer(start[1], x))
    weights = (*(_in_pytorch_order(w) for w in (weight, recurrent, bias)), torch.zeros_like(bias))
    # Arguments: inputs, states, weights, has_biases, layers, dropout, train, bidirectional, batch_first.
    outputs, h, c = torch._VF.lstm(  # type: ignore[attr-defined]
        x.flip(1) if backward else x, initial, weights, True, 1, 0.0, True, False, True
    )
    if backward:
        return outputs.flip(1), h[0], c[0]
    return outputs, _last_output(outputs, h, mask), c[0]


def torch_gru_sequence(
    x: Float[Tensor, "B J E"],
    mask: Bool[Tensor, "B J"] | None,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    backward: bool = False,
    start: Float[Tensor, "B D"] | None = None,
) -> tuple[Float[Tensor, "B J D"], Float[Tensor, "B D"]]:
    """Return all outputs and the last one of `cells.TorchGRU`.

    Args:
        mask: As in `lstm_sequence`.
        weights: W, U and their biases, with the gates r, z, candidate.
        start: Output before the first position; None for zero.
    """
    assert can_run(mask, start, backward)
    W, U, b, b_U = weights
    x, W = _mark_padding(x, W, mask, {1: CLOSED}, blocks=3)  # gate z
    initial = x.new_zeros(1, x.shape[0], U.shape[1]) if start is None else _with_layer(start, x)
    # Arguments: see `lstm_sequence`.
    outputs, h = torch._VF.gru(  # type: ignore[attr-defined]
        x.flip(1) if backward else x, initial, (W, U, b, b_U), True, 1, 0.0, True, False, True
    )
    if backward:
        return outputs.flip(1), h[0]
    return outputs, _last_output(outputs, h, mask)


def _with_layer(state: Tensor, x: Tensor) -> Tensor:
    """Return a state [B, D] as [1, B, D] in the type of x."""
    return state.to(x.dtype).unsqueeze(0).contiguous()


def _mark_padding(
    x: Tensor, weight: Tensor, mask: Tensor | None, gates: dict[int, float], blocks: int
) -> tuple[Tensor, Tensor]:
    """Add columns to the inputs that are 1 on padding, with weights that set the pre-activations of some gates there.

    Args:
        gates: Pre-activation by number of the gate.
        blocks: Number of gates and candidates.
    """
    if mask is None:
        return x, weight
    gate_weights = weight.new_zeros(blocks, weight.shape[0] // blocks, PADDING_COLUMNS)
    for gate, value in gates.items():
        gate_weights[gate, :, 0] = value
    padding = (~mask).to(x.dtype).unsqueeze(-1).expand(-1, -1, PADDING_COLUMNS)
    # Inputs at padding are set to 0, so that they cannot outweigh CLOSED.
    x = torch.cat([x.masked_fill(~mask.unsqueeze(-1), 0.0), padding], dim=-1)
    return x, torch.cat([weight, gate_weights.flatten(0, 1)], dim=1)


def _last_output(outputs: Tensor, h: Tensor, mask: Tensor | None) -> Tensor:
    """Return the output at each row's last real position."""
    if mask is None:
        return h[0]
    # Padding is at the end. A row without real positions takes its first output.
    last = (mask.sum(1) - 1).clamp_min(0)
    return outputs.gather(1, last[:, None, None].expand(-1, 1, outputs.shape[2]))[:, 0]


def _in_pytorch_order(weight: Tensor) -> Tensor:
    """Return blocks i, f, o, candidate as i, f, candidate, o."""
    i, f, o, candidate = weight.chunk(4)
    return torch.cat([i, f, candidate, o])


# The backward pass of the gates of both recurrences.


def _gru_weight_gradients(d_gates: Tensor, h: Tensor, reset_state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of [U_z; U_r] and of U, summed over all rows.

    Args:
        d_gates: Gradient of the pre-activations of z, r and the candidate [*rows, 3 D].
        h: States that the gates read [*rows, D].
        reset_state: r * h [*rows, D].
    """
    D = h.shape[-1]
    dtype = d_gates.dtype
    d_U_gates = weight_gradient(d_gates[..., : 2 * D], h, dtype)  # [2 D, D]
    d_U = weight_gradient(d_gates[..., 2 * D :], reset_state, dtype)  # [D, D]
    return d_U_gates, d_U


def _gru_backward(
    d_next: Tensor, h: Tensor, gates: Tensor, candidate: Tensor, active: Tensor | None, U: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a step h' = h + z * (h~ - h), h~ = tanh(. + U [r * h]) (Bahdanau et al. 2015).

    Args:
        d_next: Gradient of h' [N, D].
        gates: z and r [N, 2 D].
        active: [N, 1], 0 where the step left the state unchanged; None if it did nowhere.

    Returns:
        The gradient of the pre-activations of z, r and the candidate [N, 3 D] in the type of products, and the part of
        the gradient of h that does not go through the recurrent gates' product [N, D].
    """
    z, r = gates.chunk(2, dim=-1)
    # h' = h + used * (candidate - h): padding has used = 0, so that the gradient of h' goes to h only.
    used = z if active is None else z * active
    # Gradients of pre-activations: tanh' = 1 - tanh^2 and sigma' = sigma (1 - sigma). [N, D] each.
    d_candidate = d_next * used * (1 - candidate * candidate)
    d_z = d_next * (candidate - h) * used * (1 - z)
    d_reset = d_candidate.to(U.dtype) @ U  # of r * h
    d_r = d_reset * h * r * (1 - r)
    d_gates = torch.cat([d_z, d_r, d_candidate], dim=-1).to(U.dtype)
    return d_gates, d_next * (1 - used) + d_reset * r
