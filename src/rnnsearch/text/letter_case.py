"""Sentences in capital letters and headlines in title case, which a model reads in ordinary letter case.

Subwords of "THE WATER IS COLD." and of "The Water Is Cold." are rare in training text, so a model translates them
badly. A tokenizer with a normalisation therefore reads them as "The water is cold." (`true_cased`), and the
translation of a sentence in capital letters is written in capital letters (`upper_cased`). Words with digits or
symbols, such as placeholders and URLs, stay as they are.

`Tokenizer` calls it, also for `PrefixReader`; `export/web/module/letter-case.js` is the same in JavaScript and must
agree, with its copy of `SUBSTITUTE_NAMES`. All functions take linear time. Tests: tests/page/test_module.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal

from rnnsearch.text.normalization import SPACES, main_language
from rnnsearch.text.vocabulary import SUBSTITUTE_NAMES

LetterCase = Literal["upper", "title"]
"""Letter case of a whole sentence."""
EncodeWords = Callable[[list[str]], list[list[int]]]
"""Function that returns the token ids of each word."""

MIN_UPPER_WORDS = 2
"""Minimum number of words of a sentence in capital letters; a single one may be an acronym."""
MIN_TITLE_WORDS = 4
"""Minimum number of words of a headline in title case; fewer may be a name."""

_WORD = re.compile(f"[^{SPACES}]+")
_LETTERS = re.compile(r"[^\W\d_]+")
_JOINED_LETTERS = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_CONTRACTION = re.compile("['’](?:[stmd]|re|ve|ll)", re.IGNORECASE | re.ASCII)
_SYMBOL = re.compile(r"[0-9@_/\\{}<>%$#&=+|\[\]~^*\x00-\x1f]")
"""Characters of words that are no text: codes, placeholders, addresses, tags, numbers."""
_EDGES = ".,:;!?\"'()«»“”„‚‘’"
_TURKIC = frozenset({"tr", "az"})


def letter_case(text: str) -> LetterCase | None:
    """Return the letter case of a normalised sentence that should be read in another one, or None.

    All its words must be in capital letters, or must start with one. Words with digits or symbols do not count, nor do
    the names that are read in place of placeholders.
    """
    num_upper = 0
    num_title = 0
    num_single = 0
    for start, end in _letter_spans(text, _JOINED_LETTERS):
        word = text[start:end]
        if not _is_cased(word) or word in SUBSTITUTE_NAMES:
            continue
        if not _is_upper(word[0]):
            return None
        if len(word) == 1:
            num_single += 1
        elif _is_upper(word):
            num_upper += 1
        else:
            num_title += 1
    if num_upper >= MIN_UPPER_WORDS and not num_title:
        return "upper"
    if num_title + num_single >= MIN_TITLE_WORDS and num_title > num_upper + num_single:
        return "title"
    return None


def true_cased(text: str, case: LetterCase, language: str, encode: EncodeWords) -> str:
    """Return a text with its words in the letter case that is the most usual in a vocabulary.

    A word gets the form with the fewest tokens: "NASA", "Wasser" and "water" are likely to be single tokens. Of single
    tokens, the more frequent one has the lower id. The length of the text stays.

    Args:
        text: Normalised text.
        case: Its letter case. Only words in that case are changed.
        language: Its language.
        encode: Segmentation of words.
    """
    spans = []
    forms: list[str] = []
    first = _LETTERS.search(text)
    for start, end in _letter_spans(text, _LETTERS):
        word = text[start:end]
        if not _is_upper(word if case == "upper" else word[0]):
            continue
        lower = _lower(word, language)
        choices = [lower, word[0] + lower[1:], word]
        if first is not None and start == first.start():
            # The first word of a sentence is capitalised, in any language.
            choices = choices[1:]
        elif start > 1 and _LETTERS.match(text, start - 2) and _CONTRACTION.fullmatch(text, start - 1, end):
            choices = choices[:1]
        spans.append((start, end, len(choices)))
        forms += choices
    encoded = iter(zip(forms, encode(forms) if forms else [], strict=True))
    parts: list[str] = []
    position = 0
    for start, end, num_choices in spans:
        best = min((next(encoded) for _ in range(num_choices)), key=_rank)
        parts += text[position:start], best[0]
        position = end
    return "".join(parts) + text[position:]


def upper_cased(text: str, start: int, language: str, kept_spans: Collection[tuple[int, int]]) -> tuple[str, list[int]]:
    """Return a text in capital letters, and the new position of each of its positions, the end included.

    Args:
        text: The text.
        start: Position before which the text stays.
        language: Its language.
        kept_spans: Spans of text that stays, such as placeholders.
    """
    is_kept = [False] * len(text)
    for kept_start, kept_end in [(0, start), *kept_spans]:
        is_kept[kept_start:kept_end] = [True] * (min(kept_end, len(text)) - kept_start)
    parts: list[str] = []
    positions = [0]
    for character, stays in zip(text, is_kept, strict=True):
        written = character if stays else _upper(character, language)
        parts.append(written)
        positions.append(positions[-1] + len(written))
    return "".join(parts), positions


def word_spans_with_symbols(text: str, source: str) -> list[tuple[int, int]]:
    """Return the spans of the words with digits or symbols that are the same in a text and its source."""
    known = {source[start:end] for start, end in _symbol_spans(source)}
    return [(start, end) for start, end in _symbol_spans(text) if text[start:end] in known]


def _symbol_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of the words with digits or symbols, without the punctuation around them."""
    spans = []
    for match in _WORD.finditer(text):
        word = match[0]
        if _SYMBOL.search(word):
            start = match.start() + len(word) - len(word.lstrip(_EDGES))
            spans.append((start, match.start() + len(word.rstrip(_EDGES))))
    return spans


def _rank(choice: tuple[str, Sequence[int]]) -> tuple[int, int]:
    """Return the key of a form of a word; of equal keys, the first form counts."""
    _, ids = choice
    return len(ids), ids[0] if len(ids) == 1 else 0


def _lower(word: str, language: str) -> str:
    """Return a word in lower case with the same length."""
    if main_language(language) in _TURKIC:
        word = word.replace("I", "ı").replace("İ", "i")
    lower = word.lower()
    return lower if len(lower) == len(word) else word


def _upper(character: str, language: str) -> str:
    is_dotted = character == "i" and main_language(language) in _TURKIC
    return "İ" if is_dotted else character.upper()


def _is_upper(text: str) -> bool:
    return text.lower() != text == text.upper()


def _is_cased(word: str) -> bool:
    return word.upper() != word.lower()


def _letter_spans(text: str, letters: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the spans of the words of letters, without those with digits or symbols."""
    for match in _WORD.finditer(text):
        if not _SYMBOL.search(match[0]):
            for word in letters.finditer(text, *match.span()):
                yield word.span()
