"""N-best lists of a dev set, from which the weights of a linear model are learned: each hypothesis's features, and what
sacreBLEU counts of it.

A list begins with what the search found best, by the first feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics.bleu import BLEU

from rnnsearch.errors import DataError, RnnsearchError, must_be_one_of
from rnnsearch.metrics.bleu_chrf_ter import GOALS, Goal, bleu_tokeniser, make_metrics
from rnnsearch.metrics.logistic import Numbers

Places = npt.NDArray[np.int64]


class Counts:
    """What sacreBLEU counts of a sentence, of which a corpus has the sum; and the scores of such counts, 0 to 100."""

    def __init__(self, goal: Goal, language: str = "") -> None:
        """`language`: the target's code. Errors: RnnsearchError for an unknown metric."""
        if goal not in GOALS:
            raise RnnsearchError(f"metric {must_be_one_of(GOALS, goal)}")
        self._corpus = self._sentence = make_metrics(language)[GOALS[goal]]
        if goal == "bleu":  # BLEU+1 of Lin & Och (2004): one is added to the counts of all n-grams but words
            self._sentence = BLEU(tokenize=bleu_tokeniser(language), smooth_method="add-k", smooth_value=1, force=True)

    def of(self, hypotheses: Sequence[str], reference: str) -> Numbers:
        """[hypotheses, counts] of translations of one sentence."""
        # sacreBLEU has no public name for these; its own significance tests take them from here, too.
        found = self._corpus._extract_corpus_statistics(hypotheses, [[reference] * len(hypotheses)])
        return np.array(found, dtype=np.float64)

    def corpus(self, counts: Numbers) -> float:
        """The score of a corpus, by the sum of its sentences' counts."""
        return float(self._corpus._compute_score_from_stats(counts.tolist()).score)

    def sentence(self, counts: Numbers) -> float:
        """Of a sentence; BLEU smoothed."""
        return float(self._sentence._compute_score_from_stats(counts.tolist()).score)

    def closest(self, hypotheses: Sequence[str], reference: str) -> int:
        """Which translation of a sentence is most like its reference, by the sentence's score; of equals the first."""
        return int(np.argmax([self.sentence(row) for row in self.of(hypotheses, reference)]))


@dataclass(frozen=True)
class NBest:
    """The lists of S sentences, the longest of which has N hypotheses. A shorter one is filled up with its first, which
    makes no difference to what is best: of equal ones the first is."""

    features: Numbers
    """[S, N, F]"""
    counts: Numbers
    """[S, N, C]"""
    sizes: Places
    """[S]: how many hypotheses each list had."""
    metric: Counts

    @classmethod
    def of(
        cls,
        features: Sequence[Numbers],
        texts: Sequence[Sequence[str]],
        references: Sequence[str],
        goal: Goal = "bleu",
        language: str = "",
    ) -> NBest:
        """From each sentence's features [n, F] and texts, n of them. Errors: DataError for no sentences, or where the
        references are not as many."""
        if not texts or len(texts) != len(references):
            raise DataError(f"references must be one a sentence, and some; got {len(references)} for {len(texts)}")
        metric = Counts(goal, language)
        counts = [metric.of(*own) for own in zip(texts, references, strict=True)]
        sizes = [len(own) for own in texts]
        return cls(_filled(features, max(sizes)), _filled(counts, max(sizes)), np.array(sizes), metric)

    def best(self, weights: Numbers) -> Places:
        """[S]: which hypothesis of each sentence has the largest weighted sum of its features; of equals the first."""
        found: Places = (self.features @ weights).argmax(1)
        return found

    def score(self, weights: Numbers) -> float:
        """The corpus score of the best."""
        return self._score_of(self.best(weights))

    @property
    def oracle(self) -> float:
        """The corpus score of those that are best by themselves: about what no weights can do better than."""
        worth = [[self.metric.sentence(row) for row in own] for own in self.counts]
        return self._score_of(np.array(worth).argmax(1))

    def _score_of(self, chosen: Places) -> float:
        return self.metric.corpus(self.counts[np.arange(len(chosen)), chosen].sum(0))


def _filled(rows: Sequence[Numbers], size: int) -> Numbers:
    """Stacked, short ones filled up with their first row."""
    return np.stack([np.concatenate([own, np.repeat(own[:1], size - len(own), axis=0)]) for own in rows])


def spread(features: Sequence[Numbers]) -> Numbers:
    """[F]: the standard deviation of each feature within a sentence's list [n, F]; 1 for one that never differs."""
    away = np.concatenate([own - own.mean(0) for own in features])
    found = np.sqrt((away**2).mean(0))
    return np.where(found > 1e-9, found, 1.0)
