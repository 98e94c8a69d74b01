"""Fast operations on the rows of scores that every search uses: log-sum-exp and the best continuations.

They are native code on the CPU and Triton kernels (`triton_rows.py`) on a GPU.

Ties must be resolved as in PyTorch's search, since tests compare hypotheses exactly
(tests/properties/test_native_search.py).

Axes: N rows, C score columns; A sentences, K hypotheses per sentence, M continuations.
"""

from __future__ import annotations

import logging
from ctypes import c_int64
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rnnsearch.ops.kernel_choice import runs_triton
from rnnsearch.ops.linear import num_threads, pointer
from rnnsearch.ops.native.library import library

log = logging.getLogger(__name__)


def _is_native(scores: Tensor) -> bool:
    """Return True if native code is available and can read these scores: fp32, contiguous, on the CPU."""
    is_readable = scores.dtype is torch.float32 and scores.device.type == "cpu" and scores.is_contiguous()
    return is_readable and library() is not None


def _runs_triton(scores: Tensor) -> bool:
    is_readable = scores.is_contiguous() and runs_triton(scores.device, scores.dtype, torch.float32)
    return is_readable and _triton_is_correct(scores.device)


@cache
def _triton_is_correct(device: torch.device) -> bool:
    """Return True if the Triton kernels equal PyTorch's operations in a small case, which also compiles them."""
    from rnnsearch.ops import triton_rows

    with torch.inference_mode(False), torch.no_grad():
        scores = torch.linspace(-3.0, 3.0, 3 * 2 * 150, device=device).view(3, 2, 150).sin()
        prefix = scores[:, :, 0].contiguous()
        expected = (scores + prefix[:, :, None]).flatten(1).sort(dim=1, descending=True, stable=True).indices[:, :10]
        try:
            is_equal = torch.equal(triton_rows.topk(scores, prefix, 10), expected) and torch.allclose(
                triton_rows.log_sum_exp(scores.flatten(0, 1)), scores.flatten(0, 1).logsumexp(1), rtol=1e-5
            )
        except Exception as error:
            log.warning("Triton's kernels for search do not run, so PyTorch's are used: %s", error)
            return False
    if not is_equal:
        log.warning("Triton's kernels for search differ from PyTorch's operations, which are used instead")
    return is_equal


def log_sum_exp(scores: Float[Tensor, "N C"]) -> Float[Tensor, "N"]:
    """Return log sum_c exp(scores) of each row, by PyTorch if the fast operations do not support the scores."""
    if _runs_triton(scores):
        from rnnsearch.ops import triton_rows

        return triton_rows.log_sum_exp(scores)
    if not _is_native(scores):
        return scores.logsumexp(1)
    native = library()
    assert native is not None
    N, C = scores.shape
    result = scores.new_empty(N)
    native.log_sum_exp_rows(pointer(scores), c_int64(N), c_int64(C), pointer(result), num_threads())
    return result


def supports_topk(scores: Float[Tensor, "A K C"], count: int) -> bool:
    """Return True if `topk` supports the scores."""
    if _runs_triton(scores):
        from rnnsearch.ops import triton_rows

        return triton_rows.supports_topk(scores.shape[1], scores.shape[2], count)
    return _is_native(scores)


def topk(scores: Float[Tensor, "A K C"], prefix: Float[Tensor, "A K"], count: int) -> Int[Tensor, "A M"]:
    """Return the flat indices k * C + c of the `count` highest prefix + scores of each sentence, highest first.

    Of equal values the lowest index comes first; NaN counts as the highest value. Requires `supports_topk`.
    """
    prefix = prefix.float().contiguous()
    if _runs_triton(scores):
        from rnnsearch.ops import triton_rows

        return triton_rows.topk(scores, prefix, count)
    native = library()
    assert native is not None
    A, K, C = scores.shape
    count = min(count, K * C)
    index = torch.empty(A, count, dtype=torch.int64)
    native.topk_continuations(
        *(pointer(scores), pointer(prefix), c_int64(A), c_int64(K), c_int64(C), c_int64(count)),
        *(pointer(index), num_threads()),
    )
    return index
