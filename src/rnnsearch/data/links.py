"""Word alignments as links between symbols, kept on disk beside the ids they belong to.

A link between two words becomes links between all their symbols: every symbol of the target word to every symbol of
the source word. Symbols in no word (EOS, mere spaces) have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.text.alignments import Link, Links, parse_pharaoh
from rnnsearch.text.spans import word_of_symbol, word_spans
from rnnsearch.text.tokenizer import Segmented

Places = npt.NDArray[np.int64]
_DTYPE = np.dtype("<u4")


class SymbolLinks:
    """The links of sentence pairs: one flat array of (source symbol, target symbol) and the end of each pair in it.

    The arrays may be memory-mapped: only the pairs asked for are read.
    """

    def __init__(self, flat: npt.NDArray[Any], ends: npt.NDArray[Any]) -> None:
        assert flat.ndim == 2 and flat.shape[1] == 2
        self._flat = flat
        self._ends = ends

    @classmethod
    def of(cls, links: Sequence[Iterable[Link]]) -> SymbolLinks:
        """From the links of each pair, in memory."""
        rows = [sorted(pair) for pair in links]
        flat = np.array([link for row in rows for link in row], dtype=np.int64).reshape(-1, 2)
        return cls(flat, np.cumsum([len(row) for row in rows], dtype=np.int64))

    @classmethod
    def open(cls, folder: Path, part: str) -> SymbolLinks:
        """What `prepare` wrote."""
        path = folder / f"{part}.links"
        empty = path.stat().st_size == 0  # which cannot be mapped
        flat: npt.NDArray[Any] = np.zeros(0, _DTYPE) if empty else np.memmap(path, dtype=_DTYPE, mode="r")
        return cls(flat.reshape(-1, 2), np.memmap(folder / f"{part}.links.ends", dtype="<u8", mode="r"))

    def __len__(self) -> int:
        return len(self._ends)

    def pair(self, index: int) -> Places:
        """The links of one pair, [n, 2] (source symbol, target symbol)."""
        return self._places(np.array([index]))[1]

    def dense(self, indices: Places, height: int, width: int) -> npt.NDArray[np.bool_]:
        """The links of pairs as matrices [B, I, J] of I = `height` target and J = `width` source symbols."""
        rows, links = self._places(indices)
        matrix = np.zeros((len(indices), height, width), dtype=bool)
        matrix[rows, links[:, 1], links[:, 0]] = True
        return matrix

    def _places(self, indices: Places) -> tuple[Places, Places]:
        """The row of `indices` that each link belongs to [n], and the links [n, 2]."""
        ends = self._ends[indices].astype(np.int64)
        starts = np.where(indices > 0, self._ends[indices - 1], 0).astype(np.int64)
        counts = ends - starts
        rows = np.repeat(np.arange(len(indices)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, np.asarray(self._flat[np.repeat(starts, counts) + within], dtype=np.int64)


def symbol_links(links: Links, source: Segmented, target: Segmented) -> set[Link]:
    """Every symbol of a linked target word to every symbol of its source word; merely possible links count too."""
    sources, targets = (_symbols_of_words(side) for side in (source, target))
    return {(s, t) for i, j in links.possible for s in sources.get(i, ()) for t in targets.get(j, ())}


def _symbols_of_words(segmented: Segmented) -> dict[int, list[int]]:
    symbols: dict[int, list[int]] = {}
    for symbol, word in enumerate(word_of_symbol(segmented.text, segmented.offsets)):
        symbols.setdefault(word, []).append(symbol)
    return symbols


def of_stripped(links: Links, source: str, target: str) -> Links:
    """The links after `str.strip` of both texts, which may take words of white space other than ASCII's away."""
    kept = [_kept_words(text) for text in (source, target)]
    whole = [range(len(word_spans(text))) for text in (source, target)]
    if kept == whole:
        return links

    def moved(old: frozenset[Link]) -> frozenset[Link]:
        inside = ((i, j) for i, j in old if i in kept[0] and j in kept[1])
        return frozenset((i - kept[0].start, j - kept[1].start) for i, j in inside)

    return Links(moved(links.sure), moved(links.possible))


def _kept_words(text: str) -> range:
    """Which words of a text `str.strip` leaves, whole or in part."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    spans = word_spans(text)
    return range(sum(end <= first for _, end in spans), sum(start < last for start, _ in spans))


def links_of_rows(
    sources: Sequence[Segmented], targets: Sequence[Segmented], lines: Sequence[str]
) -> tuple[npt.NDArray[Any], list[int]]:
    """The symbol links of pairs, [n, 2] one pair after the other, and how many each has; `lines` are word links in the
    Pharaoh format."""
    rows = [
        sorted(symbol_links(parse_pharaoh(line, "links"), source, target))
        for source, target, line in zip(sources, targets, lines, strict=True)
    ]
    flat = np.array([link for row in rows for link in row], dtype=_DTYPE).reshape(-1, 2)
    return flat, [len(row) for row in rows]
