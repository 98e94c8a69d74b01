"""Pairwise ranking optimisation: the weights that tell the better of two translations of a sentence from the worse.

Hopkins, M. & May, J. (2011), "Tuning as Ranking", EMNLP, section 3.
"""

from __future__ import annotations

import numpy as np

from rnnsearch.errors import DataError
from rnnsearch.metrics.logistic import Numbers, logistic
from rnnsearch.metrics.n_best import NBest

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
