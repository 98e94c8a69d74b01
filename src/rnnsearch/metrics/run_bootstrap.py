"""Significance of a difference between two systems that were each trained several times, with different seeds.

A paired bootstrap over sentences says whether two sets of translations differ, but two runs of one system differ, too.
This one resamples runs and sentences (a hierarchical bootstrap). Tests: tests/metrics/test_run_bootstrap.py.

Axes: N sentences, K statistics of a sentence, S samples, R runs of a system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric

from rnnsearch.errors import DataError
from rnnsearch.metrics.scores import References, all_references, check_lines, make_metrics
from rnnsearch.metrics.significance import require_samples

METRICS = ("BLEU", "chrF2")
Runs = Sequence[Sequence[str]]
"""Translations of the same sentences by each run of a system."""


@dataclass(frozen=True)
class RunsDifference:
    """Difference between the mean scores of two systems by one metric."""

    name: str
    """sacreBLEU's name of the metric."""
    system: tuple[float, ...]
    """Score of each run of the system."""
    baseline: tuple[float, ...]
    """Score of each run of the baseline."""
    difference: float
    """Mean score of the system minus that of the baseline."""
    interval: tuple[float, float]
    """95 % confidence interval of the difference."""
    p_value: float
    """Two-sided: the probability of a difference at least this large by chance."""
    signature: str
    """sacreBLEU's signature of the metric."""

    @property
    def significant(self) -> bool:
        """True if the p-value is below 0.05."""
        return self.p_value < 0.05


def hierarchical_bootstrap(
    system: Runs,
    baseline: Runs,
    references: Sequence[str],
    *,
    samples: int = 1000,
    seed: int = 12345,
    language: str = "",
    more_references: References = (),
) -> list[RunsDifference]:
    """Resample runs and sentences of two systems, and return the differences between their mean scores.

    Each sample has the same sentences for all runs, and as many runs of each system as there are. With one run per
    system, only sentences vary. With few runs, the variance between runs is underestimated, by a third with three.

    Args:
        system: Translations of each run of the system.
        baseline: Translations of each run of the baseline.
        references: One reference per sentence.
        samples: Number of resamples.
        seed: Random seed.
        language: Code of the target language, which selects BLEU's tokeniser.
        more_references: Additional sets of references.

    Raises:
        DataError: A system has no runs, the numbers of lines differ or are zero, or there are fewer than 40 samples.
    """
    if not system or not baseline:
        raise DataError("system and baseline must have at least one run each")
    for lines in (*system, *baseline):
        check_lines(lines, references, "translations")
    require_samples(samples, "the bootstrap")
    sets = all_references(references, more_references)
    metrics = make_metrics(language)
    return [_difference(name, metrics[name], system, baseline, sets, samples, seed) for name in METRICS]


def _difference(
    name: str,
    metric: Metric,
    system: Runs,
    baseline: Runs,
    references: Sequence[Sequence[str]],
    samples: int,
    seed: int,
) -> RunsDifference:
    rng = np.random.default_rng(seed)
    N = len(references[0])
    # How often each sample has each sentence; the last row is the text itself.
    counts = np.ones((samples + 1, N))
    counts[:-1] = rng.multinomial(N, np.full(N, 1 / N), size=samples)
    scores = []
    means = []
    for runs in (system, baseline):
        scores.append(np.stack([_scores(metric, run, references, counts) for run in runs], axis=1))  # [S + 1, R]
        chosen = rng.integers(len(runs), size=(samples, len(runs)))
        means.append(np.take_along_axis(scores[-1][:-1], chosen, axis=1).mean(1))  # [S]
    differences = means[0] - means[1]
    lowest = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    low, high = np.quantile(differences, (0.025, 0.975))
    system_scores, baseline_scores = (tuple(map(float, table[-1])) for table in scores)
    return RunsDifference(
        name=name,
        system=system_scores,
        baseline=baseline_scores,
        difference=float(np.mean(system_scores) - np.mean(baseline_scores)),
        interval=(float(low), float(high)),
        p_value=min(1.0, 2 * (int(lowest) + 1) / (samples + 1)),
        signature=str(metric.get_signature()),
    )


def _scores(
    metric: Metric, run: Sequence[str], references: Sequence[Sequence[str]], counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the score of a run for each sample of sentences [S]."""
    statistics = np.array(metric._extract_corpus_statistics(run, references), dtype=np.float64)  # [N, K]
    return np.array([metric._compute_score_from_stats(sums.tolist()).score for sums in counts @ statistics])
