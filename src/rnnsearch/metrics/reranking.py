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
from rnnsearch.metrics.calibration import Numbers, logistic
from rnnsearch.metrics.scores import GOALS, Goal, bleu_tokeniser, make_metrics

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


# Minimum error rate training: the weights under which the best hypotheses of n-best lists score best as a corpus.
#
# Och, F. J. (2003), "Minimum Error Rate Training in Statistical Machine Translation", ACL, section 5.
# Cer, D., Jurafsky, D. & Manning, C. D. (2008), "Regularization and Search for Minimum Error Rate Training", WMT.

RESTARTS = 10
"""Random weights to begin with, besides those of the first feature alone."""
DIRECTIONS = 8
"""Random lines that are searched in each round, besides one along each feature."""
NARROW = 1e-9
"""A stretch of a line so short is a matter of rounding."""
GAIN = 0.01
"""Points that a round must gain for another to follow."""


def mert(lists: NBest, seed: int = 1) -> Numbers:
    """[F]: the best of what is found from the first feature alone, which is the search's own order, and from random
    weights. No worse on these lists than the search's own order.

    Random numbers are drawn alike for all features, which should thus be of one size (see `n_best.spread`)."""
    count, generator = lists.features.shape[2], np.random.default_rng(seed)
    starts = [np.eye(count)[0], *generator.standard_normal((RESTARTS, count))]
    return max((_climb(lists, start, generator) for start in starts), key=lists.score)


def _climb(lists: NBest, weights: Numbers, generator: np.random.Generator) -> Numbers:
    """To where searching along each feature in turn, and along random lines (Cer et al. 2008), is of no more use."""
    best, before = lists.score(weights), -1.0
    while best > before + GAIN:
        before = best
        for direction in [*np.eye(len(weights)), *generator.standard_normal((DIRECTIONS, len(weights)))]:
            step, _ = line_search(lists, weights, direction)
            moved = weights + step * direction
            moved /= max(float(np.linalg.norm(moved)), NARROW)
            if (score := lists.score(moved)) > best:
                best, weights = score, moved
    return weights


def line_search(lists: NBest, weights: Numbers, direction: Numbers) -> tuple[float, float]:
    """The step along `direction` from `weights` after which the lists score best, and that score.

    Along a line each hypothesis's sum is a line itself, and the best ones of a sentence are the upper envelope of its
    lines: the corpus score changes only where an envelope goes over to another line, so that all its values on the
    whole line are known. The step is to the middle of the best stretch; of equal ones to the first.
    """
    steps, changes, begin = _envelopes(lists, lists.features @ weights, lists.features @ direction)
    if not len(steps):
        return 0.0, lists.metric.corpus(begin)
    order = np.argsort(steps, kind="stable")
    first, last = steps[order[0]], steps[order[-1]]
    ends = first - 2.0 * max(1.0, abs(first)), last + 2.0 * max(1.0, abs(last))
    edges = np.concatenate([ends[:1], steps[order], ends[1:]])
    totals = begin + np.concatenate([np.zeros((1, len(begin))), changes[order].cumsum(0)])
    middles = (edges[1:] + edges[:-1]) / 2
    wide = np.flatnonzero(np.diff(edges) > NARROW * np.maximum(1.0, np.abs(middles)))
    scores = [lists.metric.corpus(totals[n]) for n in wide]
    best = int(np.argmax(scores))
    return float(middles[wide[best]]), scores[best]


def _envelopes(lists: NBest, values: Numbers, slopes: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Of the lines value + step * slope [S, N]: the steps [E] at which a sentence's highest line gives way to another,
    how that changes the counts [E, C], and the counts [C] of what is highest before all steps."""
    rows = np.arange(len(values))
    best = np.where(slopes == slopes.min(1, keepdims=True), values, -np.inf).argmax(1)
    begin = lists.counts[rows, best].sum(0)
    steps, changes = [np.zeros(0)], [np.zeros((0, len(begin)))]
    while True:  # each sentence goes on to a steeper line every time, so at most N times
        steeper = slopes - slopes[rows, best][:, None]
        behind = values[rows, best][:, None] - values
        meets = np.divide(behind, steeper, out=np.full_like(behind, np.inf), where=steeper > 0)
        step = meets.min(1)
        following = np.where(meets == step[:, None], slopes, -np.inf).argmax(1)
        gone = np.flatnonzero(np.isfinite(step))
        if not len(gone):
            return np.concatenate(steps), np.concatenate(changes), begin
        steps.append(step[gone])
        changes.append(lists.counts[gone, following[gone]] - lists.counts[gone, best[gone]])
        best[gone] = following[gone]


# Pairwise ranking optimisation: the weights that tell the better of two translations of a sentence from the worse.
#
# Hopkins, M. & May, J. (2011), "Tuning as Ranking", EMNLP, section 3.

SAMPLED, KEPT = 5000, 50
"""Pairs of a sentence that are looked at, and of those the ones that are learned from: those that differ most."""
LEAST = 5.0
"""Points of the metric, of 100, that the two of a pair differ by at least."""
RIDGE = 1.0


def pro(lists: NBest, seed: int = 1) -> Numbers:
    """[F], by logistic regression over the differences of the pairs' features. Sentences are scored by chrF or BLEU+1.

    Pairs are drawn without replacement, all where there are no more than `SAMPLED`; the mirrored pair of each, which
    the paper adds, would say the same again, as there is no bias. A small ridge keeps weights finite; features should
    be of one size for it (see `n_best.spread`).
    Errors: DataError where no pair differs enough.
    """
    generator = np.random.default_rng(seed)
    found = [np.zeros((0, lists.features.shape[2]))]
    for features, counts, size in zip(lists.features, lists.counts, lists.sizes, strict=True):
        worth = np.array([lists.metric.sentence(row) for row in counts[:size]])
        one, other = np.triu_indices(size, 1)
        if len(one) > SAMPLED:
            some = generator.choice(len(one), SAMPLED, replace=False)
            one, other = one[some], other[some]
        gain = worth[one] - worth[other]
        most = np.argsort(-np.abs(gain), kind="stable")[:KEPT]
        most = most[np.abs(gain[most]) > LEAST]
        found.append(np.sign(gain[most])[:, None] * (features[one[most]] - features[other[most]]))
    better = np.concatenate(found)
    if not len(better):
        raise DataError(
            f"PRO needs translations of a sentence that differ by more than {LEAST:g} points; there are none (try MERT)"
        )
    return logistic(better, np.ones(len(better), dtype=bool), np.full(better.shape[1], RIDGE))
