"""Products of matrices in C++ (`product.cpp`): one kernel for all shapes; a library builds one for each."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnsearch.kernels.native.library import function


def can_run(kind: torch.dtype) -> bool:
    """Whether the compiled function is there for a type."""
    return function("product", kind) is not None


def product(x: Tensor, weight: Tensor, out: torch.dtype | None = None) -> Tensor:
    """x weight^T of [M, K] and [N, K], both in any layout, to [M, N], without a gradient; sums are in fp32.

    They come rounded to the type of x, or in fp32 where that is `out`. An element's sum has the same order whatever M,
    N and the number of threads.
    """
    kind = out or x.dtype
    run = function("product" if kind == x.dtype else "product_unrounded", x.dtype)
    assert run is not None and x.dtype == weight.dtype
    (M, K), N = x.shape, weight.shape[0]
    y = x.new_empty(M, N, dtype=kind) if K else x.new_zeros(M, N, dtype=kind)
    if y.numel() and K:
        run(M, N, K, x.data_ptr(), *x.stride(), weight.data_ptr(), *weight.stride(), y)
    return y
