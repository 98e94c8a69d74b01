"""Attention of one sentence pair as text for a terminal; no matplotlib is needed.

The text fits 80 to 100 columns. Each source word is above its own column, so none is rotated; the darker a cell, the
higher the weight:

                  ┌ Ein
                  │  ┌ Mann
                  │  │  ┌ sitzt
    A             ██ ·  ·
    man           ·  ██ ·
    sits          ·  ░░ ▓▓

The commands (`evaluate`, the prompt, `train`) call it, and `heatmap.py` shares its checks; attention is [target words,
source words]. Words may contain any character: `printable` removes control characters. Tests:
tests/plots/test_terminal.py.

Axes: I target words, J source words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size

from rnnsearch.errors import RnnsearchError
from rnnsearch.text.alignments import Link

_DIRECTION_CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def check_attention(
    attention: NDArray[np.floating[Any]], source_words: Sequence[str], target_words: Sequence[str]
) -> None:
    """Raise RnnsearchError unless `attention` is [target words, source words] of finite values."""
    expected = (len(target_words), len(source_words))
    if attention.shape != expected:
        hint = " (is it the transpose?)" if attention.shape == expected[::-1] else ""
        raise RnnsearchError(
            f"attention must have one row per target word and one column per source word, {list(expected)}; "
            f"got {list(attention.shape)}{hint}"
        )
    if not np.isfinite(attention).all():
        raise RnnsearchError("attention must have finite values; got NaN or infinity")


def printable(word: str) -> str:
    """Return a word with control characters, line ends and direction marks replaced.

    No sentence can then control the terminal or spoil a file. Joiners, which some scripts need
    within words, stay.
    """
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_control(character) else character for character in word)


def _is_control(character: str) -> bool:
    if unicodedata.bidirectional(character) in _DIRECTION_CONTROLS:
        return True
    return unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}


_SHADES = ((0.75, "█"), (0.5, "▓"), (0.25, "▒"), (0.1, "░"), (0.0, "·"))
_MAX_GRID_WORDS = 28
"""Maximum number of source words in a grid; with more, their labels would fill the screen."""
_MAX_TARGET_COLUMNS = 20
"""Maximum width of a target word."""
_MAX_SOURCE_COLUMNS = 24
"""Maximum width of a source word."""
SHADE_LEGEND = "░ ≥ 10 %  ▒ ≥ 25 %  ▓ ≥ 50 %  █ ≥ 75 %"
"""Meaning of the shades: the target word's attention weight."""


def text_heatmap(
    attention: NDArray[np.floating[Any]],
    source_words: Sequence[str],
    target_words: Sequence[str],
    width: int = 100,
    scale: bool = False,
    links: Collection[Link] = (),
) -> str:
    """Return the attention of one sentence pair as text of at most `width` columns.

    A sentence that is too long for a grid becomes a list of `target word <- source word (0.83)`. Each target word is
    listed with its link of the largest weight; without a link, with the source word of the largest weight. (With nearly
    uniform attention, the largest weight may be that of a word with many tokens.) Control characters are replaced, so
    no sentence can control the terminal.

    Args:
        attention: [I, J], weights of the J source words for each target word.
        source_words: The source words.
        target_words: The target words.
        width: Maximum width, at least 40.
        scale: If True, append a line that explains the shades.
        links: Links (source word, target word).

    Raises:
        RnnsearchError: The shape is wrong, or values are not finite.
    """
    check_attention(attention, source_words, target_words)
    sources = [printable(word) for word in source_words]
    targets = [printable(word) for word in target_words]
    if not sources or not targets:
        return "\n".join(targets)
    for pitch in (3, 2) if len(sources) <= _MAX_GRID_WORDS else ():
        lines = _grid(attention, sources, targets, pitch)
        if max(cell_len(line) for line in lines) <= width:
            return "\n".join([*lines, *([SHADE_LEGEND] if scale else [])])
    return "\n".join(_list(attention, sources, targets, width, links))


def _grid(attention: NDArray[np.floating[Any]], sources: list[str], targets: list[str], pitch: int) -> list[str]:
    """Return the lines of a grid with `pitch` columns per source word: a cell and a space."""
    label_width = min(_MAX_TARGET_COLUMNS, max(cell_len(word) for word in targets)) + 2
    header = [
        " " * label_width + "│".ljust(pitch) * j + "┌ " + _truncate(word, _MAX_SOURCE_COLUMNS)
        for j, word in enumerate(sources)
    ]
    rows = []
    for word, weights in zip(targets, attention, strict=True):
        cells = "".join(_cell(float(weight), pitch) for weight in weights)
        rows.append((set_cell_size(_truncate(word, _MAX_TARGET_COLUMNS), label_width) + cells).rstrip())
    return header + rows


def _cell(weight: float, pitch: int) -> str:
    shade = next((shade for minimum, shade in _SHADES if weight >= minimum), "·")
    return (shade if shade == "·" else shade * (pitch - 1)).ljust(pitch)


def _list(
    attention: NDArray[np.floating[Any]], sources: list[str], targets: list[str], width: int, links: Collection[Link]
) -> list[str]:
    """Return one line per target word, with the source word that it is linked to or attends to most."""
    linked = np.zeros(attention.shape)
    for i, j in links:
        linked[j, i] = 1.0
    max_label = max((width - len(" <-  (0.00)")) // 2, 4)
    label_width = min(max_label, max(cell_len(word) for word in targets))
    lines = []
    for word, weights, is_linked in zip(targets, attention, linked, strict=True):
        best = int((weights + is_linked * (1.0 + weights.max())).argmax())
        target = set_cell_size(_truncate(word, label_width), label_width)
        lines.append(f"{target} <- {_truncate(sources[best], max_label)} ({float(weights[best]):.2f})")
    return lines


def _truncate(word: str, width: int) -> str:
    return word if cell_len(word) <= width else set_cell_size(word, width - 1).rstrip() + "…"
