"""Inline target terms: a source sentence says what some of its words are to be, and a model learns to write that, in
the form that the sentence asks for (after Dinu et al. 2019, "Training neural machine translation to apply terminology
constraints": their way `replace`, with marks in the text in the place of factors beside the symbols).

    The <1> red ball<2> roter Ball<3> is here.

The model reads the target term in the place of the source term: where both were there (their way `append`), a model of
29,000 pairs went on reading the source words alone.

The marks are the control characters U+0001 to U+0003. Text holds none, and every vocabulary of subwords or characters
has them all the same, as the symbols of single bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq
from random import Random
from typing import Generic, TypeVar

from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.words import pieces

# A glossary: what a source term must be in a translation.

Words = tuple[str, ...]
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Place(Generic[Entry]):
    """A term in a text: its characters [start, end), and its entry."""

    start: int
    end: int
    entry: Entry


class Terms(Generic[Entry]):
    """Terms of one word or several, each with its entry, and where texts hold them."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        # Each beginning of a term has a number (the empty one 0), so a look-up goes on word by word while a term does.
        self._begun: dict[tuple[int, str], int] = {}
        self._entries: dict[int, Entry] = {}
        for source, entry in entries.items():
            begun = 0
            for word in words_of(source):
                begun = self._begun.setdefault((begun, word), len(self._begun) + 1)
            self._entries[begun] = entry

    def __len__(self) -> int:
        return len(self._entries)

    def places(self, text: str) -> Iterator[Place[Entry]]:
        """From left to right the longest terms that a text holds, as they stand or else in lower case. Terms are whole
        words: `dog` is not in `dogs`."""
        words, spans = [], []
        end = -1  # of the text with a space before it, which is none of its characters
        for piece in pieces(f" {text}"):
            word, end = piece.strip(), end + len(piece)
            if word:
                words.append(word)
                spans.append((end - len(word), end))
        lower, at = list(map(str.lower, words)), 0
        while at < len(words):
            size, entry = self._longest(words, lower, at)
            if entry is not None:
                yield Place(spans[at][0], spans[at + size - 1][1], entry)
            at += size

    def _longest(self, words: Sequence[str], lower: Sequence[str], at: int) -> tuple[int, Entry | None]:
        """The longest term that begins there, in words, and its entry; one word without, where there is none."""
        size, found = 1, None
        for spelled in (words, lower):  # of two as long, the one as it stands
            begun = 0
            for end in range(at, len(spelled)):
                begun = self._begun.get((begun, spelled[end]), 0)
                if not begun:
                    break
                entry = self._entries.get(begun)
                if entry is not None and (found is None or end + 1 - at > size):
                    size, found = end + 1 - at, entry
        return size, found


class Glossary(Terms[str]):
    """Source terms, and the target term of each."""

    def terms(self, text: str) -> tuple[str, ...]:
        """The target terms of a text, each once."""
        return tuple(dict.fromkeys(place.entry for place in self.places(text)))


def words_of(text: str) -> Words:
    """A text's words, and its marks of punctuation, each by itself."""
    return tuple(word for piece in pieces(f" {text}") if (word := piece.strip()))


BEGINS, MEANS, ENDS = "\x01", "\x02", "\x03"
"""Before a source term; between it and its target term; behind that."""
_TERM = re.compile(f"{BEGINS}([^{BEGINS}-{ENDS}]*){MEANS} ([^{BEGINS}-{ENDS}]*){ENDS}")
MOST = 3
"""Terms that a training sentence has inline."""
STEM, ENDING = 4, 2
"""Letters of a word at least, and those left out at its end, by which another form of it is known."""


def inlined(text: str, places: Iterable[Place[str]]) -> str:
    """A text with the target terms of some places, from left to right."""
    made, done = "", 0
    for place in places:
        start, end = place.start, place.end
        spaced = start > 0 and text[start - 1] == " "
        made += text[done : start - spaced] + BEGINS
        # A word is the same symbols wherever a space stands before it, so one is put before the first of a text, also
        # where this begins with one: `restored` takes it away again.
        made += " " * (spaced + (start == spaced)) + f"{text[start:end]}{MEANS} {place.entry}{ENDS}"
        done = end
    return made + text[done:]


def restored(segmented: Segmented) -> Segmented:
    """What a model reads of a text with terms inline, over the text as it was: symbols of a target term, in the place
    of its source term, cover the words of that, and the marks nothing."""
    text, places, hidden = "", list[tuple[int, int]](), set[int]()
    done = 0
    for found in _TERM.finditer(segmented.text):
        plain = segmented.text[done : found.start()]
        places += _each_at(len(text), plain)
        text += plain
        source, target = found.groups()
        added = source.startswith(" ") and not text
        source = source[added:]
        places += [(len(text), len(text))] * (1 + added)
        hidden |= {*range(len(places), len(places) + len(source))}
        places += _each_at(len(text), source)
        begin, text = len(text) + source.startswith(" "), text + source
        places += [(len(text), len(text))] + [(begin, len(text))] * (1 + len(target)) + [(len(text), len(text))]
        done = found.end()
    if not done:
        return segmented
    rest = segmented.text[done:]
    places += [*_each_at(len(text), rest), (len(text + rest), len(text + rest))]  # the end, where a symbol may begin
    each = zip(segmented.ids, segmented.symbols, segmented.offsets, strict=True)
    read = [one for one in each if one[2][0] not in hidden]
    offsets = [(places[a][0], places[max(a, b - 1)][1] if b > a else places[a][0]) for *_, (a, b) in read]
    ids, symbols = [id for id, *_ in read], [symbol for _, symbol, _ in read]
    return replace(segmented, text=text + rest, ids=ids, symbols=symbols, offsets=offsets)


def _each_at(begin: int, stretch: str) -> list[tuple[int, int]]:
    """Where each character of a stretch of text lies that begins there."""
    return [(place, place + 1) for place in range(begin, begin + len(stretch))]


class InlineTerms:
    """Puts terms of a dictionary, which has the translations of each, into training sentences: of a share of these, at
    random, up to `MOST` that stand in both languages, as the dictionary has them. The reference may have another form
    (`Hunde` for `Hund`): that is what a model learns to inflect from."""

    def __init__(
        self, entries: Mapping[str, Sequence[str]], source: Tokenizer, target: Tokenizer, share: float
    ) -> None:
        words = {term: tuple((text, words_of(text)) for text in texts) for term, texts in entries.items()}
        self._terms, self._source, self._target, self._share = Terms(words), source, target, share

    def __call__(self, source: Sequence[int], target: Sequence[int], random: Random) -> Sequence[int]:
        """The ids of a source sentence, with terms inline where it is drawn."""
        if random.random() >= self._share:
            return source
        text, words = self._source.join(source), words_of(self._target.join(target))
        if any(mark in text for mark in (BEGINS, MEANS, ENDS)):
            return source
        both = [
            Place(place.start, place.end, found[0])
            for place in self._terms.places(text)
            if (found := [written for written, term in place.entry if stands_in(term, words)])
        ]
        drawn = random.sample(both, min(len(both), random.randint(1, MOST)))
        drawn.sort(key=lambda place: place.start)
        return restored(self._source.segment([inlined(text, drawn)])[0]).ids if drawn else source


def stands_in(term: Words, words: Words, exactly: bool = False) -> bool:
    """Whether words hold a term, its words in order, each as it stands or (unless `exactly`) in another form."""
    size, same = len(term), eq if exactly else _alike
    return any(all(map(same, term, words[at : at + size])) for at in range(len(words) - size + 1))


def _alike(word: str, other: str) -> bool:
    """Whether two words are one or, by how they begin, two forms of one."""
    stem = word[: max(STEM, len(word) - ENDING)]
    return word == other or (len(word) >= STEM and other.startswith(stem) and len(other) <= len(word) + ENDING)
