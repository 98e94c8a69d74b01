"""Terminology: glossaries, and target terms that are inserted into source sentences.

A `Glossary` finds the source terms in a text, whose target terms the search must produce. With
inline terms, the source sentence itself contains the target terms, and a model learns to write them
in the inflection that the sentence requires (after Dinu et al. 2019, "Training neural machine
translation to apply terminology constraints": their method `replace`, with marks in the text
instead of token factors).

    The <1> red ball<2> roter Ball<3> is here.

The model reads the target term in place of the source term: with both (their method `append`), a
model trained on 29,000 pairs went on reading only the source words.

The marks are the control characters U+0001 to U+0003. Text does not contain them, yet every
vocabulary of subwords or characters has them, as the tokens of single bytes.

`translator/glossaries.py` reads glossaries, `translator/placement.py` puts their terms into translations,
`training/run.py` inserts terms into training sentences, and `systems/system.py` restores the offsets of tokens. Models
with inline terms were trained with these marks, so their characters must stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq
from random import Random
from typing import Generic, TypeVar

from rnnsearch.errors import RnnsearchError
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.words import pieces

Words = tuple[str, ...]
Forms = tuple[str, ...]
"""Inflected forms of a target term, the preferred one first."""
Entry = TypeVar("Entry")

FORM_SEPARATOR = "|"
"""Character between the forms of a target term in glossaries."""
MAX_FORMS = 10
"""Maximum number of forms of a target term."""
MAX_TERM_CHARACTERS = 200
"""Maximum length of a source term and of each form of a target term."""
SHOWN_CHARACTERS = 40  # of a term in an error message


@dataclass(frozen=True)
class TermMatch(Generic[Entry]):
    """An occurrence of a term at characters [start, end) of a text, with the term's entry."""

    start: int
    """Offset of the first character in the text."""
    end: int
    """Offset after the last character."""
    entry: Entry
    """Entry of the glossary."""


class TermMatcher(Generic[Entry]):
    """A trie of terms of one or more words, each with an entry, that finds them in texts."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        # Nodes of the trie are numbered from 0, the root; an edge is a word.
        self._edges: dict[tuple[int, str], int] = {}
        self._entries: dict[int, Entry] = {}
        for term, entry in entries.items():
            node = 0
            for word in term_words(term):
                # Node numbers are unique, because each new edge leads to a new node.
                node = self._edges.setdefault((node, word), len(self._edges) + 1)
            self._entries[node] = entry

    def __len__(self) -> int:
        return len(self._entries)

    def matches(self, text: str) -> Iterator[TermMatch[Entry]]:
        """Yield the longest terms in a text from left to right, in their own case or in lower case.

        Terms are whole words: `dog` does not match in `dogs`.
        """
        words, spans = words_and_spans(text)
        lowercase_words = [word.lower() for word in words]
        position = 0
        while position < len(words):
            size, entry = self._longest_match(words, lowercase_words, position)
            if entry is not None:
                yield TermMatch(spans[position][0], spans[position + size - 1][1], entry)
            position += size

    def _longest_match(
        self, words: Sequence[str], lowercase_words: Sequence[str], start: int
    ) -> tuple[int, Entry | None]:
        """Return the length in words and the entry of the longest term that starts at a word, or (1, None)."""
        longest = 1
        match = None
        for candidates in (words, lowercase_words):  # of equally long terms, the one in its own case wins
            node = 0
            for end in range(start, len(candidates)):
                node = self._edges.get((node, candidates[end]), 0)
                # 0 is the root, to which no edge leads.
                if not node:
                    break
                entry = self._entries.get(node)
                if entry is not None and (match is None or end + 1 - start > longest):
                    longest = end + 1 - start
                    match = entry
        return longest, match


class Glossary(TermMatcher[Forms]):
    """Source terms with the forms of their target terms."""

    def __init__(self, entries: Mapping[str, str], defaults: Glossary | None = None) -> None:
        """Read the entries.

        Args:
            entries: Target term of each source term, or several forms of it, separated by `|`.
            defaults: Glossary for terms that are not in `entries`.

        Raises:
            RnnsearchError: A term is empty or too long, or has too many forms.
        """
        super().__init__({term: read_forms(term, target) for term, target in entries.items()})
        self._defaults = defaults

    def __len__(self) -> int:
        """Return the number of entries, those of the defaults included."""
        return super().__len__() + (0 if self._defaults is None else len(self._defaults))

    def with_defaults(self, defaults: Glossary | None) -> Glossary:
        """Return a glossary with these entries, and with those of another one for all other terms."""
        combined = Glossary({}, defaults)
        combined._edges = self._edges
        combined._entries = self._entries
        return combined

    def all_forms(self) -> Iterator[str]:
        """Yield the forms of all target terms of these entries, without the defaults."""
        for forms in self._entries.values():
            yield from forms

    def terms(self, text: str) -> tuple[str, ...]:
        """Return the preferred forms of the distinct target terms that a text requires."""
        return tuple(dict.fromkeys(match.entry for match in self.preferred(text)))

    def preferred(self, text: str) -> Iterator[TermMatch[str]]:
        """Yield the matches in a text with the preferred form of each target term."""
        for match in self.matches(text):
            yield TermMatch(match.start, match.end, match.entry[0])

    def _longest_match(
        self, words: Sequence[str], lowercase_words: Sequence[str], start: int
    ) -> tuple[int, Forms | None]:
        size, forms = super()._longest_match(words, lowercase_words, start)
        if self._defaults is None:
            return size, forms
        default_size, default = self._defaults._longest_match(words, lowercase_words, start)
        if default is not None and (forms is None or default_size > size):
            return default_size, default
        return size, forms


def read_forms(term: str, target: str) -> Forms:
    """Return the distinct forms of a target term, in their order.

    Args:
        term: The source term.
        target: The forms, separated by `|`.

    Raises:
        RnnsearchError: A term is empty or too long, or has too many forms.
    """
    if len(term) > MAX_TERM_CHARACTERS:
        raise RnnsearchError(f'a source term must have at most {MAX_TERM_CHARACTERS} characters; got "{_start(term)}"')
    max_characters = (MAX_TERM_CHARACTERS + 1) * MAX_FORMS
    # Before the text is split.
    if len(target) > max_characters:
        raise RnnsearchError(
            f'the forms of a term must have at most {max_characters} characters together; got more for "{_start(term)}"'
        )
    forms = tuple(dict.fromkeys(form.strip() for form in target.split(FORM_SEPARATOR)))
    if not all(forms):
        raise RnnsearchError(
            f'the forms of a target term must be separated by one "|" each; got "{_start(target)}" for "{_start(term)}"'
        )
    if len(forms) > MAX_FORMS:
        raise RnnsearchError(
            f'a target term must have at most {MAX_FORMS} forms; got {len(forms)} for "{_start(term)}"'
        )
    if max(map(len, forms)) > MAX_TERM_CHARACTERS:
        raise RnnsearchError(
            f'a form must have at most {MAX_TERM_CHARACTERS} characters; got a longer one for "{_start(term)}"'
        )
    return forms


def _start(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def words_and_spans(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the words of a text, with each punctuation mark as a word, and their characters [start, end)."""
    words = []
    spans = []
    end = -1  # the first piece includes the space put before the text
    for piece in pieces(f" {text}"):
        word = piece.strip()
        end += len(piece)
        if word:
            words.append(word)
            spans.append((end - len(word), end))
    return words, spans


def term_words(text: str) -> Words:
    """Return the words of a text, with each punctuation mark as a word."""
    words = [piece.strip() for piece in pieces(f" {text}")]
    return tuple(word for word in words if word)


SOURCE_MARK = "\x01"
"""Mark before a source term."""
TARGET_MARK = "\x02"
"""Mark between a source term and its target term."""
END_MARK = "\x03"
"""Mark after a target term."""
_TERM = re.compile(f"{SOURCE_MARK}([^{SOURCE_MARK}-{END_MARK}]*){TARGET_MARK} ([^{SOURCE_MARK}-{END_MARK}]*){END_MARK}")
MAX_INLINE_TERMS = 3
"""Maximum number of inline terms in a training sentence."""
MIN_STEM_LETTERS = 4
"""Number of initial letters, at least, that two inflected forms of a word share."""
MAX_ENDING_LETTERS = 2
"""Number of final letters, at most, in which they may differ."""


def insert_terms(text: str, matches: Iterable[TermMatch[str]]) -> str:
    """Return a text with marked target terms after the source terms of the matches, from left to right."""
    marked = ""
    position = 0
    for match in matches:
        follows_space = match.start > 0 and text[match.start - 1] == " "
        marked += text[position : match.start - follows_space] + SOURCE_MARK
        # A word has the same tokens wherever a space precedes it, so the first word of a text gets a space, also
        # if the text itself starts with one; `restore_offsets` removes it.
        marked += " " * (follows_space + (match.start == follows_space))
        marked += f"{text[match.start : match.end]}{TARGET_MARK} {match.entry}{END_MARK}"
        position = match.end
    return marked + text[position:]


def has_inline_terms(source: Segmented) -> bool:
    """Return True if the tokens of a source sentence contain inline terms; its text does not (`restore_offsets`)."""
    return any(token.endswith(TARGET_MARK) or token == "<0x02>" for token in source.tokens)


def restore_offsets(segmented: Segmented) -> Segmented:
    """Return the tokens that a model reads of a text with inline terms, with offsets into the original text.

    Tokens of a source term are dropped. Tokens of a target term cover the words of its source term, and the
    marks cover nothing.
    """
    text = ""
    spans: list[tuple[int, int]] = []  # of each character of the marked text, in the original text
    hidden: set[int] = set()  # characters of source terms in the marked text
    position = 0
    for match in _TERM.finditer(segmented.text):
        before = segmented.text[position : match.start()]
        spans += _character_spans(len(text), before)
        text += before
        source, target = match.groups()
        has_added_space = source.startswith(" ") and not text
        source = source[has_added_space:]
        spans += [(len(text), len(text))] * (1 + has_added_space)  # the first mark
        hidden |= {*range(len(spans), len(spans) + len(source))}
        spans += _character_spans(len(text), source)
        source_start = len(text) + source.startswith(" ")
        text += source
        spans += [(len(text), len(text))]  # the second mark
        spans += [(source_start, len(text))] * (1 + len(target))  # with the space before the target term
        spans += [(len(text), len(text))]  # the third mark
        position = match.end()
    if not position:
        return segmented
    after = segmented.text[position:]
    # One more for the end of the text, where a token may start.
    spans += [*_character_spans(len(text), after), (len(text + after), len(text + after))]
    ids = []
    tokens = []
    offsets = []
    for id, token, (start, end) in zip(segmented.ids, segmented.tokens, segmented.offsets, strict=True):
        if start in hidden:
            continue
        ids.append(id)
        tokens.append(token)
        if end > start:
            offsets.append((spans[start][0], spans[max(start, end - 1)][1]))
        else:
            offsets.append((spans[start][0], spans[start][0]))
    return replace(segmented, text=text + after, ids=ids, tokens=tokens, offsets=offsets)


def _character_spans(start: int, text: str) -> list[tuple[int, int]]:
    """Return the span of each character of a text that starts at `start`."""
    return [(position, position + 1) for position in range(start, start + len(text))]


class InlineTerms:
    """Inserts terms of a dictionary into training sentences.

    A random fraction of the sentences get up to `MAX_INLINE_TERMS` terms that occur in both languages, in the
    dictionary's form. The reference may contain another form (`Hunde` for `Hund`), from which a model learns to
    inflect.
    """

    def __init__(self, entries: Mapping[str, Sequence[str]], source: Tokenizer, target: Tokenizer, rate: float) -> None:
        """Prepare the dictionary.

        Args:
            entries: Translations of each source term.
            source: The source tokenizer.
            target: The target tokenizer.
            rate: Fraction of the sentences that get terms.
        """
        translations = {}
        for term, texts in entries.items():
            translations[term] = tuple((text, term_words(text)) for text in texts)
        self._terms = TermMatcher(translations)
        self._source = source
        self._target = target
        self._rate = rate

    def __call__(self, source: Sequence[int], target: Sequence[int], random: Random) -> Sequence[int]:
        """Return the ids of a source sentence, with inline terms if it is selected."""
        if random.random() >= self._rate:
            return source
        text = self._source.join(source)
        target_words = term_words(self._target.join(target))
        # Marks in the text itself would be read as terms.
        if any(mark in text for mark in (SOURCE_MARK, TARGET_MARK, END_MARK)):
            return source
        candidates = []
        for match in self._terms.matches(text):
            translations = [target_text for target_text, words in match.entry if contains_term(words, target_words)]
            if translations:
                candidates.append(TermMatch(match.start, match.end, translations[0]))
        selected = random.sample(candidates, min(len(candidates), random.randint(1, MAX_INLINE_TERMS)))
        if not selected:
            return source
        # `insert_terms` works from left to right.
        selected.sort(key=lambda match: match.start)
        return restore_offsets(self._source.segment([insert_terms(text, selected)])[0]).ids


def contains_term(term: Words, words: Words, exact: bool = False) -> bool:
    """Return True if `words` contains the words of a term in sequence.

    Args:
        term: The words of the term.
        words: The words of a sentence.
        exact: If False, each word may also be in another inflected form.
    """
    matches = eq if exact else _may_be_same_word
    starts = range(len(words) - len(term) + 1)
    return any(all(map(matches, term, words[start : start + len(term)])) for start in starts)


def _may_be_same_word(word: str, other: str) -> bool:
    """Return True if two words are equal or, by their first letters, may be forms of the same word."""
    if word == other:
        return True
    stem = word[: max(MIN_STEM_LETTERS, len(word) - MAX_ENDING_LETTERS)]
    is_long_enough = len(word) >= MIN_STEM_LETTERS
    return is_long_enough and other.startswith(stem) and len(other) <= len(word) + MAX_ENDING_LETTERS
