"""Learning the weights of a linear reranker from the n-best lists of a dev set, by MERT or PRO.

`NBestLists` holds the features of each hypothesis and the statistics from which sacreBLEU computes
a corpus score. Each list starts with the best hypothesis by the first feature, the score of the
search. `translator.rerank` uses this module.

MERT: Och, F. J. (2003), "Minimum Error Rate Training in Statistical Machine Translation", ACL,
section 5; Cer, D., Jurafsky, D. & Manning, C. D. (2008), "Regularization and Search for Minimum
Error Rate Training", WMT. PRO: Hopkins, M. & May, J. (2011), "Tuning as Ranking", EMNLP, section 3.

Results depend only on lists and seed.

Axes: S sentences, N hypotheses per list, F features, C components of the metric's statistics, E events (changes of
the best hypothesis) along a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics.bleu import BLEU

from rnnsearch.errors import DataError, RnnsearchError, must_be_one_of
from rnnsearch.metrics.calibration import Floats, fit_logistic_regression
from rnnsearch.metrics.scores import SACREBLEU_NAMES, MetricName, bleu_tokeniser, make_metrics

Indices = npt.NDArray[np.int64]


class MetricStatistics:
    """sacreBLEU's sufficient statistics of sentences, which are summed over a corpus, and scores of 0 to 100."""

    def __init__(self, metric: MetricName, language: str = "") -> None:
        """Select a metric.

        Args:
            metric: `bleu` or `chrf`.
            language: Code of the target language, for BLEU's tokeniser.

        Raises:
            RnnsearchError: The metric is unknown.
        """
        if metric not in SACREBLEU_NAMES:
            raise RnnsearchError(f"metric {must_be_one_of(SACREBLEU_NAMES, metric)}")
        self._corpus_metric = make_metrics(language)[SACREBLEU_NAMES[metric]]
        self._sentence_metric = self._corpus_metric
        if metric == "bleu":  # BLEU+1 of Lin & Och (2004) adds 1 to the counts of all n-grams but words
            self._sentence_metric = BLEU(
                tokenize=bleu_tokeniser(language), smooth_method="add-k", smooth_value=1, force=True
            )

    def extract(self, hypotheses: Sequence[str], reference: str) -> Floats:
        """Return the statistics of several translations of one sentence, [hypotheses, statistics]."""
        # sacreBLEU has no public API for these; its own significance tests use the same private methods.
        statistics = self._corpus_metric._extract_corpus_statistics(hypotheses, [[reference] * len(hypotheses)])
        return np.array(statistics, dtype=np.float64)

    def corpus_score(self, statistics: Floats) -> float:
        """Return the score of a corpus, given the sum of its sentences' statistics."""
        return float(self._corpus_metric._compute_score_from_stats(statistics.tolist()).score)

    def sentence_score(self, statistics: Floats) -> float:
        """Return the score of a sentence; BLEU is smoothed."""
        return float(self._sentence_metric._compute_score_from_stats(statistics.tolist()).score)

    def closest(self, hypotheses: Sequence[str], reference: str) -> int:
        """Return the index of the first translation with the best sentence score."""
        return int(np.argmax([self.sentence_score(row) for row in self.extract(hypotheses, reference)]))


@dataclass(frozen=True)
class NBestLists:
    """The n-best lists of S sentences, padded to N hypotheses.

    A shorter list is padded with its first hypothesis, which never changes the result because ties
    go to the first.
    """

    features: Floats
    """[S, N, F]"""
    statistics: Floats
    """[S, N, C]"""
    sizes: Indices
    """[S]: number of hypotheses of each list."""
    metric: MetricStatistics
    """Metric that the statistics belong to."""

    @classmethod
    def from_texts(
        cls,
        features: Sequence[Floats],
        texts: Sequence[Sequence[str]],
        references: Sequence[str],
        metric: MetricName = "bleu",
        language: str = "",
    ) -> NBestLists:
        """Return the lists for given texts.

        Args:
            features: Features of each sentence's n hypotheses, [n, F].
            texts: Texts of each sentence's n hypotheses.
            references: Reference of each sentence.
            metric: Metric to optimise.
            language: Code of the target language.

        Raises:
            DataError: There are no sentences, or not one reference per sentence.
        """
        if not texts or len(texts) != len(references):
            raise DataError(
                f"there must be at least one sentence, and one reference per sentence; "
                f"got {len(references)} references for {len(texts)} sentences"
            )
        scorer = MetricStatistics(metric, language)
        statistics = [scorer.extract(hypotheses, ref) for hypotheses, ref in zip(texts, references, strict=True)]
        sizes = [len(hypotheses) for hypotheses in texts]
        return cls(_pad(features, max(sizes)), _pad(statistics, max(sizes)), np.array(sizes), scorer)

    def select(self, weights: Floats) -> Indices:
        """Return the index of each sentence's best hypothesis by the weighted sum of features, [S]."""
        indices: Indices = (self.features @ weights).argmax(1)
        return indices

    def score(self, weights: Floats) -> float:
        """Return the corpus score of the hypotheses that the weights select."""
        return self._score_of(self.select(weights))

    @property
    def oracle(self) -> float:
        """Corpus score of the hypotheses with the best sentence scores, an approximate upper bound."""
        scores = []
        for rows in self.statistics:
            scores.append([self.metric.sentence_score(row) for row in rows])
        return self._score_of(np.array(scores).argmax(1))

    def _score_of(self, indices: Indices) -> float:
        return self.metric.corpus_score(self.statistics[np.arange(len(indices)), indices].sum(0))


def _pad(rows: Sequence[Floats], size: int) -> Floats:
    """Stack arrays, padded with their first row."""
    padded = []
    for array in rows:
        padded.append(np.concatenate([array, np.repeat(array[:1], size - len(array), axis=0)]))
    return np.stack(padded)


def feature_deviations(features: Sequence[Floats]) -> Floats:
    """Return the standard deviation of each feature within the lists [n, F]; 1 for a constant feature."""
    differences = np.concatenate([rows - rows.mean(0) for rows in features])
    deviations = np.sqrt((differences**2).mean(0))
    return np.where(deviations > 1e-9, deviations, 1.0)


NUM_RESTARTS = 10
"""Number of random initial weights, in addition to the first feature only."""
NUM_RANDOM_DIRECTIONS = 8
"""Number of random lines searched in each round, in addition to one along each feature."""
MIN_INTERVAL = 1e-9
"""Relative length of an interval below which it may be a rounding error."""
MIN_GAIN = 0.01
"""Minimum gain of a round, in points, for another one to follow."""


def mert(lists: NBestLists, seed: int = 1) -> Floats:
    """Return the weights [F] under which the selected hypotheses have the best corpus score (Och 2003).

    The search starts from the first feature only, which is the search's own order, and from random weights; the
    result is never worse on these lists than the search's order. Random weights have the same scale for all
    features, so features should be divided by their `feature_deviations`.
    """
    num_features = lists.features.shape[2]
    rng = np.random.default_rng(seed)
    starts = [np.eye(num_features)[0], *rng.standard_normal((NUM_RESTARTS, num_features))]
    return max((_optimise(lists, start, rng) for start in starts), key=lists.score)


def _optimise(lists: NBestLists, weights: Floats, rng: np.random.Generator) -> Floats:
    """Search along each feature and along random lines (Cer et al. 2008) until a round gains too little."""
    best = lists.score(weights)
    previous = -1.0
    while best > previous + MIN_GAIN:
        previous = best
        for direction in [*np.eye(len(weights)), *rng.standard_normal((NUM_RANDOM_DIRECTIONS, len(weights)))]:
            step, _ = line_search(lists, weights, direction)
            candidate = weights + step * direction
            candidate /= max(float(np.linalg.norm(candidate)), MIN_INTERVAL)
            score = lists.score(candidate)
            if score > best:
                best = score
                weights = candidate
    return weights


def line_search(lists: NBestLists, weights: Floats, direction: Floats) -> tuple[float, float]:
    """Return the step along `direction` that maximises the corpus score, and that score.

    The weighted sum of each hypothesis is linear in the step, and the best hypotheses of a sentence form the upper
    envelope of its lines. The corpus score changes only where an envelope passes to another line, so its maximum
    is found exactly. The step is in the middle of the best interval, the first of equally good ones.
    """
    steps, changes, initial = _envelopes(lists, lists.features @ weights, lists.features @ direction)
    if not len(steps):
        return 0.0, lists.metric.corpus_score(initial)
    order = np.argsort(steps, kind="stable")
    first = steps[order[0]]
    last = steps[order[-1]]
    before_first = first - 2.0 * max(1.0, abs(first))
    after_last = last + 2.0 * max(1.0, abs(last))
    edges = np.concatenate([[before_first], steps[order], [after_last]])
    totals = initial + np.concatenate([np.zeros((1, len(initial))), changes[order].cumsum(0)])
    middles = (edges[1:] + edges[:-1]) / 2
    wide = np.flatnonzero(np.diff(edges) > MIN_INTERVAL * np.maximum(1.0, np.abs(middles)))
    scores = [lists.metric.corpus_score(totals[n]) for n in wide]
    best = int(np.argmax(scores))
    return float(middles[wide[best]]), scores[best]


def _envelopes(lists: NBestLists, values: Floats, slopes: Floats) -> tuple[Floats, Floats, Floats]:
    """Return where the upper envelopes of the lines value + step * slope [S, N] change.

    Returns:
        The steps [E] at which a sentence's highest line is replaced by another, the changes of the statistics
        there [E, C], and the statistics [C] before the first step.
    """
    rows = np.arange(len(values))
    best = np.where(slopes == slopes.min(1, keepdims=True), values, -np.inf).argmax(1)
    initial = lists.statistics[rows, best].sum(0)
    steps = [np.zeros(0)]
    changes = [np.zeros((0, len(initial)))]
    while True:  # each sentence passes to a steeper line in every iteration, so there are at most N
        steeper = slopes - slopes[rows, best][:, None]
        behind = values[rows, best][:, None] - values
        crossings = np.divide(behind, steeper, out=np.full_like(behind, np.inf), where=steeper > 0)
        step = crossings.min(1)
        following = np.where(crossings == step[:, None], slopes, -np.inf).argmax(1)
        changed = np.flatnonzero(np.isfinite(step))
        if not len(changed):
            return np.concatenate(steps), np.concatenate(changes), initial
        steps.append(step[changed])
        changes.append(lists.statistics[changed, following[changed]] - lists.statistics[changed, best[changed]])
        best[changed] = following[changed]


MAX_SAMPLED_PAIRS = 5000
"""Maximum number of pairs sampled per sentence."""
MAX_TRAINING_PAIRS = 50
"""Maximum number of pairs learned from per sentence: those that differ most."""
MIN_SCORE_DIFFERENCE = 5.0
"""Minimum difference of the two scores of a pair, in points of 100."""
RIDGE = 1.0


def pro(lists: NBestLists, seed: int = 1) -> Floats:
    """Return the weights [F] that distinguish the better of two translations from the worse (Hopkins & May 2011).

    Logistic regression over the differences of the features of pairs. Sentences are scored by chrF or BLEU+1. Pairs
    are sampled without replacement, all if there are no more than `MAX_SAMPLED_PAIRS`. The paper also adds each
    mirrored pair, which would change nothing without a bias. A small ridge keeps weights finite, so features should
    be divided by their `feature_deviations`.

    Raises:
        DataError: No pair differs enough.
    """
    rng = np.random.default_rng(seed)
    differences = [np.zeros((0, lists.features.shape[2]))]
    for features, statistics, size in zip(lists.features, lists.statistics, lists.sizes, strict=True):
        scores = np.array([lists.metric.sentence_score(row) for row in statistics[:size]])
        one, other = np.triu_indices(size, 1)
        if len(one) > MAX_SAMPLED_PAIRS:
            sample = rng.choice(len(one), MAX_SAMPLED_PAIRS, replace=False)
            one, other = one[sample], other[sample]
        gain = scores[one] - scores[other]
        largest = np.argsort(-np.abs(gain), kind="stable")[:MAX_TRAINING_PAIRS]
        largest = largest[np.abs(gain[largest]) > MIN_SCORE_DIFFERENCE]
        better_minus_worse = np.sign(gain[largest])[:, None] * (features[one[largest]] - features[other[largest]])
        differences.append(better_minus_worse)
    inputs = np.concatenate(differences)
    if not len(inputs):
        raise DataError(
            "PRO needs translations of a sentence that differ by more than "
            f"{MIN_SCORE_DIFFERENCE:g} points; there are none (try MERT)"
        )
    return fit_logistic_regression(inputs, np.ones(len(inputs), dtype=bool), np.full(inputs.shape[1], RIDGE))
