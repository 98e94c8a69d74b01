"""Stochastic beam search (Kool et al. 2019, "Stochastic beams and where to find them"): k translations are drawn
without replacement, each from those that are left.

Gumbel noise added to the log-probabilities of all translations makes the k highest such a draw. It is drawn from the
top down: a beginning's worth is the highest of all translations that begin so, and one continuation has it, too; what
the others have lies below (section 4.1). So a beam that keeps the k beginnings of most worth comes to these k.
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
    """As many translations as the beam holds, no two the same, each drawn from p(y | what stands before it, x) **
    (1 / temperature), renormalised over what is allowed, of those that are left. A translation that is cut at its
    greatest length is one whatever would have followed. What is drawn hangs on the source and the seed alone."""

    temperature: float = 1.0
    seed: int = 1
    name: ClassVar[str] = "a stochastic beam"
    distinct: ClassVar[bool] = False  # they are anyway

    def __post_init__(self) -> None:
        require_all(
            (
                ("temperature", 0 < self.temperature < float("inf"), "above 0 and finite", self.temperature),
                ("seed", self.seed >= 0, "at least 0", self.seed),
            )
        )

    def copies(self, beam: int) -> int:
        return 1

    def selector(self, sources: Sources, copies: int, most: Array) -> "GumbelTopK":
        return GumbelTopK(stream_keys(sources, copies, self.seed), most, self.temperature)


class GumbelTopK:
    """A `selection.Judge` for one batch. A hypothesis's worth is G, and what is known of it phi: its log-probability
    with noise, the highest of all that begin so, and without.

    Columns are drawn from the top down, too: a block of them has the highest worth of its columns, so that only blocks
    that hold a continuation of those wanted need noise for each column.
    """

    def __init__(self, keys: StreamKeys, most: Array, temperature: float) -> None:
        """The random numbers, and `most` symbols, of each sentence."""
        self._keys = keys
        self._most, self._temperature = torch.from_numpy(most), temperature

    def select(self, scores: Tensor, worth: Tensor, known: Tensor, count: int, rows: ScoredRows) -> ScoredContinuations:
        if self._temperature != 1:
            scores = scores / self._temperature
        # At its greatest length a hypothesis ends or is cut: it goes on as itself alone.
        last = rows.position > self._most.to(rows.sentences.device)[rows.sentences]
        sums = topk.block_logsumexp(scores).double()
        # Where nothing is allowed the sum is -inf, too.
        norm = sums.logsumexp(2).clamp(min=torch.finfo(scores.dtype).min)
        known = known.double() - norm
        found, block = self._drawn(known[:, :, None] + sums, worth.double(), count, last, rows, 0)
        value, place = found.flatten(1).topk(min(count, found[0].numel()), dim=1)
        row, block = place // found.shape[2], block.flatten(1).gather(1, place)
        column, of = topk.block_columns(scores, row, block)
        phi = known.gather(1, row)[:, :, None] + of.double()
        found, order = self._drawn(phi, value, count, last, rows, 1)
        place = (row[:, :, None] * scores.shape[2] + column.gather(2, order)).flatten(1)
        value, best = found.flatten(1).topk(min(count, found[0].numel()), dim=1)
        return ScoredContinuations(place.gather(1, best), value, phi.gather(2, order).flatten(1).gather(1, best))

    def _drawn(
        self,
        phi: Float64[Tensor, "A R W"],
        worth: Float64[Tensor, "A R"],
        count: int,
        last: Tensor,
        rows: ScoredRows,
        part: int,
    ) -> tuple[Float64[Tensor, "A R M"], Int[Tensor, "A R M"]]:
        """The `count` highest phi with noise of each row, given that the highest is the row's own `worth`, and their
        places; of sentences that are at their `last` symbol one alone. Each `part` of a step has noise of its own."""
        keys = self._keys[rows.sentences.cpu().numpy()]
        noise = torch.from_numpy(gumbel(keys, phi[0].numel(), rows.position, part)).to(phi.device).view(phi.shape)
        near, place = (phi + noise).topk(min(count, phi.shape[2]), dim=2)
        found = condition_on_max(near, worth)
        found = found.masked_fill((near == -torch.inf) | (worth == -torch.inf)[:, :, None], -torch.inf)
        found[:, :, 1:] = found[:, :, 1:].masked_fill(last[:, None, None], -torch.inf)
        return found, place


def condition_on_max(noisy: Float64[Tensor, "A K M"], worth: Float64[Tensor, "A K"]) -> Float64[Tensor, "A K M"]:
    """Gumbel numbers of a hypothesis's continuations, the highest first, given that the highest is the hypothesis's own
    `worth` T:

        -log(exp(-T) - exp(-Z) + exp(-G)),  Z = max G,

    without a difference of large numbers (Kool et al. 2019, appendix B.3): T - max(0, v) - log(1 + exp(-|v|)), with
    v = T - G + log(1 - exp(G - Z)).
    """
    below = noisy - noisy[:, :, :1]
    # log(1 - exp(a)) by that of the two forms which is exact for this a.
    left = torch.where(below > -0.693, torch.log(-torch.expm1(below)), torch.log1p(-torch.exp(below)))
    v = worth[:, :, None] - noisy + left
    return worth[:, :, None] - v.clamp(min=0) - torch.log1p(torch.exp(-v.abs()))
