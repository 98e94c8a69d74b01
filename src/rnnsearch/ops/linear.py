"""What the twins share: who computes matrix products, and the gradients of the GRU's gates."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int32, c_int64, c_void_p
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from rnnsearch.engine.structs import Kind, Laid
from rnnsearch.ops import autotune
from rnnsearch.ops.autotune import NATIVE, ONEDNN, PRODUCT, TORCH, WEIGHT_GRADIENT
from rnnsearch.ops.native.library import function
from rnnsearch.utils.tensors import at_least_fp32, product_type

# Weights laid out once for native products, and what every call of native code needs.


def at(x: Tensor) -> c_void_p:
    """The address of a contiguous tensor's numbers."""
    return c_void_p(x.data_ptr())


def threads() -> c_int32:
    """As many threads as torch uses."""
    return c_int32(torch.get_num_threads())


class Packed(Laid):
    """A weight [outputs, inputs] and its bias, laid out for native products of one kind."""

    def __init__(self, native: ctypes.CDLL, weight: Tensor, bias: Tensor | None, kind: Kind) -> None:
        rows = None if bias is None else bias.detach().float().numpy()
        super().__init__(native, weight.detach().float().contiguous().numpy(), rows, kind)

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b of rows of any number of axes."""
        rows = x.reshape(-1, self.matrix.inputs).float().contiguous()
        y = rows.new_empty(rows.shape[0], self.matrix.outputs)
        self._native.linear(byref(self.matrix), at(rows), c_int64(rows.shape[0]), at(y), threads())
        return y.view(*x.shape[:-1], -1)


# Products of matrices in C++ (`product.cpp`): one kernel for all shapes; a library builds one for each.


def can_run(kind: torch.dtype) -> bool:
    """Whether the compiled function is there for a type."""
    return function("product", kind) is not None


def native_product(
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


def product(
    x: Tensor, weight: Tensor, kind: torch.dtype, out: torch.dtype | None = None, bias: Tensor | None = None
) -> Tensor:
    """x weight^T + bias, [M, K], [N, K] and [N] to [M, N], without a gradient, by the way that was the fastest. Numbers
    of `kind`, to which x and weight are rounded, are multiplied and come out, or fp32 where that is `out`."""
    chosen = way(PRODUCT, x.device, kind)
    if chosen == NATIVE:
        return native_product(x, weight, kind, out, bias)
    y = _of_library(chosen, x.to(kind), weight.to(kind)).to(out or kind)
    return y if bias is None else y.add_(bias)


def operand(weight: Tensor, kind: torch.dtype) -> Tensor:
    """A weight for several calls of `product`: a library would round it at each."""
    return weight if own_product(weight.device, kind) else weight.to(kind)


def weight_gradient(d_y: Tensor, x: Tensor, kind: torch.dtype) -> Tensor:
    """d W [N, K] of y = W x over all rows at once, from d y [*rows, N] and x [*rows, K]: the sum of d_y x^T, numbers of
    `kind` multiplied, in fp32 at least."""
    d, rows = d_y.flatten(0, -2).t(), x.flatten(0, -2).t()
    chosen = way(WEIGHT_GRADIENT, d.device, kind)
    if chosen == NATIVE:
        return native_product(d, rows, kind, torch.float32)
    return at_least_fp32(_of_library(chosen, d.to(kind), rows.to(kind)))


def _of_library(chosen: str, x: Tensor, weight: Tensor) -> Tensor:
    return (by_onednn if chosen == ONEDNN else by_torch)(x, weight)


def way(kernel: str, device: torch.device, kind: torch.dtype) -> str:
    """Who computes products of a type."""
    if device.type != "cpu":
        return TORCH
    chosen = autotune.way(kernel, kind)
    return TORCH if chosen == NATIVE and not can_run(kind) else chosen


def own_product(device: torch.device, kind: torch.dtype) -> bool:
    """Whether products of a type are native code's."""
    return way(PRODUCT, device, kind) == NATIVE


def by_torch(x: Tensor, weight: Tensor) -> Tensor:
    """As PyTorch would."""
    return x @ weight.t()


def by_onednn(x: Tensor, weight: Tensor) -> Tensor:
    """In fp32: PyTorch's default library on CPUs (MKL) runs at half of its speed where the processor is not Intel's."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, dense(weight), None, "none", [], "")
    return found


def dense(weight: Tensor) -> Tensor:
    """A matrix without gaps, in its layout: oneDNN takes a thousand times longer for a part of a wider one."""
    if weight.is_contiguous() or weight.t().is_contiguous():
        return weight
    return weight.t().contiguous().t() if weight.stride(0) == 1 else weight.contiguous()


def has_onednn() -> bool:
    """Whether this torch has it."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def gru_weight_gradients(d_gates: Tensor, before: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """d of U_z above U_r, and of U, over all rows at once: from d of the pre-activations of z, r and the candidate, the
    states h that the gates read, and r * h."""
    D = before.shape[-1]
    kind = d_gates.dtype
    return weight_gradient(d_gates[..., : 2 * D], before, kind), weight_gradient(d_gates[..., 2 * D :], reset, kind)


def gru_backward(
    d_new: Tensor, h: Tensor, gates: Tensor, candidate: Tensor, keep: Tensor | None, U: Tensor
) -> tuple[Tensor, Tensor]:
    """Backward through h' = h + z * (h~ - h), h~ = tanh(. + U [r * h]) of Bahdanau et al.'s GRU: d of what z, r and the
    candidate are functions of [N, 3 D], in the products' type, and the part of d h that goes past the recurrent gates'
    product [N, D].

    d_new: [N, D], d of h'. gates: [N, 2 D], z and r. keep: [N, 1], 0 where the step left the state as it was.
    """
    z, r = gates.chunk(2, dim=-1)
    used = z if keep is None else z * keep
    d_candidate = d_new * used * (1 - candidate * candidate)
    d_z = d_new * (candidate - h) * used * (1 - z)
    d_reset = d_candidate.to(U.dtype) @ U
    d_r = d_reset * h * r * (1 - r)
    pre = torch.cat([d_z, d_r, d_candidate], dim=-1).to(U.dtype)
    return pre, d_new * (1 - used) + d_reset * r


# y = W x + b, with its three products where they are fastest.

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
