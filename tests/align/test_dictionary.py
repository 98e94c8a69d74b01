"""Dictionaries: phrase pairs against the definition, probabilities that sum to one, what is left out."""

import random
from collections import defaultdict

import pytest

from rnnsearch.align.dictionary import Dictionary, phrase_pairs


def by_definition(links, most, sources, targets):
    """Every pair of short stretches whose outer words are linked and that no link leaves or enters."""
    for j in range(sources):
        for l in range(j, min(j + most, sources)):
            for i in range(targets):
                for k in range(i, min(i + most, targets)):
                    inside = [(s, t) for s, t in links if j <= s <= l and i <= t <= k]
                    touching = [(s, t) for s, t in links if j <= s <= l or i <= t <= k]
                    outer = {s for s, _ in inside} >= {j, l} and {t for _, t in inside} >= {i, k}
                    if inside and inside == touching and outer:
                        yield (j, l), (i, k)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_phrase_pairs_equal_the_definition(most):
    draw = random.Random(most)
    for _ in range(400):
        sources, targets = draw.randrange(1, 7), draw.randrange(1, 7)
        links = sorted({(draw.randrange(sources), draw.randrange(targets)) for _ in range(draw.randrange(9))})
        assert sorted(phrase_pairs(links, most)) == sorted(by_definition(links, most, sources, targets))


def test_probabilities_of_a_word_sum_to_one():
    learned = Dictionary(2)
    draw = random.Random(1)
    for _ in range(300):
        f, e = ([draw.choice("abcd") for _ in range(4)] for _ in range(2))
        learned.add(" ".join(f), " ".join(e), {(draw.randrange(4), draw.randrange(4)) for _ in range(4)})
    sums, last = defaultdict(float), ("", 1.0)
    for entry in learned.entries():
        assert (entry.source, -entry.probability) >= (last[0], -last[1]) or entry.source > last[0]
        sums[entry.source] += entry.probability
        last = entry.source, entry.probability
    assert len(sums) > 10
    assert all(total == pytest.approx(1) for total in sums.values())


def test_entries_keep_case_and_do_not_cross_punctuation():
    learned = Dictionary(3)
    for _ in range(2):
        learned.add("In New York, Apple sells – apples.", "Apple verkauft in New York „Äpfel“.", {
            (0, 2), (1, 3), (2, 4), (3, 0), (4, 1), (6, 5),
        })  # fmt: skip
    learned.add("apples", "Apfel", {(0, 0)})
    found = {(e.source, e.target): (e.probability, e.occurrences) for e in learned.entries()}
    assert found["New York", "New York"] == (1.0, 2)
    assert found["In New York", "in New York"] == (1.0, 2)
    assert found["Apple", "Apple"] == (1.0, 2)
    assert found["apples", "Äpfel"] == (pytest.approx(2 / 3), 2)
    assert found["apples", "Apfel"] == (pytest.approx(1 / 3), 1)
    assert not any("," in source or "–" in source for source, _ in found)
    assert {e.target for e in learned.entries(min_count=2) if e.source == "apples"} == {"Äpfel"}
    assert {e.target for e in learned.entries(min_probability=0.5) if e.source == "apples"} == {"Äpfel"}


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("rnnsearch.text.words.MAX_COUNTED_TEXTS", 10)
    learned = Dictionary(1)
    for n in range(100):
        learned.add(f"a{n} b", f"a{n} B", {(0, 0), (1, 1)})
    entries = list(learned.entries())
    assert len(entries) <= 10
    assert ("b", "B") in {(e.source, e.target) for e in entries}
