"""What the twins share: who computes matrix products, and the gradients of the GRU's gates."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnsearch.kernels.native import choice
from rnnsearch.kernels.native import product as native
from rnnsearch.kernels.native.choice import NATIVE, ONEDNN, PRODUCT, TORCH, WEIGHT_GRADIENT
from rnnsearch.tensors import at_least_fp32


def product(
    x: Tensor, weight: Tensor, kind: torch.dtype, out: torch.dtype | None = None, bias: Tensor | None = None
) -> Tensor:
    """x weight^T + bias, [M, K], [N, K] and [N] to [M, N], without a gradient, by the way that was the fastest. Numbers
    of `kind`, to which x and weight are rounded, are multiplied and come out, or fp32 where that is `out`."""
    chosen = way(PRODUCT, x.device, kind)
    if chosen == NATIVE:
        return native.product(x, weight, kind, out, bias)
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
        return native.product(d, rows, kind, torch.float32)
    return at_least_fp32(_of_library(chosen, d.to(kind), rows.to(kind)))


def _of_library(chosen: str, x: Tensor, weight: Tensor) -> Tensor:
    return (by_onednn if chosen == ONEDNN else by_torch)(x, weight)


def way(kernel: str, device: torch.device, kind: torch.dtype) -> str:
    """Who computes products of a type."""
    if device.type != "cpu":
        return TORCH
    chosen = choice.way(kernel, kind)
    return TORCH if chosen == NATIVE and not native.can_run(kind) else chosen


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
