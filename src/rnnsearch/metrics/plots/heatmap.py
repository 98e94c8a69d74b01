"""Attention of one sentence pair as an image (Bahdanau et al., figure 3).

`translator/translation.py` and `rnnsearch plot` call it; attention is [target words, source words]. Tests:
tests/plots/test_heatmap.py.

Axes: I target words, J source words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rnnsearch.metrics.plots.figures import fonts, no_glyph_warnings, save
from rnnsearch.metrics.plots.terminal import check_attention, printable

__all__ = ["heatmap", "save"]

_MAX_GRID_INCHES = 12.0
"""Maximum width and height of the grid, unless its cells reach their minimum size."""
_MAX_LABEL_CHARACTERS = 30
"""Maximum length of a word label; a URL in a sentence must not fill the page."""


def heatmap(
    attention: NDArray[np.floating[Any]],
    source_words: Sequence[str],
    target_words: Sequence[str],
) -> Figure:
    """Plot attention weights, 0 black and 1 white, with source words along the top and target words on the left.

    For a long sentence, cells and words shrink until the grid fits 12 inches, to at least a tenth
    of an inch.

    Args:
        attention: [I, J], weights of the J source words for each target word.
        source_words: Labels of the columns.
        target_words: Labels of the rows.

    Raises:
        RnnsearchError: The shape is wrong, or values are not finite.
    """
    check_attention(attention, source_words, target_words)
    rows, columns = max(len(target_words), 1), max(len(source_words), 1)
    cell = float(np.clip(_MAX_GRID_INCHES / max(rows, columns), 0.1, 0.34))
    size = float(np.clip(cell * 72 * 0.5, 4.0, 11.0))
    figure = Figure(figsize=(columns * cell, rows * cell), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    if attention.size:
        axes.imshow(attention, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest", aspect="auto")
    _label(axes, source_words, target_words, size)
    with no_glyph_warnings():
        _fit(figure, axes)
    return figure


def _label(axes: Axes, source_words: Sequence[str], target_words: Sequence[str], size: float) -> None:
    """Label the ticks with words as plain text: a `$` does not start a formula."""
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(source_words)))
    axes.set_yticks(range(len(target_words)))
    axes.tick_params(length=0, pad=3)
    sources = [_shorten(word) for word in source_words]
    targets = [_shorten(word) for word in target_words]
    options: dict[str, Any] = {"fontsize": size, "fontfamily": fonts(), "parse_math": False}
    axes.set_xticklabels(sources, **options, rotation=60, rotation_mode="anchor", ha="left", va="center")
    axes.set_yticklabels(targets, **options)


def _shorten(word: str) -> str:
    return printable(word if len(word) <= _MAX_LABEL_CHARACTERS else word[: _MAX_LABEL_CHARACTERS - 1] + "…")


def _fit(figure: Figure, axes: Axes) -> None:
    """Enlarge the figure around its grid until every word is inside."""
    width, height = figure.get_size_inches()
    box = axes.get_tightbbox()
    margin = 0.1
    if box is None:
        return
    left = margin - box.x0 / figure.dpi
    right = box.x1 / figure.dpi - width + margin
    bottom = margin - box.y0 / figure.dpi
    top = box.y1 / figure.dpi - height + margin
    full_width = width + left + right
    full_height = height + bottom + top
    figure.set_size_inches(full_width, full_height)
    axes.set_position((left / full_width, bottom / full_height, width / full_width, height / full_height))
