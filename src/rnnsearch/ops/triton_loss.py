"""The softmax loss of `loss.py` as a Triton kernel that reads each row of logits twice and writes it once.

Tests: tests/models/test_recurrent_kernels.py runs it on a CPU by Triton's interpreter, tests/properties/test_cuda.py on
a GPU.

Axes: M target tokens, V vocabulary.
"""

# Pointers and constants of kernels have no Python types; Triton compiles the functions from their source.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits that a program reads at once."""


def triton_softmax_loss(
    logits: Tensor, bias: Tensor, target: Tensor, eps: float, d_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return `loss.torch_softmax_loss` for contiguous logits [M, V]."""
    M, V = logits.shape
    nll = bias.new_empty(M)
    losses = bias.new_empty(M)
    if M:
        _softmax_loss[(M,)](
            logits, bias, target, nll, losses, eps, V, HAS_GRADIENT=d_bias is not None, BLOCK=BLOCK, num_warps=8
        )
    if d_bias is not None:
        # The logits are their gradient now.
        d_bias += logits.sum(0, dtype=torch.float32)
    return nll, losses


@triton.jit
@no_type_check
def _softmax_loss(
    logits, bias, target, nll, losses, eps, V, HAS_GRADIENT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    word = tl.load(target + row)
    has_target = word >= 0
    word = tl.maximum(word, 0)
    # The largest value so far, and the sum of the exponentials relative to it, per lane.
    largest = tl.full([BLOCK], -float("inf"), tl.float32)
    exponentials = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        v = start + tl.arange(0, BLOCK)
        inside = v < V
        value = tl.load(logits + row * V + v, mask=inside, other=0.0).to(tl.float32)
        value += tl.load(bias + v, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(inside, value, 0.0)
        value = tl.where(inside, value, -float("inf"))
        new = tl.maximum(largest, value)
        # A lane that has read nothing yet: exp(-inf - -inf) would not be a number.
        scale = tl.where(largest == -float("inf"), 0.0, tl.exp(largest - new))
        exponentials = exponentials * scale + tl.where(value == -float("inf"), 0.0, tl.exp(value - new))
        largest = new
    maximum = tl.max(largest, axis=0)
    scale = tl.where(largest == -float("inf"), 0.0, tl.exp(largest - maximum))
    log_sum = maximum + tl.log(tl.sum(exponentials * scale, axis=0))
    target_value = tl.load(logits + row * V + word).to(tl.float32) + tl.load(bias + word).to(tl.float32)
    row_nll = tl.where(has_target, log_sum - target_value, 0.0)
    mean_log_p = tl.where(has_target, tl.sum(total, axis=0) / V - log_sum, 0.0)
    tl.store(nll + row, row_nll)
    tl.store(losses + row, (1 - eps) * row_nll - eps * mean_log_p)
    if HAS_GRADIENT:
        # All lanes have read the target's logit before any is overwritten.
        tl.debug_barrier()
        for start in range(0, V, BLOCK):
            v = start + tl.arange(0, BLOCK)
            inside = v < V
            value = tl.load(logits + row * V + v, mask=inside, other=0.0).to(tl.float32)
            value += tl.load(bias + v, mask=inside, other=0.0).to(tl.float32)
            gradient = tl.exp(value - log_sum) - tl.where(v == word, 1 - eps, 0.0) - eps / V
            tl.store(logits + row * V + v, tl.where(has_target, gradient, 0.0), mask=inside)
