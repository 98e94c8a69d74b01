"""Attention between the words of a sentence pair, and links from it.

`translator/translation.py` computes the word alignment of a `Translation` with it. Tests: tests/test_translation.py.

Axes: attention is [target, source], links are (source, target).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rnnsearch.text.alignments import (
    NO_WORD,
    AttentionMatrix,
    Link,
    attention_over_words,
    drop_punctuation,
    links_from_attention,
    token_attention,
    word_links,
    word_of_token,
    word_spans,
)
from rnnsearch.text.tokenizer import Segmented


@dataclass(frozen=True)
class WordAttention:
    """Attention weights of a sentence pair and the word-level values that follow from them.

    These take as long as a short search, so each is computed on first access.
    """

    source: Segmented
    """Tokens of the source."""
    target: Segmented
    """Tokens of the translation."""
    attention: AttentionMatrix | None
    """[T, J] over tokens, EOS included in both; None for a model without attention."""
    read: bool = False
    """True if the model is supervised with the links of words it has read (see `token_attention`)."""

    @cached_property
    def token_words(self) -> list[int]:
        """Index of the target word that each target token lies in; NO_WORD for a token that is only a space."""
        return word_of_token(self.target.text, self.target.offsets)

    @cached_property
    def weights(self) -> AttentionMatrix | None:
        """Attention [target words, source words]; None without attention."""
        if self._word_level_inputs is None:
            return None
        over_words = attention_over_words(*self._word_level_inputs)
        # Last words without a token of their own have zero rows or columns.
        shape = (len(word_spans(self.target.text)), len(word_spans(self.source.text)))
        weights = np.zeros(shape, dtype=over_words.dtype)
        weights[: len(over_words), : over_words.shape[1]] = over_words
        return weights

    @cached_property
    def word_links(self) -> tuple[Link, ...]:
        """Sorted (source, target) links of words: each target word and what its tokens attend to most."""
        return () if self._word_level_inputs is None else tuple(sorted(word_links(*self._word_level_inputs)))

    @cached_property
    def token_links(self) -> tuple[Link, ...]:
        """Sorted (source, target) links of tokens."""
        return () if self._token_attention is None else tuple(sorted(links_from_attention(self._token_attention)))

    @cached_property
    def _token_attention(self) -> AttentionMatrix | None:
        """Attention between tokens without EOS."""
        if self.attention is None:
            return None
        return token_attention(self.attention, len(self.target.ids), self.read)[:, : len(self.source.ids)]

    @cached_property
    def _word_level_inputs(self) -> tuple[AttentionMatrix, list[int], list[int]] | None:
        """Token attention with the word index of each column and row, punctuation excluded."""
        if self._token_attention is None:
            return None
        source = self.source
        target = self.target
        columns = drop_punctuation(word_of_token(source.text, source.offsets), source.text, source.offsets)
        rows, words = _repeat_per_word(target, drop_punctuation(self.token_words, target.text, target.offsets))
        return self._token_attention[rows], columns, words


def _repeat_per_word(target: Segmented, token_words: list[int]) -> tuple[list[int], list[int]]:
    """Return token indices and their words, with a token repeated for each word that it covers.

    The replacement of an unknown token may consist of several words.
    """
    tokens: list[int] = []
    words: list[int] = []
    starts = [start for start, _ in word_spans(target.text)]
    for token, (first, (_, end)) in enumerate(zip(token_words, target.offsets, strict=True)):
        last = first
        while NO_WORD != last < len(starts) - 1 and starts[last + 1] < end:
            last += 1
        covered = range(first, last + 1)
        tokens += [token] * len(covered)
        words += covered
    return tokens, words
