"""Buckets share out all sentences; each bucket's BLEU is the BLEU of its sentences."""

import random
from itertools import pairwise

import pytest

from rnnsearch.errors import DataError
from rnnsearch.metrics.plots.figures import plot_bleu_by_length
from rnnsearch.metrics.scores import Bucket, bleu_by_length, corpus_bleu, length_ranges


def check_ranges(lengths: list[int], ranges: list[tuple[int, int]]) -> None:
    """Contiguous, all sentences inside, none of fewer than 10 unless it is alone."""
    assert ranges[0][0] == min(*lengths, 1)
    assert ranges[-1][1] == max(lengths)
    for (_, high), (low, _) in pairwise(ranges):
        assert low == high + 1
    counts = [sum(low <= n <= high for n in lengths) for low, high in ranges]
    assert sum(counts) == len(lengths)
    assert len(counts) == 1 or min(counts) >= 10


@pytest.mark.parametrize("width", [None, 1, 5, 10])
@pytest.mark.parametrize("seed", range(20))
def test_ranges_cover_all_sentences(seed: int, width: int | None) -> None:
    chance = random.Random(seed)
    spread = chance.choice([3, 12, 40, 200])
    lengths = [chance.randint(0, spread) for _ in range(chance.choice([2, 15, 150, 400]))]
    check_ranges(lengths, length_ranges(lengths, width))


@pytest.mark.parametrize(
    ("lengths", "width", "first"),
    [
        (list(range(1, 81)) * 10, None, [(1, 10), (11, 20)]),
        (list(range(1, 31)) * 10, None, [(1, 5), (6, 10)]),
        (list(range(1, 13)) * 20, None, [(1, 2), (3, 4)]),
        (list(range(1, 31)) * 10, 10, [(1, 10), (11, 20), (21, 30)]),
        (list(range(1, 41)), None, [(1, 10), (11, 20), (21, 30), (31, 40)]),  # few: shared out evenly
        ([5] * 100 + [15] * 100 + [300], 10, [(1, 10), (11, 300)]),  # an outlier gets no bucket of its own
        ([7, 9, 300], None, [(1, 300)]),
        ([], None, []),
    ],
)
def test_default_width_depends_on_the_lengths(
    lengths: list[int], width: int | None, first: list[tuple[int, int]]
) -> None:
    assert length_ranges(lengths, width)[: len(first)] == first


def test_bleu_is_computed_per_bucket() -> None:
    sources = ["ein kurzer Satz"] * 12 + ["ein sehr viel längerer Satz mit mehr Wörtern darin"] * 12
    references = ["a short little sentence"] * 12 + ["a much longer sentence with more words in it"] * 12
    hypotheses = ["a short little sentence"] * 12 + ["a much longer sentence of more words in it"] * 12
    short, long = bleu_by_length(sources, hypotheses, references, width=5)
    assert (short.low, short.high, short.sentences, short.mean_length, short.bleu) == (1, 5, 12, 3.0, 100.0)
    assert (long.low, long.high, long.sentences, long.mean_length) == (6, 9, 12, 9.0)
    assert long.bleu == corpus_bleu(hypotheses[12:], references[12:])
    assert (short.label, Bucket(7, 7, 1, 7.0, 0.0).label) == ("1–5", "7")


def test_invalid_input_raises_data_error() -> None:
    with pytest.raises(DataError, match="width of a length bucket must be at least 1 word; got 0"):
        length_ranges([1, 2], width=0)
    with pytest.raises(DataError, match=r"sources and references .*got 1 and 2"):
        bleu_by_length(["a"], ["a", "b"], ["a", "b"])


SYSTEMS = {
    "RNNsearch_50 $x$": [Bucket(1, 10, 60, 6.0, 30.0), Bucket(11, 20, 30, 15.0, 28.0)],
    "_RNNencdec": [Bucket(1, 10, 60, 6.0, 29.0), Bucket(11, 20, 30, 15.0, 12.0)],
}


def test_plot_has_one_line_per_system() -> None:
    above, below = plot_bleu_by_length(SYSTEMS).axes
    assert [line.get_xdata().tolist() for line in above.get_lines()] == [[6.0, 15.0]] * 2
    assert [line.get_ydata().tolist() for line in above.get_lines()] == [[30.0, 28.0], [29.0, 12.0]]
    assert [text.get_text() for text in above.get_legend().get_texts()] == list(SYSTEMS)
    assert [bar.get_height() for bar in below.patches] == [60, 30]
    assert below.get_xlabel() == "source length (words)"
