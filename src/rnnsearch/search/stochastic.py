"""Stochastic beam search (Kool et al. 2019, "Stochastic beams and where to find them"): k translations are drawn
without replacement, each from those that are left.

Gumbel noise added to the log-probabilities of all translations makes the k highest such a draw. It is drawn from the
top down: a beginning's worth is the highest of all translations that begin so, and one continuation has it, too; what
the others have lies below (section 4.1). So a beam that keeps the k beginnings of most worth comes to these k.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from rnnsearch.search.hypothesis import Numbers
from rnnsearch.search.scorer import Sources
from rnnsearch.search.selection import ScoredRows, Worth
from rnnsearch.search.variants import Variant, require, seeds

LEAST = 1e-30
"""What an exponential number counts as that was drawn as 0."""


@dataclass(frozen=True)
class Stochastic(Variant):
    """As many translations as the beam holds, no two the same, each drawn from p(y | what stands before it, x) **
    (1 / temperature), renormalised over what is allowed, of those that are left. A translation that is cut at its
    greatest length is one whatever would have followed. What is drawn hangs on the source and the seed alone."""

    temperature: float = 1.0
    seed: int = 1
    what: ClassVar[str] = "a stochastic beam"
    distinct: ClassVar[bool] = False  # they are anyway

    def __post_init__(self) -> None:
        require(
            (
                ("temperature", self.temperature > 0, "above 0", self.temperature),
                ("seed", self.seed >= 0, "at least 0", self.seed),
            )
        )

    def copies(self, beam: int) -> int:
        return 1

    def choose(self, sources: Sources, copies: int, most: Numbers) -> "Gumbel":
        return Gumbel(seeds(sources, copies, self.seed), most, self.temperature)


class Gumbel:
    """A `selection.Judge` for one batch. A hypothesis's worth is G, and what is known of it phi: its log-probability
    with noise, the highest of all that begin so, and without."""

    def __init__(self, seeds: list[list[int]], most: Numbers, temperature: float) -> None:
        """`seeds`, and `most` symbols, of each sentence."""
        self._generators = [np.random.default_rng(seed) for seed in seeds]
        self._most, self._temperature = torch.from_numpy(most), temperature

    def judge(self, scores: Tensor, worth: Tensor, known: Tensor, count: int, rows: ScoredRows) -> Worth:
        C = scores.shape[2]
        scores = scores / self._temperature
        # Where nothing is allowed the sum is -inf, too.
        log_p = scores - scores.logsumexp(2, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
        near, column = (log_p + self._noise(scores, rows)).topk(min(count, C), dim=2)
        begun = known.double()[:, :, None]
        phi, noisy = begun + log_p.gather(2, column), begun + near
        found = conditioned(noisy, worth.double())
        found = found.masked_fill((near == -torch.inf) | (worth == -torch.inf)[:, :, None], -torch.inf)
        # At its greatest length a hypothesis ends or is cut: it goes on as itself alone.
        last = rows.step > self._most.to(rows.sentences.device)[rows.sentences]
        found[:, :, 1:] = found[:, :, 1:].masked_fill(last[:, None, None], -torch.inf)
        places = C * torch.arange(scores.shape[1], device=scores.device)[:, None] + column
        value, place = found.flatten(1).topk(min(count, found[0].numel()), dim=1)
        return Worth(places.flatten(1).gather(1, place), value, phi.flatten(1).gather(1, place))

    def _noise(self, scores: Float[Tensor, "A K C"], rows: ScoredRows) -> Float[Tensor, "A K C"]:
        """Gumbel numbers: -log of exponential ones."""
        each = [self._generators[n] for n in rows.sentences.tolist()]
        drawn = np.stack([one.standard_exponential(scores.shape[1:], dtype=np.float32) for one in each])
        return -torch.from_numpy(drawn).to(scores.device).clamp(min=LEAST).log()


def conditioned(noisy: Float64[Tensor, "A K M"], worth: Float64[Tensor, "A K"]) -> Float64[Tensor, "A K M"]:
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
