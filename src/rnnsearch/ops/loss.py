"""The softmax loss of an output layer, computed in chunks of rows: the fast implementation of `Output.losses`.

`accel/fast_forwards.py` calls it, and `autotune_cases.py` times it. Arguments of native calls follow
`native/softmax_loss.cpp`. Tests: tests/models/test_native.py, tests/models/test_outputs.py.

Axes: M target tokens, R readout, V vocabulary, B sentences, I target positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rnnsearch.ops import autotune
from rnnsearch.ops.kernel_choice import runs_triton
from rnnsearch.ops.linear import operand, product, weight_gradient
from rnnsearch.ops.native.library import native_function
from rnnsearch.utils.tensors import at_least_fp32, matmul_dtype

CHUNK_BYTES = 1 << 24  # of logits that exist at once; the loss never has all [B, I, V] of them
GPU_CHUNK_BYTES = 1 << 28  # small products do not fill a GPU
# A smaller chunk would not pay: each adds to the gradient of all V rows of W, which costs as much as the logits of many
# rows.
MIN_CHUNK_ROWS = 128

NO_TARGET = -1
"""Target of a row without loss."""
SoftmaxLoss = Callable[[Tensor, Tensor, Tensor, float, Tensor | None], tuple[Tensor, Tensor]]
"""A function with the arguments and results of `torch_softmax_loss`."""


def cross_entropy(
    readout: Float[Tensor, "M R"],
    weight: Float[Tensor, "V R"],
    bias: Float[Tensor, "V"],
    target: Int[Tensor, "M"],
    smoothing: float,
    row_weights: Float[Tensor, "M"] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, "M"]]:
    """Return the sum of the tokens' cross-entropy with label smoothing, and each token's NLL, without gradient.

    Both are 0 for rows whose target is NO_TARGET. `row_weights` are factors of the rows in the sum, without a gradient.
    """
    if not torch.is_grad_enabled():
        # The function computes gradients of all inputs that require them, which a dev set does not need.
        readout, weight, bias = readout.detach(), weight.detach(), bias.detach()
    apply: Callable[..., tuple[Tensor, Tensor]] = _ChunkedCrossEntropy.apply
    return apply(readout, weight, bias, target, smoothing, row_weights)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy that computes its gradient in the forward pass, chunk by chunk, while the logits exist."""

    @staticmethod
    def forward(
        ctx: Any,
        readout: Tensor,
        weight: Tensor,
        bias: Tensor,
        target: Tensor,
        smoothing: float,
        row_weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        dtype = matmul_dtype(readout)
        x = readout.to(dtype)  # [M, R]
        W = operand(weight, dtype)  # [V, R]
        b = at_least_fp32(bias)
        needs_grad = any(ctx.needs_input_grad[:3])
        d_x = torch.empty_like(x) if needs_grad else None
        d_b = torch.zeros_like(b) if needs_grad else None
        d_W: Tensor | None = None
        # With weights, the gradient of the bias is computed below, and this one is not used.
        unweighted_d_b = d_b if row_weights is None or d_b is None else torch.zeros_like(d_b)
        softmax_loss = _choose_softmax_loss(readout, weight, dtype)
        total = b.new_zeros(())
        nll = b.new_empty(x.shape[0])
        chunk_bytes = GPU_CHUNK_BYTES if x.is_cuda else CHUNK_BYTES
        rows = chunk_rows(x.shape[0], W.shape[0] * x.element_size(), chunk_bytes)
        # All types are explicit here; autocast must not round the fp32 weights or sums.
        with torch.autocast(x.device.type, enabled=False):
            for start in range(0, x.shape[0], rows):
                chunk = slice(start, start + rows)
                logits = product(x[chunk], W, dtype)  # [rows, V]
                nll[chunk], losses = softmax_loss(logits, b, target[chunk], smoothing, unweighted_d_b)
                total += losses.sum() if row_weights is None else losses @ row_weights[chunk].to(losses.dtype)
                if d_x is not None and d_b is not None:
                    d_logits = logits  # overwritten by the loss
                    if row_weights is not None:
                        d_logits *= row_weights[chunk, None].to(d_logits.dtype)
                        d_b += d_logits.sum(0, dtype=b.dtype)
                    d_x[chunk] = product(d_logits, W.t(), dtype)
                    chunk_d_W = weight_gradient(d_logits, x[chunk], dtype)
                    # The gradient of the first chunk becomes the accumulator, which saves a pass over zeros [V, R].
                    d_W = chunk_d_W if d_W is None else d_W.add_(chunk_d_W)
        if needs_grad:
            # Without rows there was no chunk, so d_W is still None.
            ctx.save_for_backward(d_x, weight.new_zeros(weight.shape) if d_W is None else d_W, d_b)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_x, d_W, d_b = ctx.saved_tensors
        # The loss is a sum of all rows, so its gradient only scales theirs. The NLL (grads[1]) has no gradient.
        scale = grads[0]
        return d_x * scale.to(d_x.dtype), d_W * scale, d_b * scale, None, None, None


def _choose_softmax_loss(readout: Tensor, weight: Tensor, dtype: torch.dtype) -> SoftmaxLoss:
    """Return the fastest implementation of `torch_softmax_loss` for a device and type."""
    if has_native_loss(readout, weight) and autotune.implementation(autotune.SOFTMAX, dtype) == autotune.NATIVE:
        return native_softmax_loss
    if runs_triton(readout.device, weight.dtype, dtype):
        from rnnsearch.ops.triton_loss import triton_softmax_loss

        return triton_softmax_loss
    return torch_softmax_loss


def chunk_rows(rows: int, row_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return the rows per chunk: the fewest chunks of equal size that respect `chunk_bytes` or MIN_CHUNK_ROWS."""
    chunks = max(1, min(-(-rows * row_bytes // chunk_bytes), -(-rows // MIN_CHUNK_ROWS)))
    return max(1, -(-rows // chunks))


def torch_softmax_loss(
    logits: Tensor, bias: Tensor, target: Tensor, eps: float, d_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the NLL and the loss with label smoothing eps of each row of logits, [M] each.

    Args:
        logits: [M, V], without the bias. If `d_bias` is given, they are overwritten with the gradient of the sum of the
            losses: softmax - (1 - eps) onehot - eps / V, or 0 in rows without a target.
        d_bias: Gradient of the bias, which is added to.
    """
    V = bias.shape[0]
    log_p = torch.log_softmax(at_least_fp32(logits) + bias, dim=1)  # [M, V]
    has_target = target != NO_TARGET
    column = target.clamp_min(0)[:, None]
    nll = -log_p.gather(1, column)[:, 0] * has_target
    # -sum_v q_v log p_v with q = (1 - eps) onehot + eps / V (Szegedy et al. 2016).
    losses = nll if eps == 0.0 else (1 - eps) * nll - eps * log_p.mean(1) * has_target
    if d_bias is not None:
        # In place: log_p has the size of the logits and is not needed any more.
        gradient = log_p.exp_()
        gradient.scatter_add_(1, column, gradient.new_full((len(nll), 1), eps - 1.0))
        if eps > 0.0:
            gradient -= eps / V
        # The check would wait for another device, and tensors of FakeTensorMode have no values.
        if gradient.device.type != "cpu" or type(gradient) is not Tensor or not has_target.all():
            gradient *= has_target[:, None]
        d_bias += gradient.sum(0)
        logits.copy_(gradient)
    return nll, losses


def has_native_loss(readout: Tensor, weight: Tensor) -> bool:
    """Return True if native code supports these inputs: on the CPU, with fp32 weights."""
    if readout.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    return native_function("softmax_loss", matmul_dtype(readout)) is not None


def native_softmax_loss(
    logits: Tensor, bias: Tensor, target: Tensor, eps: float, d_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return `torch_softmax_loss` computed by native code."""
    M, V = logits.shape
    run = native_function("softmax_loss", logits.dtype)
    assert run is not None
    nll = bias.new_empty(M)
    losses = bias.new_empty(M)
    # An unused address takes the place of d_bias if there is none.
    run(M, V, logits, bias, target, float(eps), int(d_bias is not None), nll, losses, nll if d_bias is None else d_bias)
    return nll, losses
