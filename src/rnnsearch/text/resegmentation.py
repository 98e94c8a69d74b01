"""The same text in other symbols each time, drawn at random piece by piece: what BPE-dropout and unigram sampling
share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Generic, TypeVar

from rnnsearch.text.tokenizer import BYTE_SYMBOLS, Tokenizer
from rnnsearch.text.words import pieces

LONGEST = 64
"""Symbols of one character of a piece that is segmented anew."""
_HELD = 1 << 17
"""Different stretches of text whose pieces are held."""
Held = TypeVar("Held")


class Resegmentation(ABC, Generic[Held]):
    """Segments what a tokenizer has segmented anew. `Held` is what is kept of a piece, to be drawn from again."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._spellings = tokenizer.spellings()
        self._begins = [spelling.startswith(b" ") for spelling in self._spellings]
        self._ids = {name: id for id, name in enumerate(tokenizer.names())}
        self._bytes = {spelled[0]: self._ids[name] for name, spelled in BYTE_SYMBOLS.items() if name in self._ids}
        self._known: dict[tuple[int, ...], list[Held] | None] = {}

    @abstractmethod
    def _piece(self, symbols: list[tuple[str, int]]) -> Held:
        """What to keep of a piece: each of its characters (or bytes, by their symbols' names) with its id."""

    @abstractmethod
    def _drawn(self, held: Held, random: Random) -> list[int]:
        """The ids of a piece, drawn."""

    def __call__(self, ids: Sequence[int], random: Random) -> list[int]:
        """Other ids of the same text. A stretch without a space that holds a piece of more than `LONGEST` characters
        keeps its own."""
        inner = [place for place, id in enumerate(ids) if place > 0 and self._begins[id]]
        drawn: list[int] = []
        for begin, end in pairwise([0, *inner, len(ids)]) if ids else ():
            stretch = tuple(ids[begin:end])
            held = self._held(stretch)
            if held is None:
                drawn += stretch
            else:
                for piece in held:
                    drawn += self._drawn(piece, random)
        return drawn

    def _held(self, stretch: tuple[int, ...]) -> list[Held] | None:
        """What is kept of the pieces of a stretch; None where one is too long."""
        if stretch not in self._known:
            if len(self._known) >= _HELD:
                self._known.clear()
            text = b"".join([self._spellings[id] for id in stretch]).decode()
            split = [[symbol for character in piece for symbol in self._symbols(character)] for piece in pieces(text)]
            self._known[stretch] = [*map(self._piece, split)] if max(map(len, split)) <= LONGEST else None
        return self._known[stretch]

    def _symbols(self, character: str) -> list[tuple[str, int]]:
        known = self._ids.get(character)
        if known is not None:
            return [(character, known)]
        return [(f"<0x{byte:02X}>", self._bytes[byte]) for byte in character.encode()]
