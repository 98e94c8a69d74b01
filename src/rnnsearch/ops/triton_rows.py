"""The operations of `rows.py` as Triton kernels: log-sum-exp of rows, and the best continuations of a beam.

Ties must be resolved as in `search/topk.py`. Tests: tests/models/test_triton_rows.py runs them on a CPU by Triton's
interpreter, and on a GPU if there is one.

Axes: N rows, C score columns; A sentences, K hypotheses per sentence, M continuations, S blocks of columns per row.
"""

# Pointers and constants of kernels have no Python types; Triton compiles the functions from their source.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 64
"""Columns per block."""
BLOCKS_PER_PROGRAM = 16
LOG_SUM_COLUMNS = 4096
"""Columns that a program of `log_sum_exp` reads at once."""
MAX_BLOCKS = 8192
MAX_CONTINUATIONS = 64
"""Limits of the blocks and continuations of a sentence, all of which one program holds in registers."""
LOWEST = tl.constexpr(-(2**63))  # less than the key of any score


def supports_topk(K: int, C: int, count: int) -> bool:
    """Return True if `topk` supports these sizes."""
    return K * triton.cdiv(C, COLUMNS) <= MAX_BLOCKS and count <= MAX_CONTINUATIONS


def topk(scores: Tensor, prefix: Tensor, count: int) -> Tensor:
    """Return `rows.topk` for contiguous scores [A, K, C] and prefix [A, K]."""
    A, K, C = scores.shape
    S = triton.cdiv(C, COLUMNS)
    count = min(count, K * C)
    maxima = torch.empty(A, K, S, dtype=torch.int64, device=scores.device)
    index = torch.empty(A, count, dtype=torch.int64, device=scores.device)
    grid = (A * K, triton.cdiv(S, BLOCKS_PER_PROGRAM))
    _block_maxima[grid](scores, prefix, maxima, K, C, S, COLUMNS=COLUMNS, BLOCKS=BLOCKS_PER_PROGRAM)
    _best_of_blocks[(A,)](
        *(scores, prefix, maxima, index, K, C, S, count),
        COLUMNS=COLUMNS,
        BLOCKS=triton.next_power_of_2(K * S),
        SLOTS=triton.next_power_of_2(count),
        num_warps=8,
    )
    return index


def log_sum_exp(scores: Tensor) -> Tensor:
    """Return log sum_c exp(scores) of each row of contiguous scores [N, C]."""
    N, C = scores.shape
    result = scores.new_empty(N)
    _log_sum_exp[(N,)](scores, result, C, BLOCK=LOG_SUM_COLUMNS, num_warps=8)
    return result


@triton.jit
@no_type_check
def _key(value, index):
    """Return an integer whose order is that of the values, with NaN as the highest and the lowest index first."""
    value = tl.where(value == 0.0, 0.0, value)  # -0.0 and 0.0 are equal
    bits = value.to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    order = tl.where(is_nan, 0x7FFFFFFF, order)
    return (order.to(tl.int64) << 32) | (0xFFFFFFFF - index.to(tl.int64))


@triton.jit
@no_type_check
def _index(key):
    """Return the index that `_key` has put into a key."""
    return 0xFFFFFFFF - (key & 0xFFFFFFFF)


@triton.jit
@no_type_check
def _block_maxima(scores, prefix, maxima, K, C, S, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr):
    """Write the key of the highest score of each block, with the number of the block in its sentence."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = column < C
    value = tl.load(scores + row * C + column, mask=inside, other=0.0) + tl.load(prefix + row)
    number = (row % K) * S + block
    keys = tl.where(inside, _key(value, number[:, None] + tl.zeros_like(column)), LOWEST)
    tl.store(maxima + row * S + block, tl.max(keys, axis=1), mask=block < S)


@triton.jit
@no_type_check
def _best_of_blocks(
    scores, prefix, maxima, result, K, C, S, count, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, SLOTS: tl.constexpr
):  # fmt: skip
    """Write the best continuations of a sentence: only the `count` blocks with the highest maxima can contain them."""
    sentence = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    keys = tl.load(maxima + sentence * K * S + block, mask=block < K * S, other=LOWEST)
    slot = tl.arange(0, SLOTS)
    chosen = tl.full([SLOTS], -1, tl.int64)
    for i in range(count):
        best = tl.max(keys, axis=0)
        chosen = tl.where((slot == i) & (best != LOWEST), _index(best), chosen)
        keys = tl.where(keys == best, LOWEST, keys)
    is_chosen = chosen >= 0  # fewer if there are fewer blocks than continuations
    block = tl.where(is_chosen, chosen, 0)
    k = block // S
    column = (block % S)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]  # [SLOTS, COLUMNS]
    inside = is_chosen[:, None] & (column < C)
    index = k[:, None] * C + column
    value = tl.load(scores + sentence * K * C + index, mask=inside, other=0.0)
    value += tl.load(prefix + sentence * K + k)[:, None]
    candidates = tl.where(inside, _key(value, index), LOWEST)
    for i in range(count):
        best = tl.max(tl.max(candidates, axis=1), axis=0)
        tl.store(result + sentence * count + i, _index(best))
        candidates = tl.where(candidates == best, LOWEST, candidates)


@triton.jit
@no_type_check
def _log_sum_exp(scores, result, C, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    # The largest value so far, and the sum of the exponentials relative to it, per lane.
    largest = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, C, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(scores + row * C + column, mask=column < C, other=-float("inf"))
        new = tl.maximum(largest, value)
        # exp(-inf - -inf) would not be a number.
        scale = tl.where(largest == -float("inf"), 0.0, tl.exp(largest - new))
        total = total * scale + tl.where(value == -float("inf"), 0.0, tl.exp(value - new))
        largest = new
    maximum = tl.max(largest, axis=0)
    total = total * tl.where(largest == -float("inf"), 0.0, tl.exp(largest - maximum))
    tl.store(result + row, maximum + tl.log(tl.sum(total, axis=0)))
