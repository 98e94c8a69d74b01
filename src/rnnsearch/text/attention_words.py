"""What a target text's words attend to: attention over words, and links from it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rnnsearch.text.alignments import (
    NO_WORD,
    Link,
    Weights,
    attention_of_symbols,
    links_from_attention,
    links_of_words,
    symbols_to_words,
    without_punctuation,
    word_of_symbol,
    word_spans,
)
from rnnsearch.text.tokenizer import Segmented


@dataclass(frozen=True)
class Attended:
    """A source and a target text, `attention` [T, J] over their symbols with EOS, a row and a column of its own (None:
    there is none), and what follows from these, which takes as long as a short search: each is found when it is first
    asked for. read: as `attention_of_symbols`'."""

    source: Segmented
    target: Segmented
    attention: Weights | None
    read: bool = False

    @cached_property
    def token_words(self) -> list[int]:
        """The target's word that each of its symbols lies in, NO_WORD for a mere space."""
        return word_of_symbol(self.target.text, self.target.offsets)

    @cached_property
    def weights(self) -> Weights | None:
        """[target's words, source's words]; None without attention."""
        if self._by_words is None:
            return None
        found = symbols_to_words(*self._by_words)
        # A last word may have no symbol of its own.
        weights = np.zeros([len(word_spans(side.text)) for side in (self.target, self.source)], dtype=found.dtype)
        weights[: len(found), : found.shape[1]] = found
        return weights

    @cached_property
    def words(self) -> tuple[Link, ...]:
        """(source, target) links of words, zero-based: each target word to what its symbols attend to most."""
        return () if self._by_words is None else tuple(sorted(links_of_words(*self._by_words)))

    @cached_property
    def tokens(self) -> tuple[Link, ...]:
        """The same of symbols."""
        return () if self._inner is None else tuple(sorted(links_from_attention(self._inner)))

    @cached_property
    def _inner(self) -> Weights | None:
        """Attention over symbols alone, without EOS, which has its own row and column."""
        if self.attention is None:
            return None
        return attention_of_symbols(self.attention, len(self.target.ids), self.read)[:, : len(self.source.ids)]

    @cached_property
    def _by_words(self) -> tuple[Weights, list[int], list[int]] | None:
        """That with the words of its columns and rows, punctuation apart; None without attention."""
        if self._inner is None:
            return None
        source, target = self.source, self.target
        columns = without_punctuation(word_of_symbol(source.text, source.offsets), source.text, source.offsets)
        pieces, words = _pieces(target, without_punctuation(self.token_words, target.text, target.offsets))
        return self._inner[pieces], columns, words


def _pieces(target: Segmented, words: list[int]) -> tuple[list[int], list[int]]:
    """The symbols and their words, a symbol once for each word: an unknown one may stand for several."""
    pieces, found = list[int](), list[int]()
    starts = [start for start, _ in word_spans(target.text)]
    for n, (first, (_, end)) in enumerate(zip(words, target.offsets, strict=True)):
        last = first
        while NO_WORD != last < len(starts) - 1 and starts[last + 1] < end:
            last += 1
        own = range(first, last + 1)
        pieces += [n] * len(own)
        found += own
    return pieces, found
