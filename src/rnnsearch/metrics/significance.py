"""Significance of a difference between two systems (paired bootstrap resampling by sacreBLEU), intervals of fractions.

Koehn, P. (2004), "Statistical Significance Tests for Machine Translation Evaluation", EMNLP.

`evaluation/corpus_scores.py` and `evaluation/contrastive.py` call it. The default seed is fixed, so p-values are
reproducible.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sacrebleu.significance import PairedTest, Result

from rnnsearch.errors import DataError
from rnnsearch.metrics.scores import References, all_references, check_lines, make_metrics

MIN_SAMPLES = 40
"""Minimum number of bootstrap samples."""


@dataclass(frozen=True)
class Difference:
    """Scores of two systems by one metric. Intervals are half widths of 95 % confidence intervals."""

    name: str
    """sacreBLEU's name of the metric."""
    system: float
    """Score of the system."""
    baseline: float
    """Score of the baseline."""
    system_interval: float
    """Half width of the system's interval."""
    baseline_interval: float
    """Half width of the baseline's interval."""
    p_value: float
    """Probability of a difference at least this large by chance."""
    signature: str
    """sacreBLEU's signature of the metric."""

    @property
    def significant(self) -> bool:
        """True if the p-value is below 0.05."""
        return self.p_value < 0.05

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.system:.2f} ± {self.system_interval:.2f} against "
            f"{self.baseline:.2f} ± {self.baseline_interval:.2f}, p = {self.p_value:.4f}"
        )


@dataclass(frozen=True)
class Comparison:
    """Comparison of a system with a baseline on the same sentences, by BLEU, chrF and TER."""

    differences: tuple[Difference, ...]
    """Difference by each metric."""
    samples: int
    """Number of bootstrap samples."""
    seed: int
    """Random seed of the samples."""

    def __getitem__(self, name: str) -> Difference:
        """Return the difference by a metric (`BLEU`, `chrF2`, `TER`)."""
        return {difference.name: difference for difference in self.differences}[name]


def paired_bootstrap(
    system: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    *,
    samples: int = 1000,
    seed: int = 12345,
    language: str = "",
    more_references: References = (),
) -> Comparison:
    """Resample the sentences, the same ones for both systems, and compare the scores.

    Memory grows with samples x sentences (about 0.1 GB for 1000 x 1000). Two systems whose scores
    never differ get p = 1.

    Args:
        system: The system's translations.
        baseline: The baseline's translations.
        references: One reference per sentence.
        samples: Number of resamples.
        seed: Random seed.
        language: Code of the target language, which selects BLEU's tokeniser.
        more_references: Additional sets of references.

    Raises:
        DataError: The numbers of lines differ or are zero, or there are fewer than 40 samples, too
            few for a 95 %
            interval.
    """
    check_lines(system, references, "the system's translations")
    check_lines(baseline, references, "the baseline's translations")
    require_samples(samples, "the paired bootstrap")
    systems = [("baseline", baseline), ("system", system)]
    with _sacrebleu_seed(seed):
        test = PairedTest(systems, make_metrics(language), all_references(references, more_references), "bs", samples)
        signatures, results = test()
    differences = []
    for name, signature in signatures.items():
        baseline_result, system_result = (result for result in results[name] if isinstance(result, Result))
        assert baseline_result.ci is not None and system_result.ci is not None and system_result.p_value is not None
        # sacreBLEU counts the resamples that deviate by *more* than the observed difference. For systems that never
        # differ there are none, which would make their difference of 0 highly significant.
        is_identical = (system_result.score, system_result.mean, system_result.ci) == (
            baseline_result.score,
            baseline_result.mean,
            baseline_result.ci,
        )
        differences.append(
            Difference(
                name=name,
                system=float(system_result.score),
                baseline=float(baseline_result.score),
                system_interval=float(system_result.ci),
                baseline_interval=float(baseline_result.ci),
                p_value=1.0 if is_identical else float(system_result.p_value),
                signature=str(signature),
            )
        )
    return Comparison(tuple(differences), samples, seed)


def require_samples(samples: int, test: str) -> None:
    """Raise DataError if there are too few samples for an interval of 95 %."""
    if samples < MIN_SAMPLES:
        raise DataError(f"samples of {test} must be at least {MIN_SAMPLES}; got {samples}")


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979).

    If all differences are due to chance, the probability that any corrected value is below 0.05 is at most 5 %.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the confidence interval of a fraction (Wilson 1927), by default of 95 %.

    Args:
        successes: Number of successes.
        trials: Number of trials, at least 1.
        z: Quantile of the normal distribution.
    """
    fraction = successes / trials
    scale = 1 + z * z / trials
    center = (fraction + z * z / (2 * trials)) / scale
    half_width = z / scale * math.sqrt(fraction * (1 - fraction) / trials + z * z / (4 * trials * trials))
    return max(0.0, center - half_width), min(1.0, center + half_width)


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Set sacreBLEU's seed, which it reads only from the environment, and restore the environment."""
    previous = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if previous is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = previous
