"""Products of matrices in C++ (`product.cpp`): one kernel for all shapes; a library builds one for each."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnsearch.models.native.library import function


def can_run(kind: torch.dtype) -> bool:
    """Whether the compiled function is there for a type."""
    return function("product", "product", kind) is not None


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T of [M, K] and [N, K], both in any layout, to [M, N], without a gradient; sums are in fp32.

    An element's sum has the same order whatever M, N and the number of threads.
    """
    run = function("product", "product", x.dtype)
    assert run is not None and x.dtype == weight.dtype
    (M, K), N = x.shape, weight.shape[0]
    out = x.new_empty(M, N) if K else x.new_zeros(M, N)
    if out.numel() and K:
        run(M, N, K, x.data_ptr(), *x.stride(), weight.data_ptr(), *weight.stride(), out)
    return out
