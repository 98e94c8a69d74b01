"""Reasons to reject a row, duplicates, and the tally with its examples and warnings."""

from pathlib import Path

import numpy as np
import pytest

from rnnsearch.config import CleaningConfig
from rnnsearch.data.cleaning import DUPLICATE, Tally, first_occurrences, rejection_reason, row_key
from rnnsearch.data.corpus import Row
from rnnsearch.text.languages import require_identifiable

FILE = Path("corpus.tsv")
EN_DE = ("en", "de")


def pair(source: str, target: str, line: int = 1, fault: str | None = None) -> Row:
    return Row((source, target), FILE, line, fault)


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
def test_rows_are_rejected_with_a_reason(source, target, reason):
    assert rejection_reason(pair(source, target), CleaningConfig(max_words=10, max_ratio=2.0), EN_DE) == reason


def test_limits_come_from_the_config():
    config = CleaningConfig(min_words=2, drop_identical=False)
    assert rejection_reason(pair("one", "two words"), config, EN_DE) == "too short"
    assert rejection_reason(pair("the same", "the same"), config, EN_DE) is None


FRENCH = "La maison est grande et le jardin est petit."


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("The small cat sees the dog.", "Die kleine Katze sieht den Hund.", None),
        ("Die kleine Katze sieht den Hund.", "The small cat sees the dog.", "other language"),
        ("The small cat sees the dog.", FRENCH, "other language"),
        (FRENCH, "Die kleine Katze sieht den Hund.", "other language"),
        ("Tell Tom.", "Sag es Tom.", None),
        ("OK", "Tom beharrte.", None),
        ("BBC 12 345", '<a href="http://example.org/?x=1">', None),
        ("", "Die kleine Katze sieht den Hund.", None),
    ],
)
def test_other_languages_are_rejected(source, target, reason):
    config = CleaningConfig(language_id=True)
    assert rejection_reason(pair(source, target), config, EN_DE, min_texts=1) == reason
    assert rejection_reason(pair(source, target), CleaningConfig(), EN_DE, min_texts=1) is None


def test_related_languages_and_variants_are_accepted():
    config = CleaningConfig(language_id=True)
    danish = pair("The dog saw a red ball.", "Hunden så en rød bold.")
    assert rejection_reason(danish, config, ("en-GB", "nb")) is None
    assert rejection_reason(danish, config, ("en-GB", "fr")) == "other language"
    require_identifiable(("en-GB", "nb", "zh-TW", "grc"))


def test_problems_of_reading_are_reasons():
    assert rejection_reason(pair("bad \ufffd", "b", fault="invalid UTF-8"), CleaningConfig(), EN_DE) == "invalid UTF-8"


def test_only_the_first_of_equal_pairs_is_kept():
    texts = [("a", "b"), ("a", "c"), ("d", "b"), ("a ", "b"), ("a\tb", "c"), ("a", "b\tc"), ("a", "c")]
    keys = np.frombuffer(b"".join(row_key(text) for text in texts), dtype="<u8")
    assert first_occurrences(keys).tolist() == [True, True, True, False, True, True, False]


def test_first_occurrences_among_many_keys():
    keys = np.random.default_rng(1).integers(0, 1 << 63, 500, dtype=np.uint64)
    keys = keys[np.random.default_rng(2).integers(0, 500, 2000)] * np.uint64(2)
    seen: set[int] = set()
    expected = [key not in seen and not seen.add(key) for key in keys.tolist()]
    assert first_occurrences(keys).tolist() == expected
    assert first_occurrences(keys[:0]).tolist() == []


def test_added_tallies_keep_the_first_three_examples():
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
    last.rejected[DUPLICATE] += 1
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


TRANSLATIONS = {
    "ja": [
        ("I went to the library yesterday to return two books.", "昨日、本を二冊返すために図書館へ行きました。"),
        ("The government announced a new plan for the economy.", "政府は経済に関する新しい計画を発表した。"),
        ("PyTorch 2.0 runs on the GPU.", "PyTorch 2.0はGPUで動作します。"),
        ("Yes.", "はい。"),
    ],
    "zh": [
        ("The committee will meet again next week to discuss the budget.", "委员会下周将再次开会讨论预算问题。"),
        ("She has lived in Beijing with her parents for more than ten years.", "她和父母在北京住了十多年了。"),
    ],
    "th": [
        ("He works at a hospital in Bangkok and goes home every weekend.",
         "เขาทำงานที่โรงพยาบาลในกรุงเทพฯ และกลับบ้านทุกสุดสัปดาห์"),
        ("The children are playing football in the field behind the school.",
         "เด็ก ๆ กำลังเล่นฟุตบอลอยู่ในสนามหลังโรงเรียน"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("language", TRANSLATIONS)
def test_length_of_text_without_spaces_is_in_characters(language):
    """The ratio admits ordinary pairs, and truncated or doubled translations are still found."""
    config, languages = CleaningConfig(max_ratio=1.5), ("en", language)
    for english, foreign in TRANSLATIONS[language]:
        assert rejection_reason(pair(english, foreign), config, languages) is None
        assert rejection_reason(pair(english, foreign * 8), config, languages) == "ratio"
    english, foreign = TRANSLATIONS[language][0]
    assert rejection_reason(pair(english * 4, foreign[:2]), config, languages) == "ratio"
    assert rejection_reason(pair(english, foreign * 30), CleaningConfig(), languages) == "too long"
    assert rejection_reason(pair(english, "\u3000"), config, languages) == "empty"


def test_rows_in_several_languages():
    languages, config = ("en", "fr", "de"), CleaningConfig(max_ratio=1.0)

    def reason(*texts: str, needed: int = 2) -> str | None:
        return rejection_reason(Row(texts, FILE, 1), config, languages, needed)

    assert reason("a b", "", "c") is None
    assert reason("a b", "", "") == "empty"
    assert reason("a b", "", "", needed=1) is None
    assert reason("a", "w " * 7, "c") == "ratio"
    assert reason("a b", "x y", "a  b") == "identical"


def test_reason_that_rejects_more_than_a_fifth_causes_a_warning():
    tally = Tally()
    tally.read = 10
    for line in range(2):
        tally.reject("empty", pair("", "x", line))
    assert tally.warnings() == []
    tally.reject("empty", pair("", "x", 3))
    assert tally.warnings() == ['30% of the corpus (3 pairs) is left out for one reason: "empty"']
