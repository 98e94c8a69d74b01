"""The output layer owns the product with the vocabulary: p(y_i) = softmax(W_o t_i + b)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from rnnsearch.models.embeddings import Embedding
from rnnsearch.models.fused.products import product_type
from rnnsearch.models.initialise import Init
from rnnsearch.tensors import at_least_fp32

CHUNK_NUMBERS = 1 << 20
"""Logits held at a time (4 MiB in fp32): the loss never holds B x I x V of them."""


class Output(nn.Module):
    """W_o [V, R] and b. `tied` shares W_o with an embedding table of the same shape.

    `lexical` numbers at the end of a readout are the lexical model's, with a matrix W_l [V, lexical] of their own.
    """

    def __init__(self, readout: int, vocabulary: int, tied: Embedding | None = None, lexical: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, readout)) if tied is None else tied.weight
        self.lexical = nn.Parameter(torch.empty(vocabulary, lexical)) if lexical else None
        """W_l."""
        self.bias = nn.Parameter(torch.empty(vocabulary))
        self.tied = tied is not None

    def initialise(self, init: Init) -> None:
        """Draw the parameters (a tied table is drawn as an embedding)."""
        if not self.tied:
            init.weight(self.weight)
        if self.lexical is not None:
            init.weight(self.lexical)
        init.bias(self.bias)

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


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy whose softmax and gradient are formed chunk by chunk in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, readout: Tensor, weight: Tensor, bias: Tensor, target: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        V = weight.shape[0]
        kind = product_type(readout)
        x, W = readout.to(kind), weight.to(kind)
        needed = any(ctx.needs_input_grad[:3])
        d_x = torch.empty_like(x) if needed else x
        d_W = torch.zeros_like(weight) if needed else weight
        d_b = torch.zeros_like(bias) if needed else bias
        total = at_least_fp32(x.new_zeros(()))
        nll = total.new_empty(x.shape[0])
        rows = max(1, CHUNK_NUMBERS // V)
        with torch.autocast(x.device.type, enabled=False):
            all_W, all_b = at_least_fp32(W.sum(0)), at_least_fp32(bias.sum())
            for begin in range(0, x.shape[0], rows):
                part, y = x[begin : begin + rows], target[begin : begin + rows, None]
                logits = at_least_fp32(torch.addmm(bias.to(kind), part, W.t()))
                logit_y = logits.gather(1, y)
                log_p = torch.log_softmax(logits, dim=1)
                log_p_y = log_p.gather(1, y)
                nll[begin : begin + rows] = -log_p_y[:, 0]
                total -= (1 - smoothing) * log_p_y.sum()
                if smoothing > 0:
                    # mean_v log p_v = mean_v logit_v - log Z, without a pass over all v
                    mean_logit = (at_least_fp32(part) @ all_W + all_b) / V
                    total += smoothing * (logit_y - log_p_y - mean_logit[:, None]).sum()
                if needed:
                    # d/dlogits = softmax - (1 - eps) onehot - eps / V; the last term, the same for all, is below
                    grad = log_p.exp_()
                    grad.scatter_add_(1, y, grad.new_full(y.shape, smoothing - 1.0))
                    d_b += grad.sum(0)
                    grad = grad.to(kind)
                    torch.mm(grad, W, out=d_x[begin : begin + rows])
                    d_W += grad.t() @ part
            if needed and smoothing > 0:
                d_x -= (smoothing / V) * all_W.to(kind)
                d_W -= (smoothing / V) * at_least_fp32(x).sum(0)
                d_b -= smoothing / V * x.shape[0]
        ctx.save_for_backward(d_x, d_W, d_b)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_x, d_W, d_b = ctx.saved_tensors
        scale = grads[0]
        return d_x * scale.to(d_x.dtype), d_W * scale, d_b * scale, None, None
