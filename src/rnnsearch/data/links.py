"""Word alignments as links between tokens, stored next to the ids.

A link between two words becomes links between all their tokens. Tokens outside words (EOS, spaces) have none.

`preprocess.py` computes them, `prepared.py` opens their file, and `batches.py` reads them for supervised attention.
`LINK_TYPE` is the type in the file.

Axes: B rows, I target and J source positions; links are (source, target), matrices [target, source].
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from rnnsearch.data.ragged import Integers, RaggedArray
from rnnsearch.text.alignments import Link, Links, parse_pharaoh, word_of_token, word_spans
from rnnsearch.text.tokenizer import Segmented

LINK_TYPE = "<u4"
"""Stored type of token positions."""


def ragged_links(rows: Iterable[Iterable[Link]]) -> RaggedArray:
    """Return the token links of pairs as rows of (source position, target position)."""
    return RaggedArray.from_rows([sorted(links) for links in rows], columns=2)


def links_matrix(links: RaggedArray, indices: Integers, height: int, width: int) -> npt.NDArray[np.bool_]:
    """Return the links of pairs as matrices [B, I, J] of I = `height` target and J = `width` source tokens."""
    values, rows, _ = links.values(indices)
    matrix = np.zeros((len(indices), height, width), dtype=bool)
    # Links are stored as (source, target), and the matrix is [pair, target, source].
    matrix[rows, values[:, 1], values[:, 0]] = True
    return matrix


def token_links(links: Links, source: Segmented, target: Segmented) -> set[Link]:
    """Return the links between all tokens of linked words, including possible links."""
    source_tokens = _tokens_by_word(source)
    target_tokens = _tokens_by_word(target)
    return {
        (s, t)
        for source_word, target_word in links.possible
        for s in source_tokens.get(source_word, ())
        for t in target_tokens.get(target_word, ())
    }


def _tokens_by_word(segmented: Segmented) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    for token, word in enumerate(word_of_token(segmented.text, segmented.offsets)):
        tokens.setdefault(word, []).append(token)
    return tokens


def strip_links(links: Links, source: str, target: str) -> Links:
    """Return the links after `str.strip` of both texts, which may remove words of non-ASCII white space."""
    source_words = _words_after_strip(source)
    target_words = _words_after_strip(target)

    def shift(old: frozenset[Link]) -> frozenset[Link]:
        inside = ((i, j) for i, j in old if i in source_words and j in target_words)
        return frozenset((i - source_words.start, j - target_words.start) for i, j in inside)

    return Links(shift(links.sure), shift(links.possible))


def _words_after_strip(text: str) -> range:
    """Return the indices of the words that `str.strip` does not remove completely."""
    start = len(text) - len(text.lstrip())
    stop = len(text.rstrip())
    spans = word_spans(text)
    first = sum(word_end <= start for _, word_end in spans)
    return range(first, sum(word_start < stop for word_start, _ in spans))


def links_of_rows(sources: Sequence[Segmented], targets: Sequence[Segmented], lines: Sequence[str]) -> list[set[Link]]:
    """Return the token links of pairs whose word links are given as lines in the Pharaoh format."""
    pairs = zip(sources, targets, lines, strict=True)
    return [token_links(parse_pharaoh(line, "links"), source, target) for source, target, line in pairs]
