"""Scores of sentences equal their definitions and sacreBLEU's."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.sentence_scores import chrf, import_function, inverse_ter, smoothed_bleu, user_scores


def bleu_by_counting(hypothesis: str, reference: str) -> float:
    """Return BLEU by its definition, with counts of n-grams in dictionaries."""
    words, reference_words = hypothesis.split(), reference.split()
    if not words:
        return 0.0
    product = 1.0
    for n in range(1, 5):
        counts, reference_counts = (
            Counter(tuple(text[start : start + n]) for start in range(len(text) - n + 1))
            for text in (words, reference_words)
        )
        added = int(n > 1)
        matches = sum(min(count, reference_counts[gram]) for gram, count in counts.items())
        product *= ((matches + added) / (sum(counts.values()) + added)) ** 0.25
    return product * min(1.0, math.exp(1 - len(reference_words) / len(words)))


def random_pairs(count: int) -> tuple[list[str], list[str]]:
    rng = random.Random(1)
    texts = [" ".join(rng.choices("abcde", k=rng.randrange(9))) for _ in range(2 * count)]
    return texts[:count], texts[count:]


def test_bleu_equals_its_definition():
    hypotheses, references = random_pairs(500)
    expected = [bleu_by_counting(*pair) for pair in zip(hypotheses, references, strict=True)]
    assert len({round(value, 6) for value in expected}) > 100
    np.testing.assert_allclose(smoothed_bleu(hypotheses, references), expected, atol=1e-12)


@pytest.mark.parametrize("pairs", [[], [("", "")], [("", "a b")], [("a", "")], [("", ""), ("a b", "a b")]])
def test_bleu_of_empty_texts(pairs):
    values = smoothed_bleu([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    np.testing.assert_allclose(values, [bleu_by_counting(*pair) for pair in pairs])


def test_bleu_without_brevity_penalty_does_not_count_missing_words():
    [with_penalty], [without] = (smoothed_bleu(["a b"], ["a b c d"], brevity_penalty=p) for p in (True, False))
    assert without == 1.0 and with_penalty == pytest.approx(np.exp(1 - 4 / 2))


def test_chrf_and_ter_are_those_of_sacrebleu():
    hypotheses, references = ["the cat sat", "a dog", ""], ["the cat sat down", "a dog", "one two"]
    pairs = list(zip(hypotheses, references, strict=True))
    expected_chrf = [CHRF().sentence_score(h, [r]).score / 100 for h, r in pairs]
    expected_ter = [1 - TER().sentence_score(h, [r]).score / 100 for h, r in pairs]
    np.testing.assert_allclose(chrf(hypotheses, references), expected_chrf)
    np.testing.assert_allclose(inverse_ter(hypotheses, references), expected_ter)
    assert chrf(["a dog"], ["a dog"])[0] == 1.0
    assert inverse_ter(["a dog"], ["a dog"])[0] == 1.0


def test_ter_above_one_counts_as_one():
    assert TER().sentence_score("x y z", ["a"]).score > 100
    assert inverse_ter(["x y z"], ["a"]).tolist() == [0.0]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module with functions that score sentences."""
    (tmp_path / "user_metric.py").write_text(
        "def length(hypothesis, reference):\n    return min(len(hypothesis), len(reference))\n"
        "def nothing(hypothesis, reference):\n    pass\n"
        "def infinite(hypothesis, reference):\n    return float('inf')\n"
        "def fails(hypothesis, reference):\n    return 1 / 0\n"
        "constant = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "user_metric", raising=False)
    import_function.cache_clear()
    return "user_metric"


def test_user_function_gets_hypothesis_and_reference(module):
    assert user_scores(f"{module}:length", ["abc", "a"], ["ab", "abc"]).tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "user_metric:nothing must return a finite number; got None for 'abc'"),
        ("infinite", "user_metric:infinite must return a finite number; got inf for 'abc'"),
        ("fails", "user_metric:fails failed with ZeroDivisionError: division by zero"),
        ("constant", "user_metric:constant must be a function; got int"),
        ("missing", "user_metric:missing must be a function; got nothing of this name in the module"),
    ],
)
def test_unusable_user_function_is_an_error(module, name, message):
    with pytest.raises(RnnsearchError) as error:
        user_scores(f"{module}:{name}", ["abc"], ["ab"])
    assert re.sub(r" \(\S+user_metric\.py:\d+\)$", "", str(error.value)) == message


def test_module_that_does_not_exist_is_an_error():
    with pytest.raises(
        RnnsearchError, match=r"no_such_module:f must be importable; got ModuleNotFoundError: .*PYTHONPATH"
    ):
        import_function("no_such_module:f")


def test_workers_do_not_import_torch():
    program = "import rnnsearch.metrics.sentence_scores, rnnsearch.data.workers, sys; print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"
