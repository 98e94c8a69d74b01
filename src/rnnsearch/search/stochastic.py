"""Stochastic beam search: k translations sampled without replacement.

Kool et al. 2019, "Stochastic beams and where to find them". Adding Gumbel noise to the log-probabilities of all
translations and taking the k highest is such a sample. The noise is generated top-down (section 4.1): the perturbed
log-probability of a prefix is the maximum over all translations that begin with it; one continuation has the same
value, the others lower ones. So a beam that keeps the k prefixes with the highest perturbed log-probability ends with
the k translations of the sample.

`cli/options.py` creates a `Stochastic` for `--stochastic`; it is a `Variant` (`sampling.py`). The hypothesis scores
must never increase from parent to continuation, because beam search stops by this bound.

Axes: A sentences still in the batch, K hypotheses per sentence, M continuations, R groups of W values each
(hypotheses and their blocks, or blocks and their columns).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.search import topk
from rnnsearch.search.sampling import StreamKeys, Variant, gumbel, require_all, stream_keys
from rnnsearch.search.scorer import Sources
from rnnsearch.search.topk import ScoredContinuations, ScoredRows


@dataclass(frozen=True)
class Stochastic(Variant):
    """Stochastic beam search: as many distinct samples as the beam has hypotheses.

    Each is sampled from p(y | prefix, x) ** (1 / temperature), renormalised over what is allowed, among the
    translations not yet sampled. Translations cut at the maximum length count as one, whatever would have followed.
    Samples depend only on the source and the seed.
    """

    temperature: float = 1.0
    """Sampling temperature; below 1 favours likely translations."""
    seed: int = 1
    """Seed of the noise."""
    name: ClassVar[str] = "a stochastic beam"
    needs_probabilities: ClassVar[bool] = True
    distinct: ClassVar[bool] = False  # they are distinct anyway

    def __post_init__(self) -> None:
        require_all(
            (
                ("temperature", 0 < self.temperature < float("inf"), "above 0 and finite", self.temperature),
                ("seed", self.seed >= 0, "at least 0", self.seed),
            )
        )

    def copies(self, beam: int) -> int:
        return 1

    def selector(self, sources: Sources, copies: int, max_length: Array) -> "GumbelTopK":
        return GumbelTopK(stream_keys(sources, copies, self.seed), max_length, self.temperature)


class GumbelTopK:
    """A `topk.HypothesisScorer` for one batch.

    A hypothesis's total is G, its perturbed log-probability, and its carried value is phi, its log-probability at the
    temperature. Columns are also sampled top-down: the perturbed value of a block is the maximum of its columns, so
    that noise per column is needed only for the best blocks.
    """

    def __init__(self, keys: StreamKeys, max_length: Array, temperature: float) -> None:
        """Store the streams of random numbers and the maximum length of each sentence."""
        self._keys = keys
        self._max_length = torch.from_numpy(max_length)
        self._temperature = temperature

    def select(self, scores: Tensor, total: Tensor, carry: Tensor, count: int, rows: ScoredRows) -> ScoredContinuations:
        if self._temperature != 1:
            scores = scores / self._temperature
        C = scores.shape[2]
        # A hypothesis of maximum length ends or is cut: only one continuation may represent it.
        at_limit = rows.position > self._max_length.to(rows.sentences.device)[rows.sentences]  # [A]
        block_scores = topk.block_logsumexp(scores).double()  # [A, K, blocks]
        # If nothing is allowed the sum is -inf; the clamp keeps the difference from becoming NaN.
        norm = block_scores.logsumexp(2).clamp(min=torch.finfo(scores.dtype).min)
        phi = carry.double() - norm  # [A, K], up to the score of a continuation

        # The best blocks, given that the best of each hypothesis has the hypothesis's total.
        perturbed, block = self._perturb(phi[:, :, None] + block_scores, total.double(), count, at_limit, rows, 0)
        block_total, index = perturbed.flatten(1).topk(min(count, perturbed[0].numel()), dim=1)  # [A, M]
        hypothesis = index // perturbed.shape[2]
        column, column_scores = topk.block_columns(scores, hypothesis, block.flatten(1).gather(1, index))  # [A, M, W]

        # The best columns, given that the best of each block has the block's total.
        column_phi = phi.gather(1, hypothesis)[:, :, None] + column_scores.double()
        perturbed, order = self._perturb(column_phi, block_total, count, at_limit, rows, 1)
        flat_index = (hypothesis[:, :, None] * C + column.gather(2, order)).flatten(1)
        value, best = perturbed.flatten(1).topk(min(count, perturbed[0].numel()), dim=1)
        selected_phi = column_phi.gather(2, order).flatten(1).gather(1, best)
        return ScoredContinuations(flat_index.gather(1, best), value, selected_phi)

    def _perturb(
        self,
        phi: Float64[Tensor, "A R W"],
        maximum: Float64[Tensor, "A R"],
        count: int,
        at_limit: Tensor,
        rows: ScoredRows,
        substream: int,
    ) -> tuple[Float64[Tensor, "A R M"], Int[Tensor, "A R M"]]:
        """Return the `count` highest perturbed values of each row and their indices.

        Args:
            phi: Log-probabilities.
            maximum: Value that the highest of each row must have.
            count: Number of values.
            at_limit: [A], sentences whose hypotheses keep only their highest value.
            rows: Position and sentences.
            substream: Number of the noise within a step.
        """
        # By the sentence's index in the call, so that noise does not depend on which others have finished.
        keys = self._keys[rows.sentences.cpu().numpy()]
        noise = torch.from_numpy(gumbel(keys, phi[0].numel(), rows.position, substream)).to(phi.device).view(phi.shape)
        noisy, index = (phi + noise).topk(min(count, phi.shape[2]), dim=2)
        perturbed = condition_on_max(noisy, maximum)
        perturbed = perturbed.masked_fill((noisy == -torch.inf) | (maximum == -torch.inf)[:, :, None], -torch.inf)
        # Values are in descending order, so that index 0 is the highest.
        perturbed[:, :, 1:] = perturbed[:, :, 1:].masked_fill(at_limit[:, None, None], -torch.inf)
        return perturbed, index


def condition_on_max(noisy: Float64[Tensor, "A K M"], maximum: Float64[Tensor, "A K"]) -> Float64[Tensor, "A K M"]:
    """Return Gumbel variables G in descending order, conditioned on their maximum Z being `maximum` T.

    -log(exp(-T) - exp(-Z) + exp(-G)), computed without a difference of large numbers (Kool et al. 2019, appendix
    B.3) as T - max(0, v) - log(1 + exp(-|v|)) with v = T - G + log(1 - exp(G - Z)).
    """
    difference = noisy - noisy[:, :, :1]  # G - Z
    # Both forms are log(1 - exp(difference)); each is accurate on one side of -log 2.
    log_complement = torch.where(
        difference > -0.693, torch.log(-torch.expm1(difference)), torch.log1p(-torch.exp(difference))
    )
    v = maximum[:, :, None] - noisy + log_complement
    return maximum[:, :, None] - v.clamp(min=0) - torch.log1p(torch.exp(-v.abs()))
