"""Translations of texts without letters, such as "5", "---" or an emoji: the texts themselves.

A model would translate them to some sentence of its training text. `translator.py` and `runtime/translator.py` copy
them instead of searching, so this module must not import torch. A prefix or a term that the copy does not contain makes
the model translate such a text, too. `export/web/module/copies.js` has the same rules (tests/page/test_module.py
compares them).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from rnnsearch.search.hypothesis import EMPTY
from rnnsearch.text.alignments import Link, word_spans
from rnnsearch.text.letters import has_letters, is_invisible
from rnnsearch.text.terms import has_inline_terms
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.translator.translation import Matrix, Translation, make_translation

SOURCE = "source"
Item = TypeVar("Item")


@dataclass(frozen=True)
class CopyLinks:
    """Links of a copy, like those of an aligner: each word and each token to itself."""

    words: tuple[Link, ...]
    """Links between words."""
    tokens: tuple[Link, ...]
    """Links between tokens."""


def copied_texts(
    sources: Sequence[Segmented],
    tokenizer: Tokenizer,
    prefixes: Sequence[str] | None = None,
    terms: Sequence[Sequence[str]] | None = None,
) -> frozenset[int]:
    """Return the indices of the texts that are their own translation.

    Args:
        sources: The texts.
        tokenizer: The model's source tokenizer. If it has no letters, digits are a language of their own.
        prefixes: Text that the translations begin with, one per text.
        terms: Text that the translations contain, one list per text.
    """
    if not tokenizer.has_letters:
        return frozenset()
    indices = set()
    for index, source in enumerate(sources):
        text = source.text
        is_copy = (
            source.substituted is None
            and _has_one_text(source)
            and not has_letters(text)
            and not is_invisible(text)
            and not has_inline_terms(source)
        )
        if prefixes is not None:
            is_copy = is_copy and text.startswith(prefixes[index])
        if terms is not None:
            is_copy = is_copy and all(term in text for term in terms[index])
        if is_copy:
            indices.add(index)
    return frozenset(indices)


def _has_one_text(source: Segmented) -> bool:
    """Return True unless a sentence has different texts in several sources."""
    return source.by_source is None or all(text.text == source.text for text in source.by_source.values())


def without(items: Sequence[Item], indices: frozenset[int], empty: Item) -> list[Item]:
    """Return items with those of the indices replaced by an empty one."""
    return [empty if index in indices else item for index, item in enumerate(items)]


def make_copy(
    source: Segmented, target: Segmented, attends: bool, aligns_previous_word: bool, is_calibrated: bool
) -> Translation:
    """Return a text as its own translation, certain in each token and aligned with itself.

    Args:
        source: The text as source tokens.
        target: The same text as target tokens.
        attends: True if the model has attention.
        aligns_previous_word: True if the attention of a word is that of the position after it.
        is_calibrated: True if the model is calibrated.
    """
    weights = overlap(source, target)
    rows = weights
    if aligns_previous_word:
        rows = np.concatenate([weights[:1], weights[:-1]])
    hypothesis = replace(
        EMPTY,
        ids=tuple(target.ids),
        token_scores=(0.0,) * (len(target.ids) + 1),
        attention={SOURCE: rows} if attends else {},
    )
    words = range(len(word_spans(source.text)))
    token_links = zip(weights[:-1].argmax(axis=1).tolist(), range(len(target.ids)), strict=True)
    links = CopyLinks(tuple((word, word) for word in words), tuple(sorted(token_links)))
    translation = make_translation(source, target, hypothesis, aligns_previous_word, links)
    return replace(translation, word_confidence=(1.0,) * len(words)) if is_calibrated else translation


def overlap(source: Segmented, target: Segmented) -> Matrix:
    """Return weights [target tokens, source tokens] with EOS: the fraction of a token's characters in each token."""
    weights = np.zeros((len(target.ids) + 1, len(source.ids) + 1), np.float32)
    weights[-1, -1] = 1.0
    ends = [end for _, end in source.offsets]
    spaces = {start: column for column, (start, end) in enumerate(source.offsets) if start == end}
    for row, (start, end) in enumerate(target.offsets):
        if start == end and start in spaces:
            weights[row, spaces[start]] = 1.0
            continue
        stop = max(end, start + 1)  # a token that is only a space covers no character
        column = bisect_right(ends, start)
        while column < len(ends) and source.offsets[column][0] < stop:
            source_start, source_end = source.offsets[column]
            weights[row, column] = min(stop, source_end) - max(start, source_start)
            column += 1
        total = weights[row].sum()
        if total:
            weights[row] /= total
        else:
            weights[row, -1] = 1.0
    return weights
