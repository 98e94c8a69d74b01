"""One sentence pair's attention as plain text, for a terminal of 80 to 100 columns.

Source words stand as steps of a stair, each above its own column, so that none needs turning; the
darker a cell, the more of a target word's attention:

                  ┌ Ein
                  │  ┌ Mann
                  │  │  ┌ sitzt
    A             ██ ·  ·
    man           ·  ██ ·
    sits          ·  ░░ ▓▓
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size

from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.plots.figures import fonts, no_glyph_warnings, save
from rnnsearch.text.alignments import Link

# What every drawing of attention checks and cleans first: its shape, its numbers, the words around it.

_TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def check_attention(
    attention: NDArray[np.floating[Any]], source_words: Sequence[str], target_words: Sequence[str]
) -> None:
    """Raise RnnsearchError unless `attention` is [target words, source words] of finite numbers."""
    expected = (len(target_words), len(source_words))
    if attention.shape != expected:
        hint = " (is it the transpose?)" if attention.shape == expected[::-1] else ""
        raise RnnsearchError(
            f"attention must have one row a target word and one column a source word, {list(expected)}; "
            f"got {list(attention.shape)}{hint}"
        )
    if not np.isfinite(attention).all():
        raise RnnsearchError("attention must be of finite numbers; got NaN or infinity")


def visible(word: str) -> str:
    """A word whose control characters, line ends and changes of direction are replaced.

    So no sentence can steer the terminal or spoil a file. Joiners, which some scripts need within a word,
    stay.
    """
    return "".join("\N{REPLACEMENT CHARACTER}" if _steers(character) else character for character in word)


def _steers(character: str) -> bool:
    turns = unicodedata.bidirectional(character) in _TURNS
    return turns or unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}


# The attention heat map of Bahdanau et al. (figure 3): which source words each target word came from.

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


_SHADES = ((0.75, "█"), (0.5, "▓"), (0.25, "▒"), (0.1, "░"), (0.0, "·"))
_STAIRS = 28
"""Source words at most in a grid: beyond, the stair of words takes up the screen."""
_LABEL = 20
"""Columns for a target word at most."""
_WORD = 24
"""Columns for a source word at most."""
SCALE = "░ ≥ 10 %  ▒ ≥ 25 %  ▓ ≥ 50 %  █ ≥ 75 %"
"""Shares of the target word's attention."""


def draw(
    attention: NDArray[np.floating[Any]],
    source_words: Sequence[str],
    target_words: Sequence[str],
    width: int = 100,
    scale: bool = False,
    links: Collection[Link] = (),
) -> str:
    """The attention of one sentence pair, drawn; no line is wider than `width` columns (40 or more).

    `attention` is [I, J], target word by source word. A sentence too long for the grid becomes a list of
    `target word <- source word (0.83)`, of its `links` the one of most weight: the most of all may be a word of several
    symbols, over which attention that is nearly even adds up. `scale` adds a line that explains the shades. Words are
    shown without control characters, so that no sentence can steer the terminal.
    Errors: RnnsearchError for a wrong shape or numbers that are not finite.
    """
    check_attention(attention, source_words, target_words)
    sources = [visible(word) for word in source_words]
    targets = [visible(word) for word in target_words]
    if not sources or not targets:
        return "\n".join(targets)
    for pitch in (3, 2) if len(sources) <= _STAIRS else ():
        lines = _grid(attention, sources, targets, pitch)
        if max(cell_len(line) for line in lines) <= width:
            return "\n".join([*lines, *([SCALE] if scale else [])])
    return "\n".join(_list(attention, sources, targets, width, links))


def _grid(attention: NDArray[np.floating[Any]], sources: list[str], targets: list[str], pitch: int) -> list[str]:
    """`pitch` columns a source word: a mark of one less, and a blank."""
    label = min(_LABEL, max(cell_len(word) for word in targets)) + 2
    stairs = [" " * label + "│".ljust(pitch) * j + "┌ " + _truncate(word, _WORD) for j, word in enumerate(sources)]
    rows = []
    for word, weights in zip(targets, attention, strict=True):
        marks = "".join(_mark(float(weight), pitch) for weight in weights)
        rows.append((set_cell_size(_truncate(word, _LABEL), label) + marks).rstrip())
    return stairs + rows


def _mark(weight: float, pitch: int) -> str:
    shade = next((shade for least, shade in _SHADES if weight >= least), "·")
    return (shade if shade == "·" else shade * (pitch - 1)).ljust(pitch)


def _list(
    attention: NDArray[np.floating[Any]], sources: list[str], targets: list[str], width: int, links: Collection[Link]
) -> list[str]:
    """Each target word with the source word that it is linked to or, without a link, attends to most."""
    linked = np.zeros(attention.shape)
    for i, j in links:
        linked[j, i] = 1.0
    room = max((width - len(" <-  (0.00)")) // 2, 4)
    label = min(room, max(cell_len(word) for word in targets))
    lines = []
    for word, weights, own in zip(targets, attention, linked, strict=True):
        best = int((weights + own * (1.0 + weights.max())).argmax())
        left = set_cell_size(_truncate(word, label), label)
        lines.append(f"{left} <- {_truncate(sources[best], room)} ({float(weights[best]):.2f})")
    return lines


def _truncate(word: str, width: int) -> str:
    return word if cell_len(word) <= width else set_cell_size(word, width - 1).rstrip() + "…"
