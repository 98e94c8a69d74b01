"""Alignments in the terminal are readable, fit its width, and contain no control sequences."""

import numpy as np
import pytest
from rich.cells import cell_len

from rnnsearch.metrics.plots.terminal import SHADE_LEGEND, text_heatmap


def test_short_sentences_are_drawn_as_a_grid():
    attention = np.array([[0.9, 0.1, 0.0], [0.0, 0.6, 0.4], [0.09, 0.11, 0.8]])
    assert text_heatmap(attention, ["Ein", "Mann", "sitzt"], ["A", "man", "sits"], scale=True).splitlines() == [
        "      ┌ Ein",
        "      │  ┌ Mann",
        "      │  │  ┌ sitzt",
        "A     ██ ░░ ·",
        "man   ·  ▓▓ ▒▒",
        "sits  ·  ░░ ██",
        SHADE_LEGEND,
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("words", [1, 9, 20, 28, 60])
def test_lines_fit_the_width(width, words):
    source = [("Wort" * (n % 9 + 1)) for n in range(words)]
    target = [("語" * (n % 15 + 1)) for n in range(words)]
    text = text_heatmap(np.eye(words), source, target, width, scale=True)
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_columns_narrow_before_a_list_is_used():
    words = [f"w{n}" for n in range(20)]
    wide, narrow, listed = (text_heatmap(np.eye(20), words, words, width) for width in (80, 60, 40))
    assert "██" in wide
    assert "██" not in narrow
    assert "█" in narrow
    assert listed.splitlines()[3] == "w3  <- w3 (1.00)"


def test_long_sentences_become_a_list():
    words = [f"word{n}" for n in range(40)]
    lines = text_heatmap(np.full((2, 40), 0.02) + np.eye(2, 40), words, ["eins", "zweitens"]).splitlines()
    assert lines == ["eins     <- word0 (1.02)", "zweitens <- word1 (1.02)"]


def test_a_list_shows_links():
    words, weights = [f"word{n}" for n in range(40)], np.full((3, 40), 0.02)
    weights[0, 7], weights[0, 3], weights[1, 5], weights[1, 9], weights[2, 4] = 0.3, 0.2, 0.1, 0.12, 0.1
    lines = text_heatmap(weights, words, ["eins", "zwei", "drei"], links=[(3, 0), (5, 1), (9, 1)]).splitlines()
    assert lines == ["eins <- word3 (0.20)", "zwei <- word9 (0.12)", "drei <- word4 (0.10)"]


def test_wide_characters_stay_aligned():
    lines = text_heatmap(np.eye(2), ["私", "は"], ["語", "me"]).splitlines()
    assert [lines[2], lines[3]] == ["語  ██ ·", "me  ·  ██"]


def test_control_characters_do_not_reach_the_terminal():
    text = text_heatmap(np.eye(2), ["\x1b[31mred", "a\u202eb"], ["x\ry", "\u0646\u200c\u0645"])
    assert not set("\x1b\u202e\r") & set(text)
    assert "\u0646\u200c\u0645" in text


def test_empty_sentences_give_no_grid():
    assert text_heatmap(np.zeros((0, 2)), ["a", "b"], []) == ""
    assert text_heatmap(np.zeros((1, 0)), [], ["x"]) == "x"
