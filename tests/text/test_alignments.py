"""The Pharaoh format, attention over words, links from it, and symmetrisation."""

import math
import random

import numpy as np
import pytest

from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text import alignments
from rnnsearch.text.alignments import (
    Link,
    Links,
    attention_information,
    attention_over_words,
    format_pharaoh,
    links_from_attention,
    parse_pharaoh,
    read_pharaoh,
    sparse_product,
    symmetrise,
    token_attention,
    word_links,
)


def test_parsing_sure_and_possible_links():
    links = parse_pharaoh(" 0-0 2p1\t10?11 0-0\r", "gold:1")
    assert links.sure == {(0, 0)}
    assert links.possible == {(0, 0), (2, 1), (10, 11)}
    assert parse_pharaoh("", "gold:1") == Links(frozenset(), frozenset())


@pytest.mark.parametrize("bad", ["0-", "-1-2", "a-b", "0:1", "1-2-3", "1--2", "٣-١", "0_1", "1.0-2", "0-9999999999"])
def test_malformed_links_are_reported_with_file_and_line(bad):
    with pytest.raises(DataError) as caught:
        parse_pharaoh(f"0-0 {bad} 1-1", "gold.align:7")
    message = f'gold.align:7: a link must be i-j, or ipj or i?j if it is only possible; got "{bad}"'
    assert str(caught.value) == message


def test_formatted_links_are_sorted_and_parse_back():
    links = parse_pharaoh("10-2 2-10 1p1 2?3", "here")
    assert format_pharaoh(links) == "1p1 2p3 2-10 10-2"
    assert parse_pharaoh(format_pharaoh(links), "here") == links
    assert format_pharaoh({(1, 0), (0, 2), (0, 1)}) == "0-1 0-2 1-0"
    assert format_pharaoh(set()) == ""


def test_read_pharaoh_returns_one_entry_per_line(tmp_path):
    path = tmp_path / "gold.align"
    path.write_text("0-0\n\n1p0\n\n", encoding="utf-8")
    assert [format_pharaoh(links) for links in read_pharaoh(path)] == ["0-0", "", "1p0", ""]
    path.write_text("", encoding="utf-8")
    assert read_pharaoh(path) == []
    path.write_text("0-0\r\n1-1", encoding="utf-8")
    assert [format_pharaoh(links) for links in read_pharaoh(path)] == ["0-0", "1-1"]


def test_unreadable_files_raise_data_error(tmp_path):
    path = tmp_path / "gold.align"
    with pytest.raises(DataError, match=r"gold\.align: the alignment file cannot be read: No such file"):
        read_pharaoh(path)
    path.write_bytes(b"0-0\n\xff\n")
    with pytest.raises(DataError, match=r"gold\.align: an alignment file must be text in UTF-8"):
        read_pharaoh(path)
    path.write_text("0-0\n1-x\n", encoding="utf-8")
    with pytest.raises(DataError, match=r'gold\.align:2: a link must be .*; got "1-x"'):
        read_pharaoh(path)


def test_attention_over_words_equals_a_loop():
    rng = np.random.default_rng(1)
    attention = rng.dirichlet(np.ones(6), size=5)
    source, target = [0, 0, 1, 3, 2, -1], [0, 1, 1, 1, -1]
    expected = np.zeros((2, 4))
    for i in range(2):
        rows = [r for r in range(5) if target[r] == i]
        for j in range(4):
            expected[i, j] = sum(attention[r, c] for r in rows for c in range(6) if source[c] == j) / len(rows)
    np.testing.assert_allclose(attention_over_words(attention, source, target), expected, rtol=1e-12)


def test_sparse_product_equals_the_product(monkeypatch):
    monkeypatch.setattr(alignments, "MAX_PRODUCT", 0)
    rng = np.random.default_rng(5)
    for rows in (0, 1, 7):
        left = rng.random((rows, 5)) * (rng.random((rows, 5)) < 0.3)
        right = rng.random((5, 3))
        np.testing.assert_allclose(sparse_product(left, right), left @ right, rtol=1e-12)


def test_word_links_equal_a_loop():
    rng = np.random.default_rng(3)
    for _ in range(50):
        attention = rng.dirichlet(np.ones(6), size=5).round(1)  # with equals and zeros
        source, target = rng.integers(-1, 3, 6).tolist(), rng.integers(-1, 3, 5).tolist()
        expected = set()
        for row, word in zip(attention, target, strict=True):
            places = [j for j in range(6) if source[j] >= 0 and row[j] > 0]
            if word >= 0 and places:
                best = max(places, key=lambda j: (row[j], -j))
                expected.add((source[best], word))
        assert word_links(attention, source, target) == expected
    assert word_links(np.ones((1, 1)), [-1], [0]) == set()


def test_words_of_many_tokens_are_not_preferred():
    attention = np.full((4, 5), 0.2) + np.eye(4, 5) * 0.01
    assert word_links(attention, [0, 1, 2, 2, 2], [0, 1, 2, 2]) == {(0, 0), (1, 1), (2, 2)}


def test_attention_over_words_keeps_the_type_and_rows_sum_to_one_without_eos():
    attention = np.full((2, 4), 0.25, dtype=np.float32)
    words = attention_over_words(attention, [0, 0, 1, 1], [0, 0])
    assert words.dtype == np.float32
    np.testing.assert_array_equal(words, [[0.5, 0.5]])
    assert attention_over_words(np.zeros((1, 1)), [-1], [-1]).shape == (0, 0)


def test_links_from_attention_take_the_maximum():
    attention = np.array([[0.1, 0.9, 0.0], [0.4, 0.2, 0.4], [0.0, 0.0, 0.0]])
    assert links_from_attention(attention) == {(1, 0), (0, 1)}
    assert links_from_attention(attention, threshold=0.3) == {(1, 0), (0, 1), (2, 1)}
    assert links_from_attention(attention, threshold=0.95) == {(1, 0), (0, 1)}
    assert links_from_attention(attention, threshold=0.0) == {(0, 0), (1, 0), (0, 1), (1, 1), (2, 1)}
    assert links_from_attention(np.zeros((0, 0))) == links_from_attention(np.zeros((2, 0))) == set()


def test_information_equals_a_loop():
    attention = np.random.default_rng(2).dirichlet(np.ones(6), size=5) * 0.9  # local-p's rows sum to less
    expected = 0.0
    for row in attention:
        for column, p in enumerate(row / row.sum()):
            mean = sum(other[column] / other.sum() for other in attention) / 5
            expected += p * math.log(p / mean) / 5 / math.log(5)
    assert attention_information(attention) == pytest.approx(expected)


def test_information_measures_differences_between_rows():
    one = np.zeros((4, 6))
    one[:, 2] = 1
    assert attention_information(one) == attention_information(np.full((4, 6), 1 / 6)) == 0
    assert attention_information(np.eye(4, 6)) == pytest.approx(1)
    assert attention_information(np.vstack([np.eye(4), np.zeros((1, 4))])) == pytest.approx(1), (
        "a row of zeros looks nowhere"
    )
    assert (
        attention_information(np.ones((1, 6)))
        is attention_information(np.ones((6, 1)))
        is attention_information(np.zeros((0, 0)))
        is None
    )


FORWARD: set[Link] = {(0, 0), (1, 1), (2, 1), (4, 4)}
BACKWARD: set[Link] = {(0, 0), (1, 1), (1, 2), (3, 0), (5, 5)}


def test_symmetrisation_methods():
    assert symmetrise(FORWARD, BACKWARD, "intersection") == {(0, 0), (1, 1)}
    assert symmetrise(FORWARD, BACKWARD, "union") == FORWARD | BACKWARD
    # (3, 0) touches (2, 1), once that is in; (4, 4) and (5, 5) touch no link that is.
    assert symmetrise(FORWARD, BACKWARD, "grow-diag") == {(0, 0), (1, 1), (2, 1), (1, 2), (3, 0)}


def test_grow_diag_grows_step_by_step_and_stops_at_aligned_words():
    # (1, 1) frees the way to (2, 2); (0, 1) joins two words that both have links by then.
    assert symmetrise([(0, 0), (1, 1), (2, 2)], [(0, 0)], "grow-diag") == {(0, 0), (1, 1), (2, 2)}
    full = {(0, 0), (1, 1)}
    assert symmetrise(full | {(0, 1)}, full, "grow-diag") == full


def test_symmetrised_links_lie_between_intersection_and_union():
    rng = random.Random(1)
    for _ in range(100):
        forward, backward = ({(rng.randrange(6), rng.randrange(6)) for _ in range(8)} for _ in range(2))
        grown = symmetrise(forward, backward, "grow-diag")
        assert forward & backward <= grown <= forward | backward
        assert grown == symmetrise(backward, forward, "grow-diag")


def test_grow_diag_final_and_adds_links_of_free_words():
    """First of the forward direction; of words that are free on both sides alone."""
    forward, backward = {(0, 0), (5, 3), (4, 6)}, {(0, 0), (5, 4), (2, 3), (2, 6), (7, 7)}
    assert symmetrise(forward, backward, "grow-diag") == {(0, 0)}
    assert symmetrise(forward, backward, "grow-diag-final-and") == {(0, 0), (5, 3), (4, 6), (7, 7)}


def test_unknown_symmetrisation_raises_config_error():
    with pytest.raises(ConfigError) as caught:
        symmetrise(set(), set(), "grow-daig")
    message = "symmetrisation must be one of intersection, union, grow-diag, grow-diag-final-and"
    assert str(caught.value) == f'{message}; got "grow-daig" (did you mean "grow-diag"?)'


def test_attention_of_read_words_is_the_next_row():
    attention = np.arange(12.0).reshape(4, 3)  # three symbols and the end
    assert np.array_equal(token_attention(attention, 3, read=False), attention[:3])
    assert np.array_equal(token_attention(attention, 3, read=True), attention[1:])
    cut = token_attention(attention[:3], 3, read=True)
    assert np.array_equal(cut, [*attention[1:3], [0, 0, 0]])
