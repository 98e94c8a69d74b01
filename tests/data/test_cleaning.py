"""Every reason to leave a pair out, and what is counted and shown of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rnnsearch.config import CleaningConfig
from rnnsearch.data.cleaning import DUPLICATE, Tally, fault, first_of_each, pair_key
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
    assert fault(pair(source, target), CleaningConfig(max_words=10, max_ratio=2.0)) == reason


def test_the_limits_are_the_configs() -> None:
    config = CleaningConfig(min_words=2, drop_identical=False)
    assert fault(pair("one", "two words"), config) == "too short"
    assert fault(pair("the same", "the same"), config) is None


def test_faults_of_reading_are_reasons() -> None:
    assert fault(pair("bad \ufffd", "b", fault="invalid UTF-8"), CleaningConfig()) == "invalid UTF-8"


def test_a_duplicate_is_the_same_pair_and_the_first_one_stays() -> None:
    texts = [("a", "b"), ("a", "c"), ("d", "b"), ("a ", "b"), ("a\tb", "c"), ("a", "b\tc"), ("a", "c")]
    keys = np.frombuffer(b"".join(pair_key(*text) for text in texts), dtype="<u8")
    assert first_of_each(keys).tolist() == [True, True, True, False, True, True, False]


def test_the_first_of_many_keys() -> None:
    keys = np.random.default_rng(1).integers(0, 1 << 63, 500, dtype=np.uint64)
    keys = keys[np.random.default_rng(2).integers(0, 500, 2000)] * np.uint64(2)
    seen: set[int] = set()
    expected = [key not in seen and not seen.add(key) for key in keys.tolist()]
    assert first_of_each(keys).tolist() == expected
    assert first_of_each(keys[:0]).tolist() == []


def test_chunks_are_tallied_one_after_the_other_and_the_first_three_shown() -> None:
    whole = Tally()
    for first in (1, 4):
        chunk = Tally()
        for line in range(first, first + 3):
            chunk.read += 1
            chunk.reject("empty", pair("", f"target {line}", line))
        whole.add(chunk)
    last = Tally()
    last.read = 4
    last.reject("control characters", pair("x" * 99, "a\x00b", 7))
    last.reject(DUPLICATE, pair("a", "b", 8))
    last.reject_more(DUPLICATE, 1)
    whole.add(last)
    report = whole.report()
    assert (report["read"], report["kept"]) == (10, 1)
    assert list(report["rejected"]) == ["empty", "duplicate", "control characters"]
    assert report["rejected"]["empty"] == {
        "count": 6,
        "examples": [f"corpus.tsv:{line}:  | target {line}" for line in (1, 2, 3)],
    }
    assert report["rejected"]["control characters"]["examples"] == [f"corpus.tsv:7: {'x' * 59}… | a\\x00b"]
    assert whole.summary() == "9 of 10 pairs left out: 6 empty, 2 duplicate, 1 control characters"
