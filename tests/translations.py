"""Translations of which a test says as much as it needs."""

from collections.abc import Sequence

import numpy as np

from rnnsearch.text.attention_words import Attended
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.translator.translation import Translation

NOTHING = Segmented("", [], [], [])


def told(
    weights: np.ndarray | None = None,
    links: tuple[tuple[int, int], ...] = (),
    token_words: tuple[int, ...] = (),
) -> Attended:
    """Attention over words that is what it is said to be."""
    made = Attended(NOTHING, NOTHING, None)
    vars(made).update(weights=weights, words=links, tokens=(), token_words=token_words)  # as if found before
    return made


def translation(
    source: Sequence[str],
    target: Sequence[str],
    weights: np.ndarray | None = None,
    links: tuple[tuple[int, int], ...] = (),
) -> Translation:
    """One of these words, which may hold spaces."""
    texts, words = (" ".join(source), " ".join(target)), (tuple(source), tuple(target))
    return Translation(*texts, 0.0, 0.0, True, (), (), (), None, *words, by_attention=told(weights, links))
