"""A glossary: what a source term must be in a translation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
