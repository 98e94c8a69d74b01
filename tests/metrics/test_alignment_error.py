"""Och & Ney's measures against examples worked by hand."""

import pytest

from rnnsearch.errors import DataError
from rnnsearch.metrics.alignment_error import alignment_error, check_range
from rnnsearch.text.alignments import parse_pharaoh


def test_sure_and_possible_links() -> None:
    # A = 3 links, S = {0-0, 1-2}, P = S + {1-1}: A & S = 1, A & P = 2.
    gold = [parse_pharaoh("0-0 1p1 1-2", "gold:1")]
    scores = alignment_error([{(0, 0), (1, 1), (2, 2)}], gold)
    assert scores.precision == pytest.approx(2 / 3)
    assert scores.recall == pytest.approx(1 / 2)
    assert scores.aer == pytest.approx(1 - (1 + 2) / (3 + 2))
    assert scores.links == 3


def test_counts_are_summed_over_the_corpus_not_averaged() -> None:
    gold = [parse_pharaoh("0-0", "gold:1"), parse_pharaoh("0-0 1-1 2-2 3-3", "gold:2")]
    scores = alignment_error([{(0, 1)}, {(0, 0), (1, 1), (2, 2)}], gold)
    assert scores.precision == pytest.approx(3 / 4)
    assert scores.recall == pytest.approx(3 / 5)
    assert scores.aer == pytest.approx(1 - 6 / 9)


def test_missing_possible_links_cost_nothing() -> None:
    gold = [parse_pharaoh("0-0 1p1", "gold:1")]
    assert alignment_error([{(0, 0)}], gold).aer == 0.0
    assert alignment_error([{(0, 0), (1, 1)}], gold).aer == 0.0


def test_empty_lines() -> None:
    empty, one = parse_pharaoh("", "gold:1"), parse_pharaoh("0-0", "gold:2")
    both = alignment_error([set(), {(0, 0)}], [empty, one])
    assert (both.aer, both.precision, both.recall) == (0.0, 1.0, 1.0)
    silent = alignment_error([set()], [one])
    assert (silent.aer, silent.precision, silent.recall, silent.links) == (1.0, 1.0, 0.0, 0)
    talkative = alignment_error([{(0, 0)}], [empty])
    assert (talkative.aer, talkative.precision, talkative.recall) == (1.0, 0.0, 1.0)
    nothing = alignment_error([set()], [empty])
    assert (nothing.aer, nothing.precision, nothing.recall) == (0.0, 1.0, 1.0)


def test_different_numbers_of_lines_raise_data_error() -> None:
    with pytest.raises(DataError, match=r"alignments must have the same number of lines; got 2 and 1"):
        alignment_error([set(), set()], [parse_pharaoh("", "gold:1")])
    with pytest.raises(DataError, match="at least one sentence"):
        alignment_error([], [])


def test_links_outside_the_sentence_raise_data_error() -> None:
    check_range({(0, 0), (2, 1)}, 3, 2, "gold:7")
    check_range(set(), 0, 0, "gold:7")
    with pytest.raises(DataError, match=r"gold:7: links must lie within 3 source and 2 target.*got 0-5$"):
        check_range({(0, 0), (0, 5)}, 3, 2, "gold:7")
    with pytest.raises(DataError, match=r"got 0-2 \(are source and target exchanged\?\)"):
        check_range({(0, 2), (1, 1)}, 3, 2, "gold:7")
    with pytest.raises(DataError, match=r"got 3-3 \(are the words counted from 1\?\)"):
        check_range({(1, 1), (3, 3)}, 3, 3, "gold:7")
    with pytest.raises(DataError, match="got -1-0"):
        check_range({(-1, 0)}, 3, 3, "gold:7")


def test_scores_are_formatted() -> None:
    scores = alignment_error([{(0, 0)}], [parse_pharaoh("0-0 1-1", "gold:1")])
    assert str(scores) == "AER = 0.333 (precision 1.000, recall 0.500, links proposed: 1)"
