"""A glossary: what a source term must be in a translation."""

from collections.abc import Mapping

from rnnsearch.text.words import pieces

Words = tuple[str, ...]


class Glossary:
    """Source terms of one word or several, and the target term of each."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._entries = {_words(source): target for source, target in entries.items()}
        self._sizes = sorted({len(words) for words in self._entries if words}, reverse=True)

    def __len__(self) -> int:
        return len(self._entries)

    def terms(self, text: str) -> tuple[str, ...]:
        """The target terms of a text, each once: from left to right of the longest terms that it holds, as they stand
        or else in lower case. Terms are whole words: `dog` is not in `dogs`."""
        words, found, at = _words(text), dict[str, None](), 0
        while at < len(words):
            size, target = self._longest(words, at)
            if target is not None:
                found[target] = None
            at += size
        return tuple(found)

    def _longest(self, words: Words, at: int) -> tuple[int, str | None]:
        for size in self._sizes:
            some = words[at : at + size]
            target = self._entries.get(some) or self._entries.get(tuple(map(str.lower, some)))
            if target is not None and len(some) == size:
                return size, target
        return 1, None


def _words(text: str) -> Words:
    return tuple(word for piece in pieces(f" {text}") if (word := piece.strip()))
