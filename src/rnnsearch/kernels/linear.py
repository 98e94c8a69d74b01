"""y = W x + b, with its three products where they are fastest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from rnnsearch.kernels.products import own_product, product, weight_gradient
from rnnsearch.tensors import product_type

ROWS = 256
"""Fewer rows do not pay for laying out the weights anew."""


def linear(
    x: Float[Tensor, "*rows E"], weight: Float[Tensor, "G E"], bias: Float[Tensor, "G"] | None = None
) -> Float[Tensor, "*rows G"]:
    """`torch.nn.functional.linear`; for many rows in native code where that is there."""
    many = x.numel() >= ROWS * x.shape[-1]
    if not (many and weight.dtype == torch.float32 and own_product(x.device, product_type(x))):
        return functional.linear(x, weight, bias)
    apply: Callable[..., Tensor] = _Linear.apply
    return apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        kind = product_type(x)
        rows = x.to(kind).reshape(-1, x.shape[-1])
        ctx.save_for_backward(rows, weight)
        ctx.x = x.shape, x.dtype, kind
        return product(rows, weight, kind, bias=bias).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        shape, type_of_x, kind = ctx.x
        d_y = grads[0].reshape(-1, weight.shape[0])
        to_x, to_weight, to_bias = ctx.needs_input_grad
        out = kind if type_of_x == kind else torch.float32
        d_x = product(d_y, weight.t(), kind, out).to(type_of_x).view(shape) if to_x else None
        d_weight = weight_gradient(d_y, rows, kind) if to_weight else None
        d_bias = d_y.sum(0, dtype=torch.float32) if to_bias else None
        return d_x, d_weight, d_bias
