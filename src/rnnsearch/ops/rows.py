"""Native operations on the rows of scores that every search uses: log-sum-exp and the best continuations.

Ties must be resolved as in PyTorch's search, since tests compare hypotheses exactly
(tests/properties/test_native_search.py).

Axes: N rows, C score columns; A sentences, K hypotheses per sentence, M continuations.
"""

from __future__ import annotations

from ctypes import c_int64

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rnnsearch.ops.linear import num_threads, pointer
from rnnsearch.ops.native.library import library


def is_supported(scores: Tensor) -> bool:
    """Return True if native code is available and can read these scores: fp32, contiguous, on the CPU."""
    is_readable = scores.dtype is torch.float32 and scores.device.type == "cpu" and scores.is_contiguous()
    return is_readable and library() is not None


def log_sum_exp(scores: Float[Tensor, "N C"]) -> Float[Tensor, "N"]:
    """Return log sum_c exp(scores) of each row, by PyTorch if native code does not support the scores."""
    if not is_supported(scores):
        return scores.logsumexp(1)
    native = library()
    assert native is not None
    N, C = scores.shape
    result = scores.new_empty(N)
    native.log_sum_exp_rows(pointer(scores), c_int64(N), c_int64(C), pointer(result), num_threads())
    return result


def topk(scores: Float[Tensor, "A K C"], prefix: Float[Tensor, "A K"], count: int) -> Int[Tensor, "A M"]:
    """Return the flat indices k * C + c of the `count` highest prefix + scores of each sentence, highest first.

    Of equal values the lowest index comes first; NaN counts as the highest value. Requires `is_supported`.
    """
    native = library()
    assert native is not None
    A, K, C = scores.shape
    count = min(count, K * C)
    index = torch.empty(A, count, dtype=torch.int64)
    prefix = prefix.float().contiguous()
    native.topk_continuations(
        *(pointer(scores), pointer(prefix), c_int64(A), c_int64(K), c_int64(C), c_int64(count)),
        *(pointer(index), num_threads()),
    )
    return index
