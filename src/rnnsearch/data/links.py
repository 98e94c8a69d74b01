"""Word alignments as links between symbols, kept beside the ids they belong to.

A link between two words becomes links between all their symbols: every symbol of the target word to every symbol of
the source word. Symbols in no word (EOS, mere spaces) have none.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from rnnsearch.data.ragged import Integers, RaggedArray
from rnnsearch.text.alignments import Link, Links, parse_pharaoh, word_of_symbol, word_spans
from rnnsearch.text.tokenizer import Segmented

LINK_TYPE = "<u4"
"""What the places of linked symbols are kept as."""


def ragged_links(rows: Iterable[Iterable[Link]]) -> RaggedArray:
    """The symbol links of pairs, each row of (source symbol, target symbol)."""
    return RaggedArray.from_rows([sorted(links) for links in rows], columns=2)


def links_matrix(links: RaggedArray, indices: Integers, height: int, width: int) -> npt.NDArray[np.bool_]:
    """The links of pairs as matrices [B, I, J] of I = `height` target and J = `width` source symbols."""
    values, rows, _ = links.values(indices)
    matrix = np.zeros((len(indices), height, width), dtype=bool)
    matrix[rows, values[:, 1], values[:, 0]] = True
    return matrix


def token_links(links: Links, source: Segmented, target: Segmented) -> set[Link]:
    """Every symbol of a linked target word to every symbol of its source word; merely possible links count too."""
    sources, targets = (_symbols_of_words(side) for side in (source, target))
    return {(s, t) for i, j in links.possible for s in sources.get(i, ()) for t in targets.get(j, ())}


def _symbols_of_words(segmented: Segmented) -> dict[int, list[int]]:
    symbols: dict[int, list[int]] = {}
    for symbol, word in enumerate(word_of_symbol(segmented.text, segmented.offsets)):
        symbols.setdefault(word, []).append(symbol)
    return symbols


def strip_links(links: Links, source: str, target: str) -> Links:
    """The links after `str.strip` of both texts, which may take words of white space other than ASCII's away."""
    sources, targets = _kept_words(source), _kept_words(target)

    def moved(old: frozenset[Link]) -> frozenset[Link]:
        inside = ((i, j) for i, j in old if i in sources and j in targets)
        return frozenset((i - sources.start, j - targets.start) for i, j in inside)

    return Links(moved(links.sure), moved(links.possible))


def _kept_words(text: str) -> range:
    """Which words of a text `str.strip` leaves, whole or in part."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    spans = word_spans(text)
    return range(sum(end <= first for _, end in spans), sum(start < last for start, _ in spans))


def links_of_rows(sources: Sequence[Segmented], targets: Sequence[Segmented], lines: Sequence[str]) -> list[set[Link]]:
    """The symbol links of pairs; `lines` are word links in the Pharaoh format."""
    pairs = zip(sources, targets, lines, strict=True)
    return [token_links(parse_pharaoh(line, "links"), source, target) for source, target, line in pairs]
