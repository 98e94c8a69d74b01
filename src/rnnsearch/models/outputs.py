"""Output layers: the product with the vocabulary, p(y_i) = softmax(W_o t_i + b), and the loss over it.

Outputs that choose a class of tokens first are in `class_outputs.py`, those that copy or point in `copying.py`.

`TranslationModel`, `speller.py` and `LanguageModel` (by `class_outputs.make_output`) create them;
`objectives/likelihood.py` calls `losses`, and search calls `log_probs`. Native losses (`ops/loss.py`) and search
products are compared with `Output`. Tests: tests/properties/test_outputs.py.

Axes: N rows, M target tokens, K sampled tokens, R readout, V vocabulary, C score columns (V, or the selected tokens).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.config.outputs import SoftmaxOutputOptions
from rnnsearch.config.registry import implements
from rnnsearch.models.layers import Embedding, parameter
from rnnsearch.text.vocabulary import PAD
from rnnsearch.utils.tensors import at_least_fp32

Losses = tuple[Float[Tensor, ""], Float[Tensor, "M"]]
"""The total loss, and the NLL of each target token without a gradient."""

LogitsFunction = Callable[[Tensor], Tensor]
"""A function from readouts [..., R] to unnormalised scores [..., C]."""


class OutputLayer(nn.Module, ABC):
    """A function from readouts to the probabilities of all target tokens, or of some.

    `rows` are the ids of C tokens to score (rows of W_o), or None for all.
    """

    vocabulary: int
    """Number of tokens."""

    @abstractmethod
    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        """Return a function for unnormalised scores, to be called for many readouts with the same `rows`."""

    def logits(
        self, readout: Float[Tensor, "*rows R"], rows: Int[Tensor, "C"] | None = None
    ) -> Float[Tensor, "*rows C"]:
        """Return unnormalised scores."""
        return self.logits_function(rows)(readout)

    def log_probs(
        self, readout: Float[Tensor, "*rows R"], rows: Int[Tensor, "C"] | None = None
    ) -> Float[Tensor, "*rows C"]:
        """Return log-probabilities in fp32 or wider, normalised over `rows`."""
        return torch.log_softmax(at_least_fp32(self.logits(readout, rows)), dim=-1)


class PlainLoss(OutputLayer):
    """An output layer whose loss depends only on the readouts and their target tokens."""

    @abstractmethod
    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float = 0.0,
        rows: Int[Tensor, "C"] | None = None,
    ) -> Losses:
        """Return the summed cross-entropy of M target tokens and the NLL of each, without a gradient.

        Args:
            smoothing: Label smoothing; 0 for outputs that do not support it.
            rows: See `Output.losses`; None for outputs that do not support it.
        """


@implements(SoftmaxOutputOptions)
class Output(PlainLoss):
    """One softmax, with W_o [V, R] and b; `tied` shares W_o with an embedding table of the same shape.

    Rows of W_o, tied or not, are initialised like word embeddings: Glorot's bound for a matrix [V, R] would shrink with
    the vocabulary, and training would start several times more slowly. The last `lexical` units of a readout are those
    of the lexical model, with a separate matrix W_l [V, lexical].
    """

    fast_forward: Callable[..., Losses] | None = None
    """Fast implementation of `losses`, set by `accel/registry.py`."""
    sparse = False
    """True if the gradients of W_o and W_l are sparse, with only the rows that were selected."""

    def __init__(self, readout: int, vocabulary: int, tied: Embedding | None = None, lexical: int = 0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.weight = parameter("embedding", vocabulary, readout) if tied is None else tied.weight
        self.lexical = parameter("weight", vocabulary, lexical) if lexical else None  # W_l
        self.bias = parameter("bias", vocabulary)

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> LogitsFunction:
        weight, lexical, bias = self.select_rows(rows)

        def logits(readout: Tensor) -> Tensor:
            if lexical is None:
                return functional.linear(readout, weight, bias)
            decoder_readout, lexical_readout = readout.split([weight.shape[1], lexical.shape[1]], dim=-1)
            return functional.linear(decoder_readout, weight, bias) + functional.linear(lexical_readout, lexical)

        return logits

    def select_rows(self, rows: Int[Tensor, "C"] | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the rows of W_o, W_l and b for some tokens, or for all."""
        if rows is None:
            return self.weight, self.lexical, self.bias
        # An embedding lookup, because its gradient can be sparse; that of indexing is dense.
        select = partial(functional.embedding, rows, sparse=self.sparse)
        lexical = None if self.lexical is None else select(self.lexical)
        return select(self.weight), lexical, self.bias.index_select(0, rows)

    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float = 0.0,
        rows: Int[Tensor, "C"] | None = None,
        log_weights: Float[Tensor, "C"] | None = None,
        token_weights: Float[Tensor, "M"] | None = None,
    ) -> Losses:
        """Return the summed cross-entropy of M target tokens and the NLL of each, without a gradient.

        Both are 0 for PAD, so that the number of tokens may be rounded up.

        Args:
            smoothing: With label smoothing eps, the target distribution is (1 - eps) on the token and eps / V on every
                token (Szegedy et al. 2016).
            rows: Sorted ids that include all targets; the softmax is only over these (Jean et al. 2015, eq. 11, where
                the proposal is uniform over them, so that all importance weights are equal).
            log_weights: Logarithms of the importance weights of `rows`, if they differ: the softmax is proportional to
                weight * exp(score).
            token_weights: Factor of each token's loss in the sum, without a gradient; by default 1.
        """
        if self.fast_forward is not None:
            return self.fast_forward(self, readout, target, smoothing, rows, log_weights, token_weights)
        log_p = self.log_probs(readout, rows)  # [M, V or C]
        if log_weights is not None:
            log_p = torch.log_softmax(log_p + log_weights, dim=1)
        is_real = target != PAD
        # `rows` is sorted and includes every target, so that the search returns its column.
        target = target if rows is None else torch.searchsorted(rows, target.masked_fill(~is_real, rows[-1]))
        nll = -log_p.gather(1, target[:, None])[:, 0] * is_real  # [M]
        uniform = -log_p.mean(dim=1) * is_real  # [M], cross-entropy with the uniform distribution
        losses = (1 - smoothing) * nll + smoothing * uniform
        if token_weights is not None:
            losses = losses * token_weights
        return losses.sum(), nll.detach()

    def sampled_logits(
        self, readout: Float[Tensor, "M R"], target: Int[Tensor, "M"], others: Int[Tensor, "K"]
    ) -> tuple[Float[Tensor, "M"], Float[Tensor, "M K"]]:
        """Return the scores of M target tokens and those of K other tokens at each of them; reads few rows of W_o."""
        M = len(target)
        # One lookup for both, which gives one sparse gradient.
        weight, lexical, bias = self.select_rows(torch.cat([target, others]))
        full_weight = weight if lexical is None else torch.cat([weight, lexical], dim=1)  # [M + K, R]
        # [M], the diagonal of the [M, M] product of all readouts and all targets.
        target_scores = (readout * full_weight[:M].to(readout.dtype)).sum(-1) + bias[:M]
        other_scores = functional.linear(readout, full_weight[M:], bias[M:])
        return at_least_fp32(target_scores), at_least_fp32(other_scores)
