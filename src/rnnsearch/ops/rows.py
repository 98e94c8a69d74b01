"""Native work on rows of scores: their logarithmic sums, and the choice of the highest."""

from __future__ import annotations

from ctypes import c_int64

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rnnsearch.ops.linear import at, threads
from rnnsearch.ops.native.library import library


def serves(scores: Tensor) -> bool:
    """Whether native code takes these scores: fp32, contiguous, on the CPU, and native code can be had."""
    plain = scores.dtype is torch.float32 and scores.device.type == "cpu" and scores.is_contiguous()
    return plain and library() is not None


def norms(scores: Float[Tensor, "N C"]) -> Float[Tensor, "N"]:
    """log sum_c exp(scores) of each row; of scores that native code does not serve, by the library."""
    if not serves(scores):
        return scores.logsumexp(1)
    native = library()
    assert native is not None
    norm = scores.new_empty(scores.shape[0])
    native.log_sum_exp_rows(at(scores), c_int64(scores.shape[0]), c_int64(scores.shape[1]), at(norm), threads())
    return norm


def best(scores: Float[Tensor, "A K C"], ahead: Float[Tensor, "A K"], count: int) -> Int[Tensor, "A M"]:
    """The flat indices k * C + c of the `count` highest ahead + scores of each sentence, the highest first, of equals
    the lowest index first; NaN counts as the highest."""
    native = library()
    assert native is not None
    A, K, C = scores.shape
    count = min(count, K * C)
    index = torch.empty(A, count, dtype=torch.int64)
    ahead = ahead.float().contiguous()
    native.topk_continuations(
        at(scores), at(ahead), c_int64(A), c_int64(K), c_int64(C), c_int64(count), at(index), threads()
    )
    return index
