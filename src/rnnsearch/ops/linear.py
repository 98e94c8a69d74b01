"""Matrix products by the fastest implementation, and packed weights for search.

Products are computed by native code (`product.cpp`: one kernel for all shapes) or by a library (one kernel per shape),
whichever is faster on this machine (`autotune.py`).

`models/layers.py` calls `linear`, the manual backward passes of `ops` call `product` and `weight_gradient`, and
`accel/search.py` packs weights.

In bf16, both paths sum in fp32. Native products can be returned in fp32 as they are; a library rounds them to bf16
first, so that an fp32 result only has the precision of bf16.

`autotune_cases.py` times the products. Rounding in bf16 must agree between native code and libraries:
tests/models/test_linear.py, tests/models/test_native.py.

Axes: M rows, K inputs, N outputs of a product; D state; in a layer, E inputs and G outputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int32, c_int64, c_void_p
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from rnnsearch.engine.structs import DType, PackedMatrix
from rnnsearch.ops import autotune
from rnnsearch.ops.autotune import NATIVE, ONEDNN, PRODUCT, TORCH, WEIGHT_GRADIENT
from rnnsearch.ops.native.library import native_function
from rnnsearch.utils.tensors import at_least_fp32, matmul_dtype

MIN_NATIVE_ROWS = 256  # fewer rows do not pay for packing the weights for each product


def linear(
    x: Float[Tensor, "*rows E"], weight: Float[Tensor, "G E"], bias: Float[Tensor, "G"] | None = None
) -> Float[Tensor, "*rows G"]:
    """Return x W^T + b like `torch.nn.functional.linear`, with native products for many rows if they are faster."""
    has_many_rows = x.numel() >= MIN_NATIVE_ROWS * x.shape[-1]
    if not (has_many_rows and weight.dtype == torch.float32 and product_is_native(x.device, matmul_dtype(x))):
        return functional.linear(x, weight, bias)
    apply: Callable[..., Tensor] = _Linear.apply
    return apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    """`linear` with native products in the forward and the backward pass.

    Gradients of weight and bias are in at least fp32; that of x is in the type of x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dtype = matmul_dtype(x)
        rows = x.to(dtype).reshape(-1, x.shape[-1])
        # The rounded rows, not x: in bf16 they take half the memory.
        ctx.save_for_backward(rows, weight)
        ctx.x_shape = x.shape
        ctx.types = x.dtype, dtype
        return product(rows, weight, dtype, bias=bias).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        x_dtype, dtype = ctx.types
        x_needs_grad, weight_needs_grad, bias_needs_grad = ctx.needs_input_grad
        d_y = grads[0].reshape(-1, weight.shape[0])
        d_x = d_weight = d_bias = None
        if x_needs_grad:
            # If x was in fp32, native code does not round its gradient to bf16 on the way.
            out_dtype = dtype if x_dtype == dtype else torch.float32
            d_x = product(d_y, weight.t(), dtype, out_dtype).to(x_dtype).view(ctx.x_shape)
        if weight_needs_grad:
            d_weight = weight_gradient(d_y, rows, dtype)
        if bias_needs_grad:
            # In fp32: a sum of many rows in bf16 would lose small terms.
            d_bias = d_y.sum(0, dtype=torch.float32)
        return d_x, d_weight, d_bias


# Products without gradients.


def product(
    x: Tensor, weight: Tensor, dtype: torch.dtype, out_dtype: torch.dtype | None = None, bias: Tensor | None = None
) -> Tensor:
    """Return x W^T + b [M, N] for x [M, K] and W [N, K].

    Args:
        x: [M, K].
        weight: W [N, K].
        dtype: Type that x and W are rounded to.
        out_dtype: Type of the result: `dtype` by default, or fp32. A library rounds to `dtype` first, then widens.
        bias: b [N].
    """
    chosen = product_implementation(PRODUCT, x.device, dtype)
    if chosen == NATIVE:
        return native_product(x, weight, dtype, out_dtype, bias)
    y = _library_product(chosen, x.to(dtype), weight.to(dtype)).to(out_dtype or dtype)
    return y if bias is None else y.add_(bias)


def operand(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight [N, K] for several calls of `product`, rounded if a library would round it at each call."""
    return weight if product_is_native(weight.device, dtype) else weight.to(dtype)


def weight_gradient(d_y: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient of W [N, K] in y = W x, summed over all rows, in at least fp32.

    A library rounds it to `dtype` first, see the module docstring.

    Args:
        d_y: Gradient of y [*rows, N].
        x: Inputs [*rows, K].
        dtype: Type that both are rounded to.
    """
    columns_d_y = d_y.flatten(0, -2).t()  # [N, rows]
    columns_x = x.flatten(0, -2).t()  # [K, rows]
    chosen = product_implementation(WEIGHT_GRADIENT, d_y.device, dtype)
    if chosen == NATIVE:
        return native_product(columns_d_y, columns_x, dtype, torch.float32)
    return at_least_fp32(_library_product(chosen, columns_d_y.to(dtype), columns_x.to(dtype)))


def product_implementation(kernel: str, device: torch.device, dtype: torch.dtype) -> str:
    """Return the implementation (NATIVE, ONEDNN or TORCH) of a kernel (PRODUCT or WEIGHT_GRADIENT) to use."""
    if device.type != "cpu":
        return TORCH
    chosen = autotune.implementation(kernel, dtype)
    # `autotune.forced` may request native code where there is none.
    return TORCH if chosen == NATIVE and not has_native_product(dtype) else chosen


def product_is_native(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if native code computes the products of a type."""
    return product_implementation(PRODUCT, device, dtype) == NATIVE


def has_native_product(dtype: torch.dtype) -> bool:
    """Return True if there is a native product for a type."""
    return native_function("product", dtype) is not None


def native_product(
    x: Tensor, weight: Tensor, dtype: torch.dtype, out_dtype: torch.dtype | None = None, bias: Tensor | None = None
) -> Tensor:
    """Return `product` [M, N] computed by native code, for x [M, K] and W [N, K].

    x and W are in `dtype` or fp32, in any layout, and are rounded to `dtype` on the way. Sums are in fp32. The order of
    summation of an element does not depend on M, N and the number of threads.
    """
    out_dtype = out_dtype or dtype
    run = native_function("product" if out_dtype == dtype else "product_unrounded", dtype)
    assert run is not None and {x.dtype, weight.dtype, out_dtype} <= {dtype, torch.float32}
    M, K = x.shape
    N = weight.shape[0]
    fp32_bias = None if bias is None else bias.float().contiguous()
    # Without summands, there is nothing to pack: all products are 0.
    if K == 0:
        return x.new_zeros(M, N, dtype=out_dtype) if fp32_bias is None else fp32_bias.to(out_dtype).repeat(M, 1)
    y = x.new_empty(M, N, dtype=out_dtype)
    if y.numel():
        # Address, strides, and whether the values are in fp32.
        x_arguments = (x.data_ptr(), *x.stride(), int(x.dtype == torch.float32))
        weight_arguments = (weight.data_ptr(), *weight.stride(), int(weight.dtype == torch.float32))
        run(M, N, K, *x_arguments, *weight_arguments, 0 if fp32_bias is None else fp32_bias.data_ptr(), y)
    return y


def _library_product(chosen: str, x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T [M, N] for x [M, K] and W [N, K], both in the type of the result."""
    return onednn_product(x, weight) if chosen == ONEDNN else torch_product(x, weight)


def torch_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T [M, N] by the library that PyTorch chooses."""
    return x @ weight.t()


def onednn_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T [M, N] in fp32 by oneDNN; PyTorch's default, MKL, is half as fast on non-Intel CPUs."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, without_gaps(weight), None, "none", [], "")
    return y


def without_gaps(weight: Tensor) -> Tensor:
    """Return a matrix [N, K] without gaps in its layout; oneDNN is 1000 times slower on columns of a wider one."""
    if weight.is_contiguous() or weight.t().is_contiguous():
        return weight
    return weight.t().contiguous().t() if weight.stride(0) == 1 else weight.contiguous()


def has_onednn() -> bool:
    """Return True if this PyTorch has oneDNN."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


# Packed weights and the arguments of native code for search.


def pointer(x: Tensor) -> c_void_p:
    """Return the address of the first value of a contiguous tensor."""
    return c_void_p(x.data_ptr())


def num_threads() -> c_int32:
    """Return the number of threads that PyTorch uses."""
    return c_int32(torch.get_num_threads())


class PackedWeight(PackedMatrix):
    """A packed weight [outputs, inputs] and its bias, made from tensors and applied to tensors."""

    def __init__(self, native: ctypes.CDLL, weight: Tensor, bias: Tensor | None, dtype: DType) -> None:
        bias_array = None if bias is None else bias.detach().float().numpy()
        super().__init__(native, weight.detach().float().contiguous().numpy(), bias_array, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W^T + b for x [..., inputs]."""
        # Inputs are in fp32 for weights of any type: native code rounds or quantises them itself.
        rows = x.reshape(-1, self.struct.inputs).float().contiguous()
        y = rows.new_empty(rows.shape[0], self.struct.outputs)
        self._native.linear(byref(self.struct), pointer(rows), c_int64(rows.shape[0]), pointer(y), num_threads())
        return y.view(*x.shape[:-1], -1)
