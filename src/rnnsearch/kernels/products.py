"""What the twins share: who computes matrix products, and the gradients of the GRU's gates."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rnnsearch.kernels.native import product as native
from rnnsearch.tensors import at_least_fp32


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T, [M, K] and [N, K] of the same type to [M, N], without a gradient.

    In native code where `own_product` says so. Else by PyTorch, whose default library for fp32 products on CPUs (MKL)
    runs at half the speed of oneDNN where the processor is not Intel's; there oneDNN computes it.
    """
    if own_product(x.device, x.dtype):
        return native.product(x, weight)
    if x.dtype == torch.float32 and x.device.type == "cpu" and _slow_default():
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        return found
    return x @ weight.t()


def weight_gradient(d_y: Tensor, x: Tensor) -> Tensor:
    """d W [N, K] of y = W x over all rows at once, from d y [*rows, N] and x [*rows, K]: the sum of d_y x^T, in fp32
    at least."""
    d, rows = d_y.flatten(0, -2).t(), x.flatten(0, -2).t()
    if own_product(d.device, d.dtype):
        return native.product(d, rows, torch.float32)
    return at_least_fp32(product(d, rows))


def own_product(device: torch.device, kind: torch.dtype) -> bool:
    """Whether products of a type are native code's: on CPUs, in fp32 only where PyTorch's default is slow."""
    return device.type == "cpu" and (kind != torch.float32 or _slow_default()) and native.can_run(kind)


@lru_cache(maxsize=1)
def _slow_default() -> bool:
    """Whether fp32 products are faster in oneDNN: asked of the processor, not of a clock, so that a resumed run does
    what the first did."""
    if not (torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "AMD" in platform.processor()


def gru_weight_gradients(d_gates: Tensor, before: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """d of U_z above U_r, and of U, over all rows at once: from d of the pre-activations of z, r and the candidate, the
    states h that the gates read, and r * h."""
    D = before.shape[-1]
    return weight_gradient(d_gates[..., : 2 * D], before), weight_gradient(d_gates[..., 2 * D :], reset)


class GateGradients(NamedTuple):
    """gates: d of the pre-activations of z, r and the candidate, [N, 3 D], in the products' type.

    reset: d of r * h [N, D]. state: the part of d h that goes past the recurrent gates' product [N, D].
    """

    gates: Tensor
    reset: Tensor
    state: Tensor


def gru_backward(
    d_new: Tensor, h: Tensor, gates: Tensor, candidate: Tensor, keep: Tensor | None, U: Tensor
) -> GateGradients:
    """Backward through h' = h + z * (h~ - h), h~ = tanh(. + U [r * h]) of Bahdanau et al.'s GRU.

    d_new: [N, D], d of h'. gates: [N, 2 D], z and r. keep: [N, 1], 0 where the step left the state as it was.
    """
    z, r = gates.chunk(2, dim=-1)
    used = z if keep is None else z * keep
    d_candidate = d_new * used * (1 - candidate * candidate)
    d_z = d_new * (candidate - h) * used * (1 - z)
    d_reset = d_candidate.to(U.dtype) @ U
    d_r = d_reset * h * r * (1 - r)
    pre = torch.cat([d_z, d_r, d_candidate], dim=-1).to(U.dtype)
    return GateGradients(pre, d_reset, d_new * (1 - used) + d_reset * r)
