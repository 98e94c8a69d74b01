"""Attention over the regions of an image: one picture of the grid per word (Xu et al. 2015, figure 3).

`translator/translation.py` calls it for sources with a grid. Tests: tests/plots/test_regions.py.

Axes: I target words, J regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rnnsearch.metrics.plots.figures import fonts, no_glyph_warnings
from rnnsearch.metrics.plots.terminal import check_attention, printable

_COLUMNS = 8
"""Maximum number of pictures in a row."""
_INCHES = 1.1
"""Width and height of a picture."""
_MAX_LABEL_CHARACTERS = 16


def region_figure(
    attention: NDArray[np.floating[Any]],
    grid: tuple[int, int],
    target_words: Sequence[str],
    image: NDArray[np.floating[Any]] | None = None,
) -> Figure:
    """Plot attention weights over a grid of regions, one picture per word, 0 black and 1 white.

    Args:
        attention: [I, J], weights of the regions, in reading order, for each word.
        grid: Rows and columns of the grid; their product is J.
        target_words: Titles of the pictures.
        image: The whole image [height, width], on which bright regions have the attention; None to plot weights only.

    Raises:
        RnnsearchError: The shape is wrong, or values are not finite.
    """
    height, width = grid
    check_attention(attention, [""] * (height * width), target_words)
    pictures = max(len(target_words), 1)
    columns = min(pictures, _COLUMNS)
    rows = -(-pictures // columns)
    figure = Figure(figsize=(columns * _INCHES, rows * (_INCHES + 0.25)), facecolor="white", layout="constrained")
    extent = (0.0, float(width), float(height), 0.0)
    for number, (word, weights) in enumerate(zip(target_words, attention, strict=True), 1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_axis_off()
        if image is not None:
            axes.imshow(image, cmap="gray_r", extent=extent, interpolation="nearest")
        options: dict[str, Any] = {"cmap": "gray", "vmin": 0.0, "vmax": 1.0, "interpolation": "nearest"}
        overlay = 1.0 if image is None else 0.6
        axes.imshow(weights.reshape(height, width), extent=extent, alpha=overlay, **options)
        label = word if len(word) <= _MAX_LABEL_CHARACTERS else word[: _MAX_LABEL_CHARACTERS - 1] + "…"
        axes.set_title(printable(label), fontsize=9, fontfamily=fonts(), parse_math=False)
    with no_glyph_warnings():
        figure.draw_without_rendering()
    return figure
