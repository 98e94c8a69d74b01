"""The attention heat map of Bahdanau et al. (figure 3): which source words each target word came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rnnsearch.plots.attention import check_attention, visible
from rnnsearch.plots.figures import fonts, no_glyph_warnings, save

__all__ = ["heatmap", "save"]

_LONGEST_SIDE = 12.0
"""Inches that the grid of a long sentence is kept within."""
_LONGEST_WORD = 30
"""Characters of a word that are shown; an address in a sentence must not fill the page."""


def heatmap(
    attention: NDArray[np.floating[Any]],
    source_words: Sequence[str],
    target_words: Sequence[str],
) -> Figure:
    """Source words along the top, target words down the side; 0 is black, 1 is white.

    `attention` is [I, J]: row i says how target word i spread its attention over the J source words.
    Cells shrink, and the words with them, until a long sentence fits 12 inches; they end at a tenth of one.
    Errors: RnnsearchError for a wrong shape or numbers that are not finite.
    """
    check_attention(attention, source_words, target_words)
    rows, columns = max(len(target_words), 1), max(len(source_words), 1)
    cell = float(np.clip(_LONGEST_SIDE / max(rows, columns), 0.1, 0.34))
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
    """Words on the ticks, as plain text: a `$` in a sentence begins no formula."""
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(source_words)))
    axes.set_yticks(range(len(target_words)))
    axes.tick_params(length=0, pad=3)
    sources, targets = [_cut(word) for word in source_words], [_cut(word) for word in target_words]
    plain: dict[str, Any] = {"fontsize": size, "fontfamily": fonts(), "parse_math": False}
    axes.set_xticklabels(sources, **plain, rotation=60, rotation_mode="anchor", ha="left", va="center")
    axes.set_yticklabels(targets, **plain)


def _cut(word: str) -> str:
    return visible(word if len(word) <= _LONGEST_WORD else word[: _LONGEST_WORD - 1] + "…")


def _fit(figure: Figure, axes: Axes) -> None:
    """Grow the figure around its grid, which keeps its size, until every word lies inside."""
    width, height = figure.get_size_inches()
    box = axes.get_tightbbox()
    edge = 0.1
    if box is None:
        return
    left, right = edge - box.x0 / figure.dpi, box.x1 / figure.dpi - width + edge
    bottom, top = edge - box.y0 / figure.dpi, box.y1 / figure.dpi - height + edge
    whole = (width + left + right, height + bottom + top)
    figure.set_size_inches(*whole)
    axes.set_position((left / whole[0], bottom / whole[1], width / whole[0], height / whole[1]))
