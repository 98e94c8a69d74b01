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

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size

from rnnsearch.plots.attention import check_attention, visible
from rnnsearch.text.alignments import Link

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
    stairs = [" " * label + "│".ljust(pitch) * j + "┌ " + _cut(word, _WORD) for j, word in enumerate(sources)]
    rows = []
    for word, weights in zip(targets, attention, strict=True):
        marks = "".join(_mark(float(weight), pitch) for weight in weights)
        rows.append((set_cell_size(_cut(word, _LABEL), label) + marks).rstrip())
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
        left = set_cell_size(_cut(word, label), label)
        lines.append(f"{left} <- {_cut(sources[best], room)} ({float(weights[best]):.2f})")
    return lines


def _cut(word: str, width: int) -> str:
    return word if cell_len(word) <= width else set_cell_size(word, width - 1).rstrip() + "…"
