"""The operations of `recurrent_kernels.py` as Triton kernels, one launch each.

On a GPU the recurrences are limited by the number of kernels: each takes microseconds, whatever it computes. A row of a
batch is a program of its own, which reads and writes its operands once and computes in fp32.

Triton comes with PyTorch's CUDA builds for Linux. Tests: tests/models/test_recurrent_kernels.py runs the kernels on a
CPU by Triton's interpreter, tests/properties/test_cuda.py on a GPU.

Axes: B sentences, I target positions, J source positions, D state, H annotation, A alignment hidden.
"""

# Pointers and constants of kernels have no Python types; Triton compiles the functions from their source.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from rnnsearch.ops.recurrent_kernels import AttentionBackward, AttentionInputs, TorchKernels

MAX_SOURCE_POSITIONS = 512
"""Longer sentences would need more registers than a program has."""
POINTWISE_BLOCK = 256
"""Units of a state per program."""
TILE_ELEMENTS = 8192
"""Elements of a tile [positions, units] that a program of an attention kernel holds."""
MIN_TILE_WIDTH = 16
MAX_TILE_WIDTH = 512


class TritonKernels(TorchKernels):
    """The operations as Triton kernels; see the base class for their arguments."""

    def gates(self, product: Tensor, x: Tensor, context: Tensor | None, h: Tensor, zr: Tensor, reset: Tensor) -> None:
        B, D = h.shape
        _gates[B, triton.cdiv(D, POINTWISE_BLOCK)](
            product, product.stride(0), x, x.stride(0), context, h, zr, reset, D, BLOCK=POINTWISE_BLOCK
        )

    def update(
        self,
        product: Tensor,
        x: Tensor,
        context: Tensor | None,
        h: Tensor,
        zr: Tensor,
        active: Tensor | None,
        candidate: Tensor,
        new: Tensor,
        rounded: Tensor,
    ) -> None:
        B, D = h.shape
        active_stride = 0 if active is None else active.stride(0)
        _update[B, triton.cdiv(D, POINTWISE_BLOCK)](
            product, x, x.stride(0), context, h, zr, active, active_stride, candidate, new, rounded, D,
            BLOCK=POINTWISE_BLOCK,
        )  # fmt: skip

    def candidate_backward(
        self,
        d_carried: Tensor,
        d_product: Tensor,
        d_output: Tensor,
        h: Tensor,
        zr: Tensor,
        candidate: Tensor,
        active: Tensor | None,
        d_z: Tensor,
        d_candidate: Tensor,
    ) -> None:
        B, D = h.shape
        active_stride = 0 if active is None else active.stride(0)
        _candidate_backward[B, triton.cdiv(D, POINTWISE_BLOCK)](
            d_carried, d_product, d_output, d_output.stride(0), h, zr, candidate, active, active_stride, d_z,
            d_candidate, d_z.stride(0), D, BLOCK=POINTWISE_BLOCK,
        )  # fmt: skip

    def reset_backward(self, d_reset: Tensor, h: Tensor, zr: Tensor, d_r: Tensor, d_carried: Tensor) -> None:
        B, D = h.shape
        _reset_backward[B, triton.cdiv(D, POINTWISE_BLOCK)](
            d_reset, h, zr, d_r, d_r.stride(0), d_carried, D, BLOCK=POINTWISE_BLOCK
        )

    def attend(self, q: Tensor, inputs: AttentionInputs, alpha: Tensor, context: Tensor) -> None:
        B, J, A = inputs.k.shape
        H = inputs.h.shape[2]
        _attend[(B,)](
            q, q.stride(0), inputs.k, inputs.h, inputs.mask, inputs.v, alpha, context, J, A, H,
            BLOCK_J=_positions(J), BLOCK_A=_width(A, J), BLOCK_H=_width(H, J),
        )  # fmt: skip

    def attention_backward(self, queries: Tensor, alphas: Tensor, inputs: AttentionInputs) -> TritonAttentionBackward:
        return TritonAttentionBackward(queries, alphas, inputs)


class TritonAttentionBackward(AttentionBackward):
    """The backward pass of `TritonKernels.attend`, one position after the other.

    The gradients of keys and v are computed after the last position, from the gradients of the energies: adding to
    [B, J, A] at each position would be limited by memory.
    """

    def __init__(self, queries: Tensor, alphas: Tensor, inputs: AttentionInputs) -> None:
        self._queries = queries
        self._alphas = alphas
        self._inputs = inputs
        self._d_energies = torch.empty_like(alphas)  # [I, B, J]

    def position(
        self, i: int, d_product: Tensor, d_context: Tensor, d_alpha: Tensor, d_c: Tensor, d_query: Tensor
    ) -> None:
        h, k, _, v = self._inputs
        B, J, A = k.shape
        H = h.shape[2]
        q = self._queries[i]
        _attend_backward[(B,)](
            d_product, d_context, d_context.stride(0), d_alpha, d_alpha.stride(0), self._alphas[i], q, q.stride(0),
            h, k, v, d_c, self._d_energies[i], d_query, d_query.stride(0), J, A, H,
            BLOCK_J=_positions(J), BLOCK_A=_width(A, J), BLOCK_H=_width(H, J),
        )  # fmt: skip

    def gradients(self) -> tuple[Tensor, Tensor]:
        _, k, _, v = self._inputs
        B, J, A = k.shape
        d_keys = torch.empty(k.shape, dtype=torch.float32, device=k.device)
        d_v = torch.empty(B, A, dtype=torch.float32, device=k.device)
        width = min(64, _width(A, J))
        _attention_gradients[B, triton.cdiv(A, width)](
            self._queries, self._queries.stride(0), self._queries.stride(1), self._d_energies, k, v, d_keys, d_v,
            len(self._queries), B, J, A, BLOCK_J=_positions(J), BLOCK_A=width,
        )  # fmt: skip
        return d_keys, d_v.sum(0)


def _positions(J: int) -> int:
    return max(16, int(triton.next_power_of_2(J)))


def _width(size: int, J: int) -> int:
    """Return the width of a tile over J positions."""
    width = max(MIN_TILE_WIDTH, min(MAX_TILE_WIDTH, TILE_ELEMENTS // _positions(J)))
    return min(width, max(MIN_TILE_WIDTH, int(triton.next_power_of_2(size))))


@triton.jit
@no_type_check
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
@no_type_check
def _load(pointer, offsets, inside):
    return tl.load(pointer + offsets, mask=inside, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _gates(product, product_stride, x, x_stride, context, h, zr, reset, D, BLOCK: tl.constexpr):
    b = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < D
    z = _load(product, b * product_stride + d, inside) + _load(x, b * x_stride + d, inside)
    r = _load(product, b * product_stride + D + d, inside) + _load(x, b * x_stride + D + d, inside)
    if context is not None:
        z += _load(context, b * 3 * D + d, inside)
        r += _load(context, b * 3 * D + D + d, inside)
    z = tl.sigmoid(z)
    r = tl.sigmoid(r)
    tl.store(zr + b * 2 * D + d, z, mask=inside)
    tl.store(zr + b * 2 * D + D + d, r, mask=inside)
    tl.store(reset + b * D + d, r * _load(h, b * D + d, inside), mask=inside)


@triton.jit
@no_type_check
def _update(
    product, x, x_stride, context, h, zr, active, active_stride, candidate, new, rounded, D, BLOCK: tl.constexpr
):
    b = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < D
    value = _load(product, b * D + d, inside) + _load(x, b * x_stride + 2 * D + d, inside)
    if context is not None:
        value += _load(context, b * 3 * D + 2 * D + d, inside)
    value = _tanh(value)
    z = _load(zr, b * 2 * D + d, inside)
    if active is not None:
        z *= tl.load(active + b * active_stride).to(tl.float32)
    before = _load(h, b * D + d, inside)
    after = before + z * (value - before)
    tl.store(candidate + b * D + d, value, mask=inside)
    tl.store(new + b * D + d, after, mask=inside)
    tl.store(rounded + b * D + d, after, mask=inside)


@triton.jit
@no_type_check
def _candidate_backward(
    d_carried, d_product, d_output, d_output_stride, h, zr, candidate, active, active_stride, d_z, d_candidate,
    d_stride, D, BLOCK: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < D
    row = b * D + d
    d_next = _load(d_carried, row, inside) + _load(d_product, row, inside)
    d_next += _load(d_output, b * d_output_stride + d, inside)
    z = _load(zr, b * 2 * D + d, inside)
    used = z
    if active is not None:
        used *= tl.load(active + b * active_stride).to(tl.float32)
    value = _load(candidate, row, inside)
    difference = value - _load(h, row, inside)
    tl.store(d_candidate + b * d_stride + d, d_next * used * (1 - value * value), mask=inside)
    tl.store(d_z + b * d_stride + d, d_next * difference * used * (1 - z), mask=inside)
    tl.store(d_carried + row, d_next * (1 - used), mask=inside)


@triton.jit
@no_type_check
def _reset_backward(d_reset, h, zr, d_r, d_r_stride, d_carried, D, BLOCK: tl.constexpr):
    b = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < D
    row = b * D + d
    gradient = _load(d_reset, row, inside)
    r = _load(zr, b * 2 * D + D + d, inside)
    tl.store(d_r + b * d_r_stride + d, gradient * _load(h, row, inside) * r * (1 - r), mask=inside)
    tl.store(d_carried + row, _load(d_carried, row, inside) + gradient * r, mask=inside)


@triton.jit
@no_type_check
def _attend(
    q, q_stride, k, h, mask, v, alpha, context, J, A, H,
    BLOCK_J: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    j = tl.arange(0, BLOCK_J)
    energy = tl.zeros([BLOCK_J], tl.float32)
    for start in range(0, A, BLOCK_A):
        a = start + tl.arange(0, BLOCK_A)
        tile = (b * J + j[:, None]) * A + a[None, :]
        argument = _load(k, tile, (j[:, None] < J) & (a[None, :] < A)) + _load(q, b * q_stride + a, a < A)[None, :]
        energy += tl.sum(_tanh(argument) * _load(v, a, a < A)[None, :], axis=1)
    real = tl.load(mask + b * J + j, mask=j < J, other=0) != 0
    energy = tl.where(real, energy, -float("inf"))
    weight = tl.exp(energy - tl.max(energy, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    tl.store(alpha + b * J + j, weight, mask=j < J)
    for start in range(0, H, BLOCK_H):
        unit = start + tl.arange(0, BLOCK_H)
        tile = (b * J + j[:, None]) * H + unit[None, :]
        values = _load(h, tile, (j[:, None] < J) & (unit[None, :] < H))
        tl.store(context + b * H + unit, tl.sum(weight[:, None] * values, axis=0), mask=unit < H)


@triton.jit
@no_type_check
def _attend_backward(
    d_product, d_context, d_context_stride, d_alpha, d_alpha_stride, alpha, q, q_stride, h, k, v,
    d_c, d_energy, d_query, d_query_stride, J, A, H,
    BLOCK_J: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    j = tl.arange(0, BLOCK_J)
    gradient = _load(d_alpha, b * d_alpha_stride + j, j < J)
    for start in range(0, H, BLOCK_H):
        unit = start + tl.arange(0, BLOCK_H)
        inside = unit < H
        total = _load(d_product, b * H + unit, inside) + _load(d_context, b * d_context_stride + unit, inside)
        tl.store(d_c + b * H + unit, total, mask=inside)
        tile = (b * J + j[:, None]) * H + unit[None, :]
        gradient += tl.sum(_load(h, tile, (j[:, None] < J) & inside[None, :]) * total[None, :], axis=1)
    weight = _load(alpha, b * J + j, j < J)
    weighted = weight * gradient
    # Backward pass of the softmax: alpha * (d_alpha - sum_j alpha_j d_alpha_j).
    d_e = weighted - weight * tl.sum(weighted, axis=0)
    tl.store(d_energy + b * J + j, d_e, mask=j < J)
    for start in range(0, A, BLOCK_A):
        a = start + tl.arange(0, BLOCK_A)
        tile = (b * J + j[:, None]) * A + a[None, :]
        argument = _load(k, tile, (j[:, None] < J) & (a[None, :] < A)) + _load(q, b * q_stride + a, a < A)[None, :]
        hidden = _tanh(argument)
        d_hidden = d_e[:, None] * _load(v, a, a < A)[None, :] * (1 - hidden * hidden)
        tl.store(d_query + b * d_query_stride + a, tl.sum(d_hidden, axis=0), mask=a < A)


@triton.jit
@no_type_check
def _attention_gradients(
    queries, position_stride, row_stride, d_energies, k, v, d_keys, d_v, I, B, J, A,
    BLOCK_J: tl.constexpr, BLOCK_A: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    j = tl.arange(0, BLOCK_J)
    a = tl.program_id(1) * BLOCK_A + tl.arange(0, BLOCK_A)
    tile = (b * J + j[:, None]) * A + a[None, :]
    inside = (j[:, None] < J) & (a[None, :] < A)
    keys = _load(k, tile, inside)
    vector = _load(v, a, a < A)
    d_key = tl.zeros([BLOCK_J, BLOCK_A], tl.float32)
    d_vector = tl.zeros([BLOCK_A], tl.float32)
    for i in range(I):
        hidden = _tanh(keys + _load(queries, i * position_stride + b * row_stride + a, a < A)[None, :])
        d_e = _load(d_energies, (i * B + b) * J + j, j < J)
        d_vector += tl.sum(d_e[:, None] * hidden, axis=0)
        d_key += d_e[:, None] * vector[None, :] * (1 - hidden * hidden)
    tl.store(d_keys + tile, d_key, mask=inside)
    tl.store(d_v + b * A + a, d_vector, mask=a < A)
