"""A glossary: what a source term must be in a translation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rnnsearch.text.words import pieces

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
        self._entries = {words_of(source): entry for source, entry in entries.items()}
        self._sizes = sorted({len(words) for words in self._entries if words}, reverse=True)

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
        at = 0
        while at < len(words):
            size = self._longest(tuple(words[at : at + self._sizes[0]])) if self._sizes else 0
            if size:
                yield Place(spans[at][0], spans[at + size - 1][1], self._of(tuple(words[at : at + size])))
            at += max(size, 1)

    def _of(self, words: Words) -> Entry:
        entry = self._entries.get(words)
        return self._entries[tuple(map(str.lower, words))] if entry is None else entry

    def _longest(self, words: Words) -> int:
        """Of how many words the longest term is that these begin with; 0 for none."""
        for size in self._sizes:
            some = words[:size]
            if len(some) == size and (some in self._entries or tuple(map(str.lower, some)) in self._entries):
                return size
        return 0


class Glossary(Terms[str]):
    """Source terms, and the target term of each."""

    def terms(self, text: str) -> tuple[str, ...]:
        """The target terms of a text, each once."""
        return tuple(dict.fromkeys(place.entry for place in self.places(text)))


def words_of(text: str) -> Words:
    """A text's words, and its marks of punctuation, each by itself."""
    return tuple(word for piece in pieces(f" {text}") if (word := piece.strip()))
