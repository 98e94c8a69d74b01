"""Properties of the split: no shared sentence, exact sizes, deterministic, stable if the corpus grows."""

import random

import numpy as np
import pytest

from rnnsearch.data.split import PARTS, Part, SplitKeys, split, split_documents
from rnnsearch.errors import DataError

Texts = tuple[str, str]


def corpus(seed: int, pairs: int = 400, sentences: int = 300) -> list[Texts]:
    """Pairs of few different sentences, so that many share one."""
    rng = random.Random(seed)
    return [(f"s {rng.randrange(sentences)}", f"t {rng.randrange(sentences)}") for _ in range(pairs)]


def parts(pairs: list[Texts], dev: int, test: int) -> dict[Part | None, list[Texts]]:
    """The pairs dealt out to dev, test and train; None: left out."""
    dealt: dict[Part | None, list[Texts]] = {"train": [], "dev": [], "test": [], None: []}
    for pair, part in zip(pairs, split(SplitKeys.from_texts(pairs), dev, test).tolist(), strict=True):
        dealt[PARTS[part]].append(pair)
    return dealt


@pytest.mark.parametrize("seed", range(25))
def test_parts_share_no_sentence_and_have_exact_sizes(seed):
    pairs = corpus(seed)
    dealt = parts(pairs, 20, 15)
    assert (len(dealt["dev"]), len(dealt["test"])) == (20, 15)
    assert len(dealt["train"]) > 200
    for side in (0, 1):
        train, dev, test = ({pair[side] for pair in dealt[part]} for part in ("train", "dev", "test"))
        assert not (train & dev or train & test or dev & test)
        assert (len(dev), len(test)) == (20, 15), "held-out sentences are all different"
    held = dealt["dev"] + dealt["test"]
    connected = [p for p in dealt[None] if any(p[0] == h[0] or p[1] == h[1] for h in held)]
    assert connected == dealt[None], "nothing else is left out"


def test_split_depends_only_on_the_text():
    pairs = list(dict.fromkeys(corpus(1)))
    shuffled = random.Random(2).sample(pairs, len(pairs))
    one, two = (parts(p, 20, 15) for p in (pairs, shuffled))
    assert {part: sorted(ps) for part, ps in one.items()} == {part: sorted(ps) for part, ps in two.items()}


def test_growing_corpus_keeps_most_of_its_split():
    pairs = [(f"s {n}", f"t {n}") for n in range(2000)]
    small = parts(pairs[:1900], 100, 100)
    large = parts(pairs, 100, 100)
    for part, other in (("dev", "test"), ("test", "dev")):
        assert len(set(small[part]) & set(large[part])) >= 85
        assert not set(small[part]) & set(large[other])


def test_sentences_are_compared_without_case_and_punctuation():
    pairs = [(f"Tom left {n}.", f"Tom ging {n}.") for n in range(50)]
    pairs += [(f"tom LEFT {n}!", f"Da ging Tom, der {n}te") for n in range(50)]
    dealt = parts(pairs, 5, 5)
    assert len(dealt[None]) == 10
    numbers = {part: {"".join(filter(str.isdigit, s)) for s, _ in dealt[part]} for part in ("train", "dev", "test")}
    assert not numbers["train"] & (numbers["dev"] | numbers["test"])


def test_sentences_of_only_punctuation_are_distinguished():
    pairs = [("?" * n, "!" * n) for n in range(1, 30)]
    assert len(parts(pairs, 3, 3)["train"]) == 23


def test_corpus_with_a_dominant_sentence_is_split():
    pairs = [(f"s {n}", "yes") for n in range(3000)] + [(f"q {n}", f"a {n}") for n in range(60)]
    dealt = parts(pairs, 20, 20)
    assert (len(dealt["dev"]), len(dealt["test"])) == (20, 20)


def test_parts_may_be_empty():
    pairs = corpus(3)
    dealt = parts(pairs, 0, 10)
    assert (len(dealt["dev"]), len(dealt["test"])) == (0, 10)


@pytest.mark.parametrize(("pairs", "sizes"), [(30, (20, 15)), (35, (20, 15)), (0, (1, 0))])
def test_too_small_corpus_is_rejected(pairs, sizes):
    text = [(f"s {n}", f"t {n}") for n in range(pairs)]
    with pytest.raises(DataError) as error:
        split(SplitKeys.from_texts(text), *sizes)
    wanted = f"enough distinct sentences for {sizes[0]} dev, {sizes[1]} test and some training pairs"
    assert f"must have {wanted}; got {pairs} pairs (lower data.dev_size" in str(error.value)


def test_complete_rows_are_held_out_if_there_are_enough():
    pairs = [(f"s {n}", f"t {n}", "") for n in range(40)] + [(f"s {n % 40}", "", f"u {n}") for n in range(80)]
    pairs += [(f"s {n}", f"t {n}", f"u {n}") for n in range(100, 130)]
    found = split(SplitKeys.from_texts(pairs), 4, 3)
    assert all(number >= 120 for number in np.flatnonzero(found > 1))
    assert (found == 0).sum() == 0, "an empty text is no sentence in common"


def test_rows_in_two_of_three_languages_are_held_out_if_there_are_no_complete_ones():
    rows = [(f"a {n}" if n % 2 else "", f"b {n}" if n % 2 == 0 else "", f"c {n}") for n in range(200)]
    parts = split(SplitKeys.from_texts(rows), 20, 10).tolist()
    assert (parts.count(PARTS.index("dev")), parts.count(PARTS.index("test"))) == (20, 10)
    assert parts.count(PARTS.index("train")) == 170
    held_out = [row for row, part in zip(rows, parts, strict=True) if PARTS[part] == "dev"]
    assert any(row[0] for row in held_out)
    assert any(row[1] for row in held_out)


def test_documents_are_split_whole_in_any_order():
    lengths = [3, 1, 5, 2, 4, 2, 6, 1, 3, 3, 2, 5]
    numbers = np.repeat(np.arange(len(lengths), dtype=np.uint32), lengths)
    rows = [(f"s {n} {place}", f"t {n}") for place, n in enumerate(numbers.tolist())]
    found = split_documents(SplitKeys.from_texts(rows), numbers, 4, 3)
    for part, size in (("dev", 4), ("test", 3)):
        held = np.unique(numbers[found == PARTS.index(part)])
        sizes = [lengths[n] for n in held]
        assert sum(sizes) >= size > sum(sizes) - max(sizes)
        assert (found == PARTS.index(part)).sum() == sum(sizes), "no document is broken"
    turned = split_documents(SplitKeys.from_texts(rows[21:] + rows[:21]), np.roll(numbers, -21), 4, 3)
    assert np.array_equal(np.roll(turned, 21), found)
    with pytest.raises(DataError, match="enough documents for 30 dev, 3 test"):
        split_documents(SplitKeys.from_texts(rows), numbers, 30, 3)
