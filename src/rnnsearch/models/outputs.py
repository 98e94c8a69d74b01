"""The output layer owns the product with the vocabulary: p(y_i) = softmax(W_o t_i + b)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from rnnsearch.kernels.native import softmax_loss as native
from rnnsearch.kernels.products import product, weight_gradient
from rnnsearch.models.embeddings import Embedding
from rnnsearch.models.initialise import parameter
from rnnsearch.tensors import at_least_fp32, product_type

CHUNK_BYTES = 1 << 24
"""Of logits held at a time: the loss never holds B x I x V of them."""

Logits = Callable[[Tensor], Tensor]
"""Unnormalised scores [..., C] of readouts [..., R]."""


class Output(nn.Module):
    """W_o [V, R] and b. `tied` shares W_o with an embedding table of the same shape.

    Rows of W_o, tied or not, are drawn as vectors of words like an embedding's: Glorot's bound for a matrix [V, R]
    would shrink with the vocabulary, and learning would begin several times as slowly.
    `lexical` numbers at the end of a readout are the lexical model's, with a matrix W_l [V, lexical] of their own.
    """

    def __init__(self, readout: int, vocabulary: int, tied: Embedding | None = None, lexical: int = 0) -> None:
        super().__init__()
        self.weight = parameter("embedding", vocabulary, readout) if tied is None else tied.weight
        self.lexical = parameter("weight", vocabulary, lexical) if lexical else None
        """W_l."""
        self.bias = parameter("bias", vocabulary)

    def logits(
        self, readout: Float[Tensor, "*rows R"], rows: Int[Tensor, "C"] | None = None
    ) -> Float[Tensor, "*rows C"]:
        """Unnormalised scores of every symbol, or of the symbols `rows` alone."""
        own, beside = readout, None
        if self.lexical is not None:
            own, beside = readout.split([self.weight.shape[1], self.lexical.shape[1]], dim=-1)
        logits = linear(own, _rows(self.weight, rows), _rows(self.bias, rows))
        if self.lexical is None or beside is None:
            return logits
        return logits + linear(beside, _rows(self.lexical, rows))

    def over(self, rows: Int[Tensor, "C"] | None) -> Logits:
        """`logits` of the symbols `rows`, or of all, for many readouts."""
        return partial(self.logits, rows=rows)

    def log_probs(
        self, readout: Float[Tensor, "*rows R"], rows: Int[Tensor, "C"] | None = None
    ) -> Float[Tensor, "*rows C"]:
        """Log-probabilities, in fp32 at least, over all symbols or over `rows`."""
        return torch.log_softmax(at_least_fp32(self.logits(readout, rows)), dim=-1)

    def loss(
        self, readout: Float[Tensor, "M R"], target: Int[Tensor, "M"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Summed cross-entropy of M target symbols: with label smoothing (differentiable) and without (NLL).

        With smoothing eps the target distribution is (1 - eps) on the symbol and eps / V on every symbol
        (Szegedy et al. 2016). The plain twin is `plain_loss`.
        """
        total, nll = self.losses(readout, target, smoothing)
        return total, nll.sum()

    def losses(
        self, readout: Float[Tensor, "M R"], target: Int[Tensor, "M"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "M"]]:
        """The sum of `loss`, and the NLL of each symbol, which has no gradient."""
        weight: Tensor = self.weight if self.lexical is None else torch.cat([self.weight, self.lexical], dim=1)
        bias: Tensor = self.bias
        if not torch.is_grad_enabled():
            # The function forms gradients of whatever requires them; on a dev set that is work for nothing.
            readout, weight, bias = readout.detach(), weight.detach(), bias.detach()
        apply: Callable[..., tuple[Tensor, Tensor]] = _ChunkedCrossEntropy.apply
        return apply(readout, weight, bias, target, smoothing)

    def plain_loss(
        self, readout: Float[Tensor, "M R"], target: Int[Tensor, "M"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The definition of `loss`, which holds all M x V log-probabilities."""
        log_p = self.log_probs(readout)
        nll = -log_p.gather(1, target[:, None]).sum()
        uniform = -log_p.mean(dim=1).sum()
        return (1 - smoothing) * nll + smoothing * uniform, nll.detach()


def _rows(matrix: Tensor, rows: Tensor | None) -> Tensor:
    """Some rows of a matrix, or the matrix."""
    return matrix if rows is None else matrix.index_select(0, rows)


def _chunk_rows(rows: int, row_bytes: int) -> int:
    """Rows of each of the fewest chunks of equal size within CHUNK_BYTES."""
    chunks = max(1, -(-rows * row_bytes // CHUNK_BYTES))
    return max(1, -(-rows // chunks))


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy whose softmax and gradient are formed chunk by chunk in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, readout: Tensor, weight: Tensor, bias: Tensor, target: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        kind = product_type(readout)
        x, W, b = readout.to(kind), weight.to(kind), at_least_fp32(bias)
        needed = any(ctx.needs_input_grad[:3])
        d_x = torch.empty_like(x) if needed else None
        d_W: Tensor | None = None
        d_b = torch.zeros_like(b) if needed else None
        chunk = native.softmax_loss if native.can_run(readout, weight) else softmax_loss
        total, nll = b.new_zeros(()), b.new_empty(x.shape[0])
        rows = _chunk_rows(x.shape[0], W.shape[0] * x.element_size())
        with torch.autocast(x.device.type, enabled=False):
            for begin in range(0, x.shape[0], rows):
                part = x[begin : begin + rows]
                logits = product(part, W)
                nll[begin : begin + rows], losses = chunk(logits, b, target[begin : begin + rows], smoothing, d_b)
                total += losses.sum()
                if d_x is not None:
                    d_x[begin : begin + rows] = product(logits, W.t())
                    share = weight_gradient(logits, part)
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
