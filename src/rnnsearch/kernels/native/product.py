"""Products of matrices in C++ (`product.cpp`): one kernel for all shapes; a library builds one for each."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnsearch.kernels.native.library import function


def can_run(kind: torch.dtype) -> bool:
    """Whether the compiled function is there for a type."""
    return function("product", kind) is not None


def product(
    x: Tensor, weight: Tensor, kind: torch.dtype, out: torch.dtype | None = None, bias: Tensor | None = None
) -> Tensor:
    """x weight^T + bias of [M, K], [N, K] and [N] to [M, N], without a gradient. Numbers of `kind` are multiplied: what
    is wider is rounded to it on the way; sums are in fp32, and rounded to `kind` again but where `out` is fp32.

    x and weight may have any layout. An element's sum has the same order whatever M, N and the number of threads.
    """
    out = out or kind
    run = function("product" if out == kind else "product_unrounded", kind)
    assert run is not None and {x.dtype, weight.dtype, out} <= {kind, torch.float32}
    (M, K), N = x.shape, weight.shape[0]
    given = None if bias is None else bias.float().contiguous()
    if K == 0:
        return x.new_zeros(M, N, dtype=out) if given is None else given.to(out).repeat(M, 1)
    y = x.new_empty(M, N, dtype=out)
    if y.numel():
        of_x, of_weight = ((t.data_ptr(), *t.stride(), int(t.dtype == torch.float32)) for t in (x, weight))
        run(M, N, K, *of_x, *of_weight, 0 if given is None else given.data_ptr(), y)
    return y
