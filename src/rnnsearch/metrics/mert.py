"""Minimum error rate training: the weights under which the best hypotheses of n-best lists score best as a corpus.

Och, F. J. (2003), "Minimum Error Rate Training in Statistical Machine Translation", ACL, section 5.
Cer, D., Jurafsky, D. & Manning, C. D. (2008), "Regularization and Search for Minimum Error Rate Training", WMT.
"""

from __future__ import annotations

import numpy as np

from rnnsearch.metrics.logistic import Numbers
from rnnsearch.metrics.n_best import NBest

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
