"""What every drawing of attention checks and cleans first: its shape, its numbers, the words around it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.errors import RnnsearchError

_TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def check_attention(
    attention: NDArray[np.floating[Any]], source_words: Sequence[str], target_words: Sequence[str]
) -> None:
    """Raise RnnsearchError unless `attention` is [target words, source words] of finite numbers."""
    expected = (len(target_words), len(source_words))
    if attention.shape != expected:
        hint = " (is it the transpose?)" if attention.shape == expected[::-1] else ""
        raise RnnsearchError(
            f"attention must have one row a target word and one column a source word, {list(expected)}; "
            f"got {list(attention.shape)}{hint}"
        )
    if not np.isfinite(attention).all():
        raise RnnsearchError("attention must be of finite numbers; got NaN or infinity")


def visible(word: str) -> str:
    """A word whose control characters, line ends and changes of direction are replaced.

    So no sentence can steer the terminal or spoil a file. Joiners, which some scripts need within a word,
    stay.
    """
    return "".join("\N{REPLACEMENT CHARACTER}" if _steers(character) else character for character in word)


def _steers(character: str) -> bool:
    turns = unicodedata.bidirectional(character) in _TURNS
    return turns or unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}
