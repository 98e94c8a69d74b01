"""Subword regularisation (Kudo, 2018): segmentations drawn from a unigram model, smoothed by an exponent.

P(x | X) ∝ prod_i p(x_i)^alpha over all segmentations x of a piece X (section 3.3, l = infinity), drawn by summing
forward over the lattice of symbols and choosing backward.
"""

from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate
from math import exp, fsum, log
from random import Random

from rnnsearch.text.resegmentation import Resegmentation
from rnnsearch.text.tokenizer import NEVER, Tokenizer


@dataclass(frozen=True)
class Ending:
    """The symbols that may end at one place of a piece."""

    starts: list[int]
    ids: list[int]
    cumulated: list[float]
    """Their probabilities, given that one of them ends there, summed up."""


class UnigramSampling(Resegmentation[list[Ending]]):
    """Segments what a `unigram` tokenizer has segmented anew, drawn from all segmentations."""

    def __init__(self, tokenizer: Tokenizer, alpha: float) -> None:
        """`alpha`: the exponent; near 0 all segmentations are alike, 1 is the model's own probability."""
        super().__init__(tokenizer)
        self._alpha = alpha
        scores = tokenizer.scores()
        self._scores = {name: score for name, score in scores.items() if score > NEVER}
        self._longest = max(map(len, self._scores))

    def _piece(self, symbols: list[tuple[str, int]]) -> list[Ending]:
        """The lattice of a piece; `forward[j]` is the log of the sum, over the segmentations of its first j characters,
        of their probabilities to the power of alpha."""
        forward, endings = [0.0], []
        for end in range(1, len(symbols) + 1):
            starts, ids, weights = [], [], []
            for start in range(max(0, end - self._longest), end):
                name = "".join([name for name, _ in symbols[start:end]])
                if name in self._scores:
                    starts.append(start)
                    ids.append(self._ids[name])
                    weights.append(self._alpha * self._scores[name] + forward[start])
            most = max(weights)
            shares = [exp(weight - most) for weight in weights]
            forward.append(most + log(fsum(shares)))
            endings.append(Ending(starts, ids, [*accumulate(share / fsum(shares) for share in shares)]))
        return endings

    def _drawn(self, held: list[Ending], random: Random) -> list[int]:
        found, end = [], len(held)
        while end > 0:
            ending = held[end - 1]
            # Sums may fall short of 1 by an ulp.
            chosen = min(bisect(ending.cumulated, random.random()), len(ending.ids) - 1)
            found.append(ending.ids[chosen])
            end = ending.starts[chosen]
        return found[::-1]
