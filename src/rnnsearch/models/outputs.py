"""The output layer owns the product with the vocabulary: p(y_i) = softmax(W_o t_i + b)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.config.outputs import SoftmaxOptions
from rnnsearch.config.registry import implements
from rnnsearch.models.layers import Embedding, parameter
from rnnsearch.utils.tensors import at_least_fp32

Losses = tuple[Float[Tensor, ""], Float[Tensor, "M"]]

LogitsFunction = Callable[[Tensor], Tensor]
"""Unnormalised scores [..., C] of readouts [..., R]."""


class OutputLayer(nn.Module, ABC):
    """From readouts to the probabilities of all target symbols, or of some."""

    vocabulary: int
    """How many symbols."""

    @abstractmethod
    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        """Unnormalised scores of the symbols `rows`, or of all, for many readouts."""

    def logits(
        self, readout: Float[Tensor, "*rows R"], rows: Int[Tensor, "C"] | None = None
    ) -> Float[Tensor, "*rows C"]:
        """Unnormalised scores of every symbol, or of the symbols `rows` alone."""
        return self.logits_function(rows)(readout)

    def log_probs(
        self, readout: Float[Tensor, "*rows R"], rows: Int[Tensor, "C"] | None = None
    ) -> Float[Tensor, "*rows C"]:
        """Log-probabilities, in fp32 at least, over all symbols or over `rows`."""
        return torch.log_softmax(at_least_fp32(self.logits(readout, rows)), dim=-1)


class PlainLoss(OutputLayer):
    """An output whose loss is of the readouts and their symbols alone."""

    @abstractmethod
    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float = 0.0,
        rows: Int[Tensor, "C"] | None = None,
    ) -> Losses:
        """Of M target symbols: the sum of the cross-entropy with label smoothing, and the NLL of each, which has no
        gradient. `rows`: see `Output`; an output without smoothing or rows is never given any."""


@implements(SoftmaxOptions)
class Output(PlainLoss):
    """W_o [V, R] and b. `tied` shares W_o with an embedding table of the same shape.

    Rows of W_o, tied or not, are drawn as vectors of words like an embedding's: Glorot's bound for a matrix [V, R]
    would shrink with the vocabulary, and learning would begin several times as slowly.
    `lexical` numbers at the end of a readout are the lexical model's, with a matrix W_l [V, lexical] of their own.
    """

    fast_forward: Callable[[Output, Tensor, Tensor, float, Tensor | None], Losses] | None = None
    sparse = False
    """Whether the gradients of W_o and W_l are of the rows alone that were asked for."""

    def __init__(self, readout: int, vocabulary: int, tied: Embedding | None = None, lexical: int = 0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.weight = parameter("embedding", vocabulary, readout) if tied is None else tied.weight
        self.lexical = parameter("weight", vocabulary, lexical) if lexical else None
        """W_l."""
        self.bias = parameter("bias", vocabulary)

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        weight, lexical, bias = self.select_rows(rows)

        def logits(readout: Tensor) -> Tensor:
            if lexical is None:
                return functional.linear(readout, weight, bias)
            own, beside = readout.split([weight.shape[1], lexical.shape[1]], dim=-1)
            return functional.linear(own, weight, bias) + functional.linear(beside, lexical)

        return logits

    def select_rows(self, rows: Int[Tensor, "C"] | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """W_o, W_l and b of some symbols, or all there is."""
        if rows is None:
            return self.weight, self.lexical, self.bias
        some = partial(functional.embedding, rows, sparse=self.sparse)
        lexical = None if self.lexical is None else some(self.lexical)
        return some(self.weight), lexical, self.bias.index_select(0, rows)

    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float = 0.0,
        rows: Int[Tensor, "C"] | None = None,
    ) -> Losses:
        """From all M x V log-probabilities, or by a chosen twin (`accel/registry.py`).

        With smoothing eps the target distribution is (1 - eps) on the symbol and eps / V on every symbol
        (Szegedy et al. 2016).

        With `rows`, sorted symbols of which all targets are, the softmax is over these alone (Jean et al. 2015, eq. 11,
        where the proposal is uniform over them, so that the importance weights are all the same).
        """
        if self.fast_forward is not None:
            return self.fast_forward(self, readout, target, smoothing, rows)
        log_p = self.log_probs(readout, rows)
        target = target if rows is None else torch.searchsorted(rows, target)
        nll = -log_p.gather(1, target[:, None])[:, 0]
        uniform = -log_p.mean(dim=1).sum()
        return (1 - smoothing) * nll.sum() + smoothing * uniform, nll.detach()

    def sampled_logits(
        self, readout: Float[Tensor, "M R"], target: Int[Tensor, "M"], others: Int[Tensor, "K"]
    ) -> tuple[Float[Tensor, "M"], Float[Tensor, "M K"]]:
        """The scores of M target symbols, and beside each those of `others`, which all share: of few rows of W_o."""
        M = len(target)
        weight, lexical, bias = self.select_rows(torch.cat([target, others]))
        both = weight if lexical is None else torch.cat([weight, lexical], dim=1)
        own = (readout * both[:M].to(readout.dtype)).sum(-1) + bias[:M]
        return at_least_fp32(own), at_least_fp32(functional.linear(readout, both[M:], bias[M:]))
