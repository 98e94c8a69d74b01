"""The words of a raw sentence, which alignments count, and the word that each symbol lies in."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, get_args

# ASCII white space alone, as the tools that write Pharaoh files split: a no-break space is part of a word.
_WORD = re.compile(r"[^ \t\n\r\f\v]+")
Unit = Literal["words", "symbols"]
"""What alignments count."""
Symmetrisation = Literal["intersection", "union", "grow-diag", "grow-diag-final-and"]
"""How links of two directions become one alignment (`alignments.symmetrise`)."""
AlignedBy = Literal["aligner", "attention", "read", "posterior"]
ALIGNED_BY: tuple[AlignedBy, ...] = get_args(AlignedBy)
"""What makes alignments: the model folder's aligner, attention, that of the position after the word, which has read it,
or attention given the target word itself."""
NO_WORD = -1
"""The word of a symbol that lies in none: EOS, or a space that does not begin a word."""


def word_spans(text: str) -> list[tuple[int, int]]:
    """Characters [start, end) of each word of a raw sentence; ASCII white space is what separates words."""
    return [match.span() for match in _WORD.finditer(text)]


def words(text: str) -> list[str]:
    """The words of a raw sentence, as `word_spans` finds them."""
    return _WORD.findall(text)


def word_of_symbol(text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """The index of the word that each symbol lies in, from its characters [start, end); NO_WORD for none.

    A symbol that covers no character (a mere space) is of the word that begins right after it, if one does.
    """
    spans = word_spans(text)
    ends = [end for _, end in spans]
    found = []
    for start, end in offsets:
        word = bisect_right(ends, start)
        inside = word < len(spans) and spans[word][0] < max(end, start + 1)
        found.append(word if inside else NO_WORD)
    return found


def spoken_spans(text: str) -> list[tuple[int, int]]:
    """Characters [start, end) of each word without the punctuation around it; of mere punctuation, all."""
    found = []
    for start, end in word_spans(text):
        letters = [place for place in range(start, end) if not _is_punctuation(text[place])]
        found.append((letters[0], letters[-1] + 1) if letters else (start, end))
    return found


def without_punctuation(found: Sequence[int], text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """What `word_of_symbol` found, for alignments: punctuation that has a symbol of its own beside others in its word
    is of none, for a full stop's attention says nothing of the word before it."""
    marks = [_is_punctuation(text[start:end]) for start, end in offsets]
    spoken = {word for word, mark in zip(found, marks, strict=True) if not mark}
    return [NO_WORD if mark and word in spoken else word for word, mark in zip(found, marks, strict=True)]


def _is_punctuation(symbol: str) -> bool:
    if symbol.isalnum():  # most are, and this is soon told
        return False
    characters = symbol.strip()
    return bool(characters) and all(unicodedata.category(c)[0] in "PS" for c in characters)
