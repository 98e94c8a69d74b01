"""Every reason to leave a pair out, and what is counted and shown of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnnsearch.config import CleaningConfig
from rnnsearch.data.cleaning import Cleaner, HashSet
from rnnsearch.data.corpus import Pair

FILE = Path("corpus.tsv")


def pair(source: str, target: str, line: int = 1, fault: str | None = None) -> Pair:
    return Pair(source, target, FILE, line, fault)


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a b", "c", None),
        ("", "c", "empty"),
        ("a", " \u3000", "empty"),
        ("w " * 11, "v " * 9, "too long"),
        ("w " * 10, "v " * 9, None),
        ("w " * 10, "v v", "ratio"),
        ("w " * 9, "v v", None),
        ("Berlin calling", " Berlin  calling", "identical"),
        ("Berlin", "Berlin", None),
        ("a\x07b", "c", "control characters"),
        ("a", "b\x85c", "control characters"),
        ("a\rb", "c", "control characters"),
        ("a\u2028b", "c", None),
    ],
)
def test_reasons(source: str, target: str, reason: str | None) -> None:
    cleaner = Cleaner(CleaningConfig(max_words=10, max_ratio=2.0))
    assert cleaner.keep(pair(source, target)) is (reason is None)
    assert list(cleaner.report()["rejected"]) == ([] if reason is None else [reason])


def test_the_limits_are_the_configs() -> None:
    cleaner = Cleaner(CleaningConfig(min_words=2, drop_identical=False, drop_duplicates=False))
    assert not cleaner.keep(pair("one", "two words"))
    assert list(cleaner.report()["rejected"]) == ["too short"]
    assert cleaner.keep(pair("the same", "the same"))
    assert cleaner.keep(pair("the same", "the same"))


def test_faults_of_reading_are_reasons() -> None:
    cleaner = Cleaner(CleaningConfig())
    assert not cleaner.keep(pair("bad \ufffd", "b", fault="invalid UTF-8"))
    assert list(cleaner.report()["rejected"]) == ["invalid UTF-8"]


def test_a_duplicate_is_the_same_pair_and_the_first_one_stays() -> None:
    cleaner = Cleaner(CleaningConfig())
    kept = [cleaner.keep(pair(*texts)) for texts in [("a", "b"), ("a", "c"), ("d", "b"), ("a ", "b"), ("a b", "")]]
    assert kept == [True, True, True, False, False]
    assert cleaner.report()["rejected"]["duplicate"]["count"] == 1


def test_a_pair_that_was_rejected_does_not_make_later_ones_duplicates() -> None:
    cleaner = Cleaner(CleaningConfig(max_words=1))
    assert [cleaner.keep(pair("a b", "c")) for _ in range(2)] == [False, False]
    assert list(cleaner.report()["rejected"]) == ["too long"]


def test_the_report_counts_all_and_shows_the_first_three() -> None:
    cleaner = Cleaner(CleaningConfig(max_words=100))
    for line in range(1, 6):
        cleaner.keep(pair("", f"target {line}", line))
    cleaner.keep(pair("x" * 99, "a\x00b", 6))
    cleaner.keep(pair("fine", "gut", 7))
    report = cleaner.report()
    assert (report["read"], report["kept"]) == (7, 1)
    assert list(report["rejected"]) == ["empty", "control characters"]
    assert report["rejected"]["empty"] == {
        "count": 5,
        "examples": [f"corpus.tsv:{line}:  | target {line}" for line in (1, 2, 3)],
    }
    assert report["rejected"]["control characters"]["examples"] == [f"corpus.tsv:6: {'x' * 59}… | a\\x00b"]
    assert cleaner.summary() == "6 of 7 pairs left out: 5 empty, 1 control characters"


def test_the_set_of_hashes_remembers_everything_through_growth() -> None:
    seen = HashSet()
    words = [f"word {n}" for n in range(5000)]
    assert all(seen.add(word) for word in words)
    assert not any(seen.add(word) for word in words)
    assert seen.add("another")
    assert len(seen) == 5001
