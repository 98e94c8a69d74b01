"""Rewards: scores of translations against their references, which sequence objectives raise.

`Reward.start` may compute in other processes while the model runs; the returned function waits for the result. To add
a reward, declare its options in `config/sequence.py` and implement a subclass here. Tests:
tests/objectives/sequence/test_rewards.py.

Axes: N translations.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.config import sequence
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.config.sequence import BleuRewardOptions

Ids = Sequence[int]
Rewards = NDArray[np.float64]
"""[N], higher is better."""
Detokenize = Callable[[Ids], str]
"""Returns the text of token ids without EOS."""

MAX_ORDER = 4
"""Maximum length of the n-grams that BLEU counts."""


class Reward(ABC):
    """A score per translation, where higher is better."""

    def __init__(self, options: Any, detokenize: Detokenize) -> None:
        """Create a reward from its options, for token ids that `detokenize` converts to text."""
        self._detokenize = detokenize

    @abstractmethod
    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> Rewards:
        """Return the score of each translation, given its reference."""

    def start(self, hypotheses: Sequence[Ids], references: Sequence[Ids]) -> Callable[[], Rewards]:
        """Start to score translations, given as token ids without EOS, and return a function that waits for the result.

        Args:
            hypotheses: N translations; equal ones of one reference are scored once.
            references: The reference of each.
        """
        pairs = [
            (tuple(hypothesis), tuple(reference)) for hypothesis, reference in zip(hypotheses, references, strict=True)
        ]
        distinct = list(dict.fromkeys(pairs))
        texts = {ids: self._detokenize(ids) for pair in distinct for ids in pair}
        values = self.score([texts[pair[0]] for pair in distinct], [texts[pair[1]] for pair in distinct])
        by_pair = dict(zip(distinct, values.tolist(), strict=True))
        return lambda: np.array([by_pair[pair] for pair in pairs])


@implements(BleuRewardOptions)
class SentenceBleu(Reward):
    """BLEU of a sentence with 1 added to matches and totals of n-grams of two or more words (Lin & Och 2004).

        BLEU = min(1, e^(1 - r / c)) (prod_n p_n)^(1/4),  p_1 = m_1 / t_1,  p_n = (m_n + 1) / (t_n + 1)

    for c words of the translation, r of the reference, m_n matching n-grams (each at most as often as in the reference)
    of t_n. Words are separated by spaces.
    """

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> Rewards:
        counts: dict[str, list[Counter[tuple[str, ...]]]] = {}
        for text in {*hypotheses, *references}:
            counts[text] = _ngram_counts(text.split())
        values = []
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            values.append(_smoothed_bleu(counts[hypothesis], counts[reference]))
        return np.array(values)


def _ngram_counts(words: Sequence[str]) -> list[Counter[tuple[str, ...]]]:
    counts = []
    for n in range(1, MAX_ORDER + 1):
        counts.append(Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1)))
    return counts


def _smoothed_bleu(hypothesis: list[Counter[tuple[str, ...]]], reference: list[Counter[tuple[str, ...]]]) -> float:
    length = hypothesis[0].total()
    log_precision = 0.0
    for order, (counts, reference_counts) in enumerate(zip(hypothesis, reference, strict=True)):
        matches = (counts & reference_counts).total() + (order > 0)
        if matches == 0:
            return 0.0
        log_precision += math.log(matches / (counts.total() + (order > 0))) / MAX_ORDER
    return math.exp(log_precision + min(0.0, 1 - reference[0].total() / length))


REWARDS: Implementations[type[Reward]] = Implementations(sequence.REWARDS)
"""Class by `type` of `[objective.sequence.reward]`; names are stored in model folders."""
