"""Is one system better than another, or was it luck? Paired bootstrap resampling by sacreBLEU.

Koehn, P. (2004), "Statistical Significance Tests for Machine Translation Evaluation", EMNLP.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sacrebleu.significance import PairedTest, Result

from rnnsearch.errors import DataError
from rnnsearch.metrics.scores import References, all_references, check_lines, make_metrics


@dataclass(frozen=True)
class Difference:
    """One metric's verdict on two systems. Intervals are the half widths of 95 % confidence intervals."""

    name: str
    system: float
    baseline: float
    system_interval: float
    baseline_interval: float
    p_value: float
    """How often chance alone would make a difference this large; small means: not chance."""
    signature: str

    @property
    def significant(self) -> bool:
        """True where the p-value is below 0.05."""
        return self.p_value < 0.05

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.system:.2f} ± {self.system_interval:.2f} against "
            f"{self.baseline:.2f} ± {self.baseline_interval:.2f}, p = {self.p_value:.4f}"
        )


@dataclass(frozen=True)
class Comparison:
    """A system against a baseline on the same sentences, by BLEU, chrF and TER."""

    differences: tuple[Difference, ...]
    samples: int
    seed: int

    def __getitem__(self, name: str) -> Difference:
        """The difference by a metric's name (`BLEU`, `chrF2`, `TER`)."""
        return {difference.name: difference for difference in self.differences}[name]


def paired_bootstrap(
    system: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    *,
    samples: int = 1000,
    seed: int = 12345,
    language: str = "",
    more: References = (),
) -> Comparison:
    """Resample the sentences `samples` times, the same ones for both systems, and compare the scores.

    Memory grows with samples x sentences (about 0.1 GB for 1000 x 1000). Two systems whose scores never
    differ get p = 1.
    Errors: DataError for different numbers of lines, or none; or for fewer than 40 samples, of which a
    95 % interval could not be told.
    """
    check_lines(system, references, "the system's translations")
    check_lines(baseline, references, "the baseline's translations")
    if samples < 40:
        raise DataError(f"samples of the paired bootstrap must be at least 40; got {samples}")
    systems = [("baseline", baseline), ("system", system)]
    with _sacrebleu_seed(seed):
        test = PairedTest(systems, make_metrics(language), all_references(references, more), "bs", samples)
        signatures, results = test()
    differences = []
    for name, signature in signatures.items():
        theirs, ours = (result for result in results[name] if isinstance(result, Result))
        assert theirs.ci is not None and ours.ci is not None and ours.p_value is not None
        # sacreBLEU counts resamples that stray *more* than the true difference. Systems that never differ stray
        # never at all, which would make their difference of 0 the most significant there is.
        same = (ours.score, ours.mean, ours.ci) == (theirs.score, theirs.mean, theirs.ci)
        differences.append(
            Difference(
                name=name,
                system=float(ours.score),
                baseline=float(theirs.score),
                system_interval=float(ours.ci),
                baseline_interval=float(theirs.ci),
                p_value=1.0 if same else float(ours.p_value),
                signature=str(signature),
            )
        )
    return Comparison(tuple(differences), samples, seed)


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment alone; put back what was there."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
