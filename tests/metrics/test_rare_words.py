"""Accuracy of words by their training counts, against a loop over words and one example worked by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rnnsearch.errors import DataError
from rnnsearch.metrics.scores import FREQUENCY_EDGES, FrequencyClass, accuracy_by_frequency


def test_counts_match_a_worked_example() -> None:
    counts = {"the": 5000, "dog": 40, "zebra": 1, "sees": 3}
    classes = accuracy_by_frequency(["the the zebra sees <unk>."], ["the dog sees the, the yak!"], counts)
    by_label = {c.label: (c.translated, c.wanted, c.right) for c in classes}
    assert by_label == {
        "never": (0, 1, 0),  # yak
        "1": (1, 0, 0),  # zebra
        "2–4": (1, 1, 1),  # sees
        "5–9": (0, 0, 0),
        "10–99": (0, 1, 0),  # dog
        "100–999": (0, 0, 0),
        "1,000+": (2, 3, 2),  # the: clipped at what each side has
    }
    assert (classes[0].recall, classes[0].precision) == (0.0, None)
    assert (classes[1].recall, classes[1].precision) == (None, 0.0)
    assert (classes[-1].recall, classes[-1].precision) == (2 / 3, 1.0)


def by_a_loop(hypotheses: list[str], references: list[str], counts: dict[str, int]) -> np.ndarray:
    """[classes, 3]: every word of a translation looks for a word of the reference that is still free."""
    totals = np.zeros((len(FREQUENCY_EDGES), 3), dtype=int)
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        wanted = np.array(reference.split())
        free = np.ones(len(wanted), dtype=bool)
        for word in wanted:
            totals[np.flatnonzero(np.array(FREQUENCY_EDGES) <= counts.get(word, 0))[-1], 1] += 1
        for word in hypothesis.split():
            n = np.flatnonzero(np.array(FREQUENCY_EDGES) <= counts.get(word, 0))[-1]
            totals[n, 0] += 1
            same = np.flatnonzero(free & (wanted == word))
            if len(same):
                free[same[0]] = False
                totals[n, 2] += 1
    return totals


def test_counts_equal_a_loop() -> None:
    draw = random.Random(3)
    counts = {f"w{n}": count for n, count in enumerate((0, 1, 1, 2, 4, 5, 9, 10, 99, 100, 999, 1000, 70_000))}
    words = [*counts, "w77", "w78"]

    def sentences() -> list[str]:
        return [" ".join(draw.choices(words, k=draw.randrange(1, 30))) for _ in range(60)]

    hypotheses, references = sentences(), sentences()
    found = accuracy_by_frequency(hypotheses, references, counts)
    expected = by_a_loop(hypotheses, references, counts)
    assert [[c.translated, c.wanted, c.right] for c in found] == expected.tolist()
    assert expected.sum(axis=0).tolist() == [sum(len(h.split()) for h in hypotheses),
                                             sum(len(r.split()) for r in references), expected[:, 2].sum()]  # fmt: skip
    assert expected[:, 2].min() > 0, "every class has right words"


def test_perfect_translation_has_perfect_accuracy() -> None:
    lines = ["Der Hund sieht den Hund.", "Ja!"]
    found = accuracy_by_frequency(lines, lines, {"Hund": 4, "Der": 2000})
    assert {(c.precision, c.recall) for c in found if c.wanted} == {(1.0, 1.0)}
    assert sum(c.wanted for c in found) == 6, "punctuation is no word"


def test_labels_have_no_gap() -> None:
    classes = accuracy_by_frequency(["a"], ["a"], {}, (0, 1, 3))
    assert [(c.low, c.high, c.label) for c in classes] == [(0, 0, "never"), (1, 2, "1–2"), (3, None, "3+")]
    assert FrequencyClass(10, 10, 0, 0, 0).label == "10"


def test_different_numbers_of_lines_raise_data_error() -> None:
    with pytest.raises(DataError, match="got 1 and 2"):
        accuracy_by_frequency(["a"], ["a", "b"], {})
