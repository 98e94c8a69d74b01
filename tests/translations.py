"""Translations with only the values that a test needs."""

from collections.abc import Sequence

import numpy as np

from rnnsearch.text.attention_words import WordAttention
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.translator.translation import Translation

EMPTY = Segmented("", [], [], [])


def attention_stub(
    weights: np.ndarray | None = None,
    links: tuple[tuple[int, int], ...] = (),
    token_words: tuple[int, ...] = (),
) -> WordAttention:
    """Create attention over words with the given values, as if they had been computed."""
    attention = WordAttention(EMPTY, EMPTY, None)
    vars(attention).update(
        weights=weights, word_links=links, token_links=(), token_words=token_words
    )  # cached properties
    return attention


def translation(
    source: Sequence[str],
    target: Sequence[str],
    weights: np.ndarray | None = None,
    links: tuple[tuple[int, int], ...] = (),
) -> Translation:
    """Create a translation of these words, which may contain spaces."""
    texts = (" ".join(source), " ".join(target))
    words = (tuple(source), tuple(target))
    return Translation(*texts, 0.0, 0.0, True, (), (), (), None, *words, by_attention=attention_stub(weights, links))
