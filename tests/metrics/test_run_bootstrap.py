"""The hierarchical bootstrap: scores, a real difference, and one between seeds that is none between systems."""

from __future__ import annotations

import numpy as np
import pytest

from rnnsearch.errors import DataError
from rnnsearch.metrics.run_bootstrap import hierarchical_bootstrap
from rnnsearch.metrics.scores import corpus_bleu
from rnnsearch.metrics.significance import paired_bootstrap
from tests.metrics.test_significance import REFERENCES, corpus

GOOD = [corpus(0.1, seed) for seed in (2, 3, 4)]
POOR = [corpus(0.5, seed) for seed in (5, 6)]


def test_scores_are_those_of_the_runs_and_a_clear_difference_is_significant() -> None:
    bleu, chrf = hierarchical_bootstrap(GOOD, POOR, REFERENCES, samples=200)
    assert (bleu.name, chrf.name) == ("BLEU", "chrF2")
    assert bleu.system == pytest.approx([corpus_bleu(run, REFERENCES) for run in GOOD])
    assert bleu.baseline == pytest.approx([corpus_bleu(run, REFERENCES) for run in POOR])
    assert bleu.difference == pytest.approx(np.mean(bleu.system) - np.mean(bleu.baseline))
    low, high = bleu.interval
    assert 0 < low < bleu.difference < high
    assert bleu.p_value == pytest.approx(2 / 201)
    assert bleu.significant


def test_difference_between_seeds_is_not_one_between_systems() -> None:
    """Each system has a good and a poor run; sentences alone would make the difference significant."""
    mixed = [GOOD[0], POOR[0]]
    other = [GOOD[1], corpus(0.7, 9)]
    sentences_only = paired_bootstrap(POOR[0], other[1], REFERENCES, samples=200)["BLEU"]
    assert sentences_only.significant
    assert not hierarchical_bootstrap(mixed, other, REFERENCES, samples=400)[0].significant


def test_one_run_per_system_is_like_a_paired_bootstrap_over_sentences() -> None:
    [bleu, _] = hierarchical_bootstrap(GOOD[:1], GOOD[1:2], REFERENCES, samples=1000)
    paired = paired_bootstrap(GOOD[0], GOOD[1], REFERENCES, samples=1000)["BLEU"]
    assert bleu.difference == pytest.approx(paired.system - paired.baseline)
    assert not bleu.significant and not paired.significant


def test_identical_systems_do_not_differ_and_the_seed_determines_the_result() -> None:
    [bleu, _] = hierarchical_bootstrap(GOOD, GOOD, REFERENCES, samples=50)
    assert bleu.difference == 0.0
    assert not bleu.significant
    assert hierarchical_bootstrap(GOOD, POOR, REFERENCES, samples=50) == hierarchical_bootstrap(
        GOOD, POOR, REFERENCES, samples=50
    )


@pytest.mark.parametrize(
    ("system", "samples", "message"),
    [
        ([], 100, "must have at least one run each"),
        ([GOOD[0][:-1]], 100, "must have the same number of lines; got 39 and 40"),
        (GOOD, 39, "must be at least 40; got 39"),
    ],
)
def test_invalid_input_is_rejected(system: list[list[str]], samples: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hierarchical_bootstrap(system, POOR, REFERENCES, samples=samples)
