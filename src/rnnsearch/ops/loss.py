"""The loss of the output layer in chunks: the fast twin of `Output.losses`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rnnsearch.ops import autotune
from rnnsearch.ops.linear import operand, product, weight_gradient
from rnnsearch.ops.native.library import function
from rnnsearch.utils.tensors import at_least_fp32, product_type

# Softmax, loss and gradient of a chunk of logits in C++ (`softmax_loss.cpp`).


def can_run(readout: Tensor, weight: Tensor) -> bool:
    """Whether the compiled function is there for logits of these: on the CPU, over fp32 weights."""
    if readout.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    return function("softmax_loss", product_type(readout)) is not None


def native_softmax_loss(
    logits: Tensor, bias: Tensor, target: Tensor, eps: float, d_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """NLL [M] of each row of logits [M, V] (without the bias), and its loss with label smoothing eps [M].

    With `d_bias`, which is added to, the logits become d(sum of losses) / dlogits.
    """
    M, V = logits.shape
    run = function("softmax_loss", logits.dtype)
    assert run is not None
    nll, smoothed = bias.new_empty(M), bias.new_empty(M)
    wanted = d_bias is not None
    run(M, V, logits, bias, target, float(eps), int(wanted), nll, smoothed, d_bias if wanted else nll)
    return nll, smoothed


CHUNK_BYTES = 1 << 24
"""Of logits held at a time: the loss never holds B x I x V of them."""
LEAST_ROWS = 128
"""Of a chunk all the same: each adds to the gradient of all V rows of W, which costs as much as many rows' logits."""


def cross_entropy(
    readout: Float[Tensor, "M R"],
    weight: Float[Tensor, "V R"],
    bias: Float[Tensor, "V"],
    target: Int[Tensor, "M"],
    smoothing: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, "M"]]:
    """The sum of the symbols' cross-entropy with label smoothing, and the NLL of each, which has no gradient."""
    if not torch.is_grad_enabled():
        # The function forms gradients of whatever requires them; on a dev set that is work for nothing.
        readout, weight, bias = readout.detach(), weight.detach(), bias.detach()
    apply: Callable[..., tuple[Tensor, Tensor]] = _ChunkedCrossEntropy.apply
    return apply(readout, weight, bias, target, smoothing)


def chunk_rows(rows: int, row_bytes: int) -> int:
    """Rows of each of the fewest chunks of equal size within CHUNK_BYTES, or of LEAST_ROWS."""
    chunks = max(1, min(-(-rows * row_bytes // CHUNK_BYTES), -(-rows // LEAST_ROWS)))
    return max(1, -(-rows // chunks))


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy whose softmax and gradient are formed chunk by chunk in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, readout: Tensor, weight: Tensor, bias: Tensor, target: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        kind = product_type(readout)
        x, W, b = readout.to(kind), operand(weight, kind), at_least_fp32(bias)
        needed = any(ctx.needs_input_grad[:3])
        d_x = torch.empty_like(x) if needed else None
        d_W: Tensor | None = None
        d_b = torch.zeros_like(b) if needed else None
        own = can_run(readout, weight) and autotune.way(autotune.SOFTMAX, kind) == autotune.NATIVE
        chunk = native_softmax_loss if own else softmax_loss
        total, nll = b.new_zeros(()), b.new_empty(x.shape[0])
        rows = chunk_rows(x.shape[0], W.shape[0] * x.element_size())
        with torch.autocast(x.device.type, enabled=False):
            for begin in range(0, x.shape[0], rows):
                part = x[begin : begin + rows]
                logits = product(part, W, kind)
                nll[begin : begin + rows], losses = chunk(logits, b, target[begin : begin + rows], smoothing, d_b)
                total += losses.sum()
                if d_x is not None:
                    d_x[begin : begin + rows] = product(logits, W.t(), kind)
                    share = weight_gradient(logits, part, kind)
                    d_W = share if d_W is None else d_W.add_(share)
        if needed:
            ctx.save_for_backward(d_x, weight.new_zeros(weight.shape) if d_W is None else d_W, d_b)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_x, d_W, d_b = ctx.saved_tensors
        scale = grads[0]
        return d_x * scale.to(d_x.dtype), d_W * scale, d_b * scale, None, None


def softmax_loss(
    logits: Tensor, bias: Tensor, target: Tensor, eps: float, d_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """NLL [M] of each row of logits [M, V] (without the bias), and its loss with label smoothing eps [M].

    With `d_bias`, which is added to, the logits become d(sum of losses) / dlogits:
    softmax - (1 - eps) onehot - eps / V. The native twin is `native.softmax_loss`.
    """
    V = bias.shape[0]
    log_p = torch.log_softmax(at_least_fp32(logits) + bias, dim=1)
    nll = -log_p.gather(1, target[:, None])[:, 0]
    losses = nll if eps == 0.0 else (1 - eps) * nll - eps * log_p.mean(1)
    if d_bias is not None:
        gradient = log_p.exp_()
        gradient.scatter_add_(1, target[:, None], gradient.new_full((len(nll), 1), eps - 1.0))
        if eps > 0.0:
            gradient -= eps / V
        d_bias += gradient.sum(0)
        logits.copy_(gradient)
    return nll, losses
