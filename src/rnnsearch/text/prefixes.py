"""The beginning of a text, typed by a user, as what a translation's symbols must begin with.

Whole words are the symbols that they are segmented into. The last word may go on, and be another: `Hun` may become
`Hund` or `Hunderte`, which begin with other symbols. So of it the bytes are given, and for each of them the symbols
that agree.
"""

from bisect import bisect_left
from typing import NamedTuple

from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.vocabulary import SPECIALS, UNK

LONGEST_END = 8
"""Symbols of a last word that may be spelled otherwise, at most: a text without spaces is one long word."""


Rest = tuple[tuple[int, ...], ...]
"""For each byte of what is to be spelled, the symbols that may come where the bytes before it are. Empty: nothing."""


class Prefix(NamedTuple):
    """What a translation must begin with."""

    text: str
    ids: tuple[int, ...]
    """Its first symbols."""
    rest: Rest
    """What is to be spelled after them."""
    unknown: dict[int, str]
    """What each UNK among `ids`, by its place, stands for."""


class Prefixes:
    """Reads prefixes for a tokenizer. Of whole words, one without a symbol may follow a prefix that ends with a space,
    but not where the model `spells` it, for what it spells may lack the space."""

    def __init__(self, tokenizer: Tokenizer, spells: bool = False) -> None:
        self._tokenizer = tokenizer
        self._words = sorted(tokenizer.unknown) if tokenizer.type == "words" and not spells else []
        """The symbols that stand for some word or other, with the space before it."""
        spelled = enumerate(tokenizer.spellings())
        known = sorted(
            (spelling, id)
            for id, spelling in spelled
            if id >= len(SPECIALS) and spelling and id not in tokenizer.unknown
        )
        self._spellings = [spelling for spelling, _ in known]
        self._ids = [id for _, id in known]
        self._longest = max(map(len, self._spellings), default=0)

    def read(self, text: str) -> Prefix:
        """Errors: DataError for a text that is not valid Unicode."""
        whole = self._tokenizer.segment([text])[0]
        if not text:
            return Prefix(text, (), (), {})
        forced = self._before_last_word(whole)
        unknown = _unknown(whole)
        if UNK not in whole.ids[forced:]:
            spellings = self._tokenizer.spellings()
            rest = self._ways(b"".join(spellings[id] for id in whole.ids[forced:]))
            return Prefix(text, tuple(whole.ids[:forced]), rest, {n: u for n, u in unknown.items() if n < forced})
        ways = self._ways(self._end(whole, forced).encode())
        if ways and ways[0]:
            return Prefix(text, tuple(whole.ids[:forced]), ways, {n: u for n, u in unknown.items() if n < forced})
        return Prefix(text, tuple(whole.ids), (), unknown)

    def _before_last_word(self, whole: Segmented) -> int:
        """The number of symbols before the last word's space, or before its last few symbols."""
        space = f" {whole.text}".rfind(" ")  # in the text with a space before it, as it is segmented
        count = sum(1 for n in range(len(whole.ids)) if _begin(whole, n) < space)
        return max(count, len(whole.ids) - LONGEST_END)

    def _end(self, whole: Segmented, forced: int) -> str:
        """The text of the symbols from `forced` on."""
        return f" {whole.text}"[_begin(whole, forced) :]

    def _ways(self, rest: bytes) -> Rest:
        """For each place in `rest`, the symbols after which the remainder can still be spelled."""
        ways: list[tuple[int, ...]] = [()] * len(rest)
        for place in reversed(range(len(rest))):
            left = rest[place:]
            found = self._symbols(left, longer=True) + self._words * (left == b" ")
            for size in range(1, min(self._longest, len(left) - 1) + 1):
                if ways[place + size]:
                    found += self._symbols(left[:size], longer=False)
            ways[place] = tuple(found)
        return tuple(ways)

    def _symbols(self, spelling: bytes, longer: bool) -> list[int]:
        """The symbols of exactly these bytes; with `longer`, those that begin with them."""
        begin = end = bisect_left(self._spellings, spelling)
        fits = bytes.startswith if longer else bytes.__eq__
        while end < len(self._spellings) and fits(self._spellings[end], spelling):
            end += 1
        return self._ids[begin:end]


def _begin(whole: Segmented, n: int) -> int:
    """Where symbol n begins in the text with a space before it: where the one before it ends."""
    return 0 if n == 0 else whole.offsets[n - 1][1] + 1


def _unknown(whole: Segmented) -> dict[int, str]:
    """The text of each unknown symbol, the space before it with it, by its place."""
    spaced = f" {whole.text}"
    places = [n for n, id in enumerate(whole.ids) if id == UNK]
    return {n: spaced[_begin(whole, n) : whole.offsets[n][1] + 1] for n in places}
