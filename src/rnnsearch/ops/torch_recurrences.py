"""Recurrences in PyTorch with manual backward passes, for devices without native code, mainly GPUs.

`unroll_rnnsearch` is `Bahdanau.unroll` with the components of Bahdanau et al. (2015), and `gru_sequence` is `Cell.run`
of their GRU. Between their matrix products both call the operations of `recurrent_kernels.py`. `lstm_sequence` and
`torch_gru_sequence` call PyTorch's fused recurrences. `accel/fast_forwards.py` calls them; `autotune_cases.py` times
them.

Axes: B sentences, I target positions, J source positions, D state, H annotation, A alignment hidden, E input of a
cell, G gate inputs.

Backward passes are written by hand: tests/properties/test_gradients.py and the comparison at first use
(`accel/verification.py`) check them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rnnsearch.ops.kernel_choice import kernels_for
from rnnsearch.ops.linear import weight_gradient
from rnnsearch.ops.recurrent_kernels import AttentionInputs
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
    rounded: Tensor  # [I + 1, B, D], the same in the type of matrix products
    projected: Tensor  # [I, B, A + 2 D], [W_a; U_z; U_r] s_{i-1}
    zr: Tensor  # [I, B, 2 D]
    reset: Tensor  # [I, B, D], r_i * s_{i-1}
    candidates: Tensor  # [I, B, D]
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
            # Rounded once for all positions; states and scores stay in fp32.
            h, k = h.to(dtype).contiguous(), k.to(dtype).contiguous()
            inputs = AttentionInputs(h, k, mask.contiguous(), v_a.to(dtype))
            # Positions first: the rows of one position are then contiguous.
            xs = _with_unit_stride(x.transpose(0, 1).to(v_a.dtype))
            trace = _run_positions(xs, s_0, inputs, C, from_state, U)
        ctx.save_for_backward(*trace, *inputs, C, from_state, U)
        return trace.states[:-1].transpose(0, 1), trace.contexts.transpose(0, 1), trace.alphas.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        trace = _Trace(*saved[: len(_Trace._fields)])
        *attention_inputs, C, from_state, U = saved[len(_Trace._fields) :]
        inputs = AttentionInputs(*attention_inputs)
        A = inputs.v.shape[0]
        D = U.shape[0]
        with torch.autocast(grads[0].device.type, enabled=False):
            position_grads = [_with_unit_stride(grad.transpose(0, 1)) for grad in grads]
            d_s_0, d_sums, d_c, d_keys, d_v = _positions_backward(position_grads, trace, inputs, C, from_state, U)
            d_gates = d_sums[..., A:]
            # [B, J, I] x [B, I, H]: the contexts of all positions in one product.
            d_h = torch.bmm(trace.alphas.permute(1, 2, 0).to(d_c.dtype), d_c.transpose(0, 1))
            # One product per weight over all I * B rows, instead of a small one per position.
            d_from_state = weight_gradient(d_sums[..., : A + 2 * D], trace.rounded[:-1], d_c.dtype)
            d_W_a, d_U_gates = d_from_state.split([A, 2 * D])
            d_U = weight_gradient(d_gates[..., 2 * D :], trace.reset, d_c.dtype)
            d_C = weight_gradient(d_gates, trace.contexts, d_c.dtype)
        return d_gates.transpose(0, 1), d_s_0, d_h, d_keys, None, d_W_a, d_v, d_C, d_U_gates, d_U


def _run_positions(
    xs: Tensor, s_0: Tensor, inputs: AttentionInputs, C: Tensor, from_state: Tensor, U: Tensor
) -> _Trace:
    """Run all positions in order.

    Args:
        xs: Gate inputs [I, B, 3 D].
        s_0: Initial state [B, D].
        inputs: Annotations and keys.
        C: [3 D, H].
        from_state: [W_a; U_gates].
        U: [D, D].
    """
    I, B, G = xs.shape
    D = G // 3
    J, A = inputs.k.shape[1:]
    kernels = kernels_for(xs, U.dtype, J)
    states, rounded = _allocate_states(xs, I, U.dtype)
    states[0] = s_0
    if rounded is not states:
        rounded[0] = s_0
    projected = U.new_empty(I, B, A + 2 * D)
    zr = xs.new_empty(I, B, 2 * D)
    reset = U.new_empty(I, B, D)
    candidates = xs.new_empty(I, B, D)
    contexts = U.new_empty(I, B, inputs.h.shape[2])
    alphas = xs.new_empty(I, B, J)
    from_context = U.new_empty(B, 3 * D)
    product = U.new_empty(B, D)
    for i in range(I):
        s = states[i]
        torch.mm(rounded[i], from_state.t(), out=projected[i])
        kernels.attend(projected[i, :, :A], inputs, alphas[i], contexts[i])
        torch.mm(contexts[i], C.t(), out=from_context)
        kernels.gates(projected[i, :, A:], xs[i], from_context, s, zr[i], reset[i])
        torch.mm(reset[i], U.t(), out=product)
        # s_i = (1 - z) s_{i-1} + z s~ (Bahdanau et al. 2015, appendix A.2.2), written as s + z (s~ - s).
        kernels.update(product, xs[i], from_context, s, zr[i], None, candidates[i], states[i + 1], rounded[i + 1])
    return _Trace(states, rounded, projected, zr, reset, candidates, contexts, alphas)


def _positions_backward(
    grads: Sequence[Tensor], trace: _Trace, inputs: AttentionInputs, C: Tensor, from_state: Tensor, U: Tensor
) -> tuple[Tensor, ...]:
    """Run all positions in reverse.

    Args:
        grads: Gradients of the outputs s_{i-1} [I, B, D], c_i [I, B, H] and alpha_i [I, B, J].
        trace: Results of the forward pass.
        inputs: Annotations and keys.
        C: [3 D, H].
        from_state: [W_a; U_gates].
        U: [D, D].

    Returns:
        Gradients of s_0, of W_a s_{i-1} and the gates' pre-activations [I, B, A + 3 D], c_i, the keys and v_a.
    """
    d_states, d_contexts, d_alphas = grads
    I, B, D = trace.candidates.shape
    J, A = inputs.k.shape[1:]
    kernels = kernels_for(trace.states, U.dtype, J)
    attention = kernels.attention_backward(trace.projected[..., :A], trace.alphas, inputs)
    d_c = torch.empty_like(trace.contexts)
    d_sums = U.new_empty(I, B, A + 3 * D)  # of W_a s_{i-1}, z, r and the candidate
    d_projected, d_gates = d_sums[..., : A + 2 * D], d_sums[..., A:]
    d_z, d_r, d_candidates = d_gates.chunk(3, dim=-1)
    from_gates = torch.empty_like(trace.contexts[0])
    d_reset = U.new_empty(B, D)
    # The gradient of s_i is a sum of three parts. s_I is no output and has none.
    d_carried = torch.zeros_like(trace.states[0])
    d_product = U.new_zeros(B, D)
    d_output = d_carried.clone()
    for i in range(I - 1, -1, -1):
        s, zr = trace.states[i], trace.zr[i]
        kernels.candidate_backward(
            d_carried, d_product, d_output, s, zr, trace.candidates[i], None, d_z[i], d_candidates[i]
        )
        torch.mm(d_candidates[i], U, out=d_reset)
        kernels.reset_backward(d_reset, s, zr, d_r[i], d_carried)
        torch.mm(d_gates[i], C, out=from_gates)
        attention.position(i, from_gates, d_contexts[i], d_alphas[i], d_c[i], d_sums[i, :, :A])
        torch.mm(d_projected[i], from_state, out=d_product)
        d_output = d_states[i]  # of s_{i-1}, because that is the output at position i
    return d_carried + d_product + d_output, d_sums, d_c, *attention.gradients()


def _allocate_states(like: Tensor, positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return memory for the states [positions + 1, B, D], and for the same states in the type of matrix products.

    Both are the same tensor if the types are.

    Args:
        like: Gate inputs [positions, B, 3 D].
        positions: Number of positions.
        dtype: Type of matrix products.
    """
    states = like.new_empty(positions + 1, like.shape[1], like.shape[2] // 3)
    return states, states if dtype == states.dtype else torch.empty_like(states, dtype=dtype)


def _with_unit_stride(x: Tensor) -> Tensor:
    """Return x with consecutive elements in the last axis."""
    return x if x.stride(-1) == 1 else x.contiguous()


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
            xs = _with_unit_stride(x.transpose(0, 1).to(start.dtype))  # [J, B, 3 D]
            trace = _run_gru(xs, mask.t(), U_gates, U, start, backward)
        ctx.save_for_backward(*trace, mask, U_gates, U)
        outputs = trace.states[:-1] if backward else trace.states[1:]
        return outputs.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *saved, mask, U_gates, U = ctx.saved_tensors
        trace = _GRUTrace(*saved)
        D = U.shape[0]
        with torch.autocast(grads[0].device.type, enabled=False):
            d_outputs = _with_unit_stride(grads[0].transpose(0, 1))
            d_start, d_gates = _gru_positions_backward(d_outputs, trace, mask.t(), U_gates, U, ctx.backward)
            previous = trace.rounded[1:] if ctx.backward else trace.rounded[:-1]
            d_U_gates = weight_gradient(d_gates[..., : 2 * D], previous, U.dtype)
            d_U = weight_gradient(d_gates[..., 2 * D :], trace.reset, U.dtype)
        return None, d_gates.transpose(0, 1), None, d_start.to(ctx.start_dtype), d_U_gates, d_U


class _GRUTrace(NamedTuple):
    """Results of all positions that the backward pass needs.

    The state before position j is at index j, or at j + 1 if the positions are read from right to left.
    """

    states: Tensor  # [J + 1, B, D]
    rounded: Tensor  # [J + 1, B, D], the same in the type of matrix products
    zr: Tensor  # [J, B, 2 D]
    reset: Tensor  # [J, B, D], r * h
    candidates: Tensor  # [J, B, D]


def _run_gru(xs: Tensor, active: Tensor, U_gates: Tensor, U: Tensor, start: Tensor, backward: bool) -> _GRUTrace:
    """Run a GRU over all positions.

    Args:
        xs: Gate inputs [J, B, 3 D].
        active: m [J, B].
        U_gates: [U_z; U_r].
        U: [D, D].
        start: State before the position that is read first [B, D].
        backward: Read from right to left.
    """
    J, B, G = xs.shape
    D = G // 3
    kernels = kernels_for(xs, U.dtype)
    states, rounded = _allocate_states(xs, J, U.dtype)
    first = J if backward else 0
    states[first] = start
    if rounded is not states:
        rounded[first] = start
    zr = xs.new_empty(J, B, 2 * D)
    reset = U.new_empty(J, B, D)
    candidates = xs.new_empty(J, B, D)
    from_state = U.new_empty(B, 2 * D)
    product = U.new_empty(B, D)
    for j in range(J - 1, -1, -1) if backward else range(J):
        before, after = (j + 1, j) if backward else (j, j + 1)
        h = states[before]
        torch.mm(rounded[before], U_gates.t(), out=from_state)
        kernels.gates(from_state, xs[j], None, h, zr[j], reset[j])
        torch.mm(reset[j], U.t(), out=product)
        # At padding, active is 0 and the state stays exactly the same.
        kernels.update(product, xs[j], None, h, zr[j], active[j], candidates[j], states[after], rounded[after])
    return _GRUTrace(states, rounded, zr, reset, candidates)


def _gru_positions_backward(
    d_outputs: Tensor, trace: _GRUTrace, active: Tensor, U_gates: Tensor, U: Tensor, backward: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the first state [B, D] and of the gates' pre-activations [J, B, 3 D]."""
    J, B, D = trace.candidates.shape
    kernels = kernels_for(trace.states, U.dtype)
    d_gates = U.new_empty(J, B, 3 * D)
    d_z, d_r, d_candidates = d_gates.chunk(3, dim=-1)
    d_reset = U.new_empty(B, D)
    d_carried = torch.zeros_like(trace.states[0])
    d_product = U.new_zeros(B, D)
    for j in range(J) if backward else range(J - 1, -1, -1):
        h, zr = trace.states[j + 1 if backward else j], trace.zr[j]
        kernels.candidate_backward(
            d_carried, d_product, d_outputs[j], h, zr, trace.candidates[j], active[j], d_z[j], d_candidates[j]
        )
        torch.mm(d_candidates[j], U, out=d_reset)
        kernels.reset_backward(d_reset, h, zr, d_r[j], d_carried)
        torch.mm(d_gates[j, :, : 2 * D], U_gates, out=d_product)
    return d_carried + d_product, d_gates


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
