"""The paired bootstrap: a real difference is found, none is not, and the environment is left alone."""

import os
import random

import pytest

from rnnsearch.errors import DataError
from rnnsearch.metrics.scores import corpus_bleu
from rnnsearch.metrics.significance import holm_adjusted, paired_bootstrap

WORDS = ["the", "man", "woman", "dog", "sits", "stands", "runs", "on", "under", "table", "bench", "road"]


def corpus(share_wrong: float, seed: int) -> list[str]:
    """40 references with a share of their words replaced."""
    references, noise = random.Random(1), random.Random(seed)
    lines = [[references.choice(WORDS) for _ in range(references.randint(6, 12))] for _ in range(40)]
    return [" ".join("x" if noise.random() < share_wrong else w for w in line) for line in lines]


REFERENCES, GOOD, POOR = corpus(0.0, 0), corpus(0.1, 2), corpus(0.5, 3)


def test_clear_difference_is_significant() -> None:
    comparison = paired_bootstrap(GOOD, POOR, REFERENCES, samples=100)
    bleu = comparison["BLEU"]
    assert bleu.system == pytest.approx(corpus_bleu(GOOD, REFERENCES))
    assert bleu.baseline == pytest.approx(corpus_bleu(POOR, REFERENCES))
    assert bleu.p_value == pytest.approx(1 / 101)
    assert bleu.significant
    assert bleu.system_interval > 0
    assert "bs:100" in bleu.signature
    assert [d.name for d in comparison.differences] == ["BLEU", "chrF2", "TER"]
    assert str(bleu).startswith(f"BLEU: {bleu.system:.2f} ± ")


def test_chance_difference_is_not_significant() -> None:
    comparison = paired_bootstrap(GOOD, corpus(0.1, 4), REFERENCES, samples=100)
    assert not comparison["BLEU"].significant


def test_identical_systems_have_p_value_one() -> None:
    comparison = paired_bootstrap(GOOD, list(GOOD), REFERENCES, samples=50)
    assert [d.p_value for d in comparison.differences] == [1.0, 1.0, 1.0]


def test_seed_determines_result_and_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    first = paired_bootstrap(GOOD, POOR, REFERENCES, samples=50, seed=1)
    again = paired_bootstrap(GOOD, POOR, REFERENCES, samples=50, seed=1)
    other = paired_bootstrap(GOOD, POOR, REFERENCES, samples=50, seed=2)
    assert first == again
    assert first["BLEU"].system_interval != other["BLEU"].system_interval
    assert os.environ["SACREBLEU_SEED"] == "99"
    monkeypatch.delenv("SACREBLEU_SEED")
    assert paired_bootstrap(GOOD, POOR, REFERENCES, samples=50, seed=1) == first
    assert "SACREBLEU_SEED" not in os.environ


def test_invalid_input_raises_data_error() -> None:
    with pytest.raises(DataError, match=r"the baseline's translations and references must .*got 39 and 40"):
        paired_bootstrap(GOOD, POOR[1:], REFERENCES)
    with pytest.raises(DataError, match=r"the system's translations and references must .*got 39 and 40"):
        paired_bootstrap(GOOD[1:], POOR, REFERENCES)
    with pytest.raises(DataError, match="must be at least 40; got 10"):
        paired_bootstrap(GOOD, POOR, REFERENCES, samples=10)


def test_p_values_are_corrected_for_their_number() -> None:
    # Holm (1979): sorted 0.01, 0.03, 0.04 times 3, 2 and 1, never below an earlier one.
    assert holm_adjusted([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm_adjusted([0.6, 0.7]) == [1.0, 1.0]
    assert holm_adjusted([0.02]) == [0.02]
    assert holm_adjusted([]) == []
