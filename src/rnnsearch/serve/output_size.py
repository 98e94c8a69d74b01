"""Limits of the output of a request, which n-best lists and attention can make thousands of times larger than its text.

`ServedModel.translate` estimates the output with `check_output` before a search starts; `v1` compares the translations
with `check_response` before it builds a response from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rnnsearch.search.options import SearchOptions
from rnnsearch.serve.limits import ServeError
from rnnsearch.translator.translation import Translation

MAX_RESPONSE_BYTES = 32 << 20  # building a response takes about ten times as much memory
MAX_ATTENTION_WEIGHTS = 64 << 20  # weights of all translations of a request, which are in memory together

# Sizes in JSON.
SOURCE_WORD_BYTES = 40
TARGET_TOKEN_BYTES = 140
WEIGHT_BYTES = 8


class OutputFields(NamedTuple):
    """Fields of a response that make it larger than its text."""

    words: bool = False
    """True if it contains the words of each translation."""
    attention: bool = False
    """True if it contains attention weights."""

    def size(self, source_tokens: int, target_tokens: int) -> int:
        """Return the size of a translation in JSON, in bytes."""
        size = 0
        if self.words:
            size += SOURCE_WORD_BYTES * source_tokens + TARGET_TOKEN_BYTES * target_tokens
        if self.attention:
            size += WEIGHT_BYTES * source_tokens * target_tokens
        return size


TEXT_ONLY = OutputFields()


def check_output(
    source_lengths: Sequence[int], prefix_lengths: Sequence[int], options: SearchOptions, fields: OutputFields
) -> None:
    """Check the output of a request before its search.

    Args:
        source_lengths: Number of tokens of each sentence.
        prefix_lengths: Number of tokens that each translation begins with.
        options: Options of the search.
        fields: Fields of the response.

    Raises:
        ServeError: With status 413 if the translations would take too much memory, or the response would be too large.
    """
    num_weights = 0
    num_bytes = 0
    for source_tokens, prefix_tokens in zip(source_lengths, prefix_lengths, strict=True):
        max_tokens = max(int(options.max_ratio * source_tokens) + options.max_extra, prefix_tokens + 1)
        num_weights += (source_tokens + 1) * (max_tokens + 1)
        # Translations are about as long as their source; `check_response` checks those that are not.
        num_bytes += fields.size(source_tokens, max(source_tokens, prefix_tokens))
    if options.n_best * num_weights > MAX_ATTENTION_WEIGHTS:
        raise ServeError(
            413, "all translations together are too large; send less text, or ask for a smaller n-best list"
        )
    _check_size(options.n_best * num_bytes)


def check_response(translations: Iterable[Translation], fields: OutputFields) -> int:
    """Return the size of a response with translations, in bytes.

    Raises:
        ServeError: With status 413 if it is too large.
    """
    num_bytes = 0
    for translation in translations:
        num_bytes += len(translation.source) + len(translation.text)
        # A word has at least one character and one separator.
        source_tokens = (len(translation.source) + 1) // 2
        if translation.attention is not None:
            source_tokens = min(source_tokens, translation.attention.shape[1])
        num_bytes += fields.size(source_tokens, len(translation.tokens))
    _check_size(num_bytes)
    return num_bytes


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_RESPONSE_BYTES:
        raise ServeError(
            413,
            f"a response must have at most {MAX_RESPONSE_BYTES >> 20} MB; send less text, or omit attention and n_best",
        )
