"""The output layer owns the product with the vocabulary: p(y_i) = softmax(W_o t_i + b)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from rnnsearch.models.embeddings import Embedding
from rnnsearch.models.initialise import Init
from rnnsearch.tensors import at_least_fp32

CHUNK_NUMBERS = 1 << 20
"""Logits held at a time (4 MiB in fp32): the loss never holds B x I x V of them."""


class Output(nn.Module):
    """W_o [V, R] and b. `tied` shares W_o with an embedding table of the same shape."""

    def __init__(self, readout: int, vocabulary: int, tied: Embedding | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, readout)) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.empty(vocabulary))
        self.tied = tied is not None

    def initialise(self, init: Init) -> None:
        """Draw the parameters (a tied table is drawn as an embedding)."""
        if not self.tied:
            init.weight(self.weight)
        init.bias(self.bias)

    def logits(
        self, readout: Float[Tensor, "*rows R"], rows: Int[Tensor, "C"] | None = None
    ) -> Float[Tensor, "*rows C"]:
        """Unnormalised scores of every symbol, or of the symbols `rows` alone."""
        if rows is None:
            return linear(readout, self.weight, self.bias)
        return linear(readout, self.weight.index_select(0, rows), self.bias.index_select(0, rows))

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
        weight: Tensor = self.weight
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


def _product_type(x: Tensor) -> torch.dtype:
    """The type that matrix products of x run in here: autocast's, if it is on."""
    on = torch.is_autocast_enabled(x.device.type)
    return torch.get_autocast_dtype(x.device.type) if on else x.dtype


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy whose softmax and gradient are formed chunk by chunk in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, readout: Tensor, weight: Tensor, bias: Tensor, target: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        V = weight.shape[0]
        kind = _product_type(readout)
        x, W = readout.to(kind), weight.to(kind)
        needed = any(ctx.needs_input_grad[:3])
        d_x = torch.empty_like(x) if needed else x
        d_W = torch.zeros_like(weight) if needed else weight
        d_b = torch.zeros_like(bias) if needed else bias
        total = at_least_fp32(x.new_zeros(()))
        nll = torch.zeros_like(total)
        rows = max(1, CHUNK_NUMBERS // V)
        with torch.autocast(x.device.type, enabled=False):
            all_W, all_b = at_least_fp32(W.sum(0)), at_least_fp32(bias.sum())
            for begin in range(0, x.shape[0], rows):
                part, y = x[begin : begin + rows], target[begin : begin + rows, None]
                logits = at_least_fp32(torch.addmm(bias.to(kind), part, W.t()))
                logit_y = logits.gather(1, y)
                log_p = torch.log_softmax(logits, dim=1)
                log_p_y = log_p.gather(1, y)
                nll -= log_p_y.sum()
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
