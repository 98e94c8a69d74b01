"""BPE-dropout (Provilkov et al., 2020): the same text in other symbols each time, by merges left out at random."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from rnnsearch.text.tokenizer import BYTE_SYMBOLS, Tokenizer
from rnnsearch.text.words import pieces

LONGEST = 64
"""Symbols of one character of a piece that is segmented anew; the time for one grows by the square of its length."""
_HELD = 1 << 17
"""Different stretches of text whose pieces are held."""
Merges = dict[tuple[int, int], tuple[int, int]]
"""Which two symbols are merged: the place among the merges (the lower goes first), and what they become."""


class MergeDropout:
    """Segments what a `bpe` tokenizer has segmented anew, with merges dropped."""

    def __init__(self, tokenizer: Tokenizer, dropout: float) -> None:
        """`dropout`: the probability p of each merge, at each step, to be left out."""
        self._dropout = dropout
        self._apart = tokenizer.apart
        self._spellings = tokenizer.spellings()
        self._begins = [spelling.startswith(b" ") for spelling in self._spellings]
        vocabulary, merges = tokenizer.merges()
        self._vocabulary = vocabulary
        self._merges: Merges = {
            (vocabulary[left], vocabulary[right]): (place, vocabulary[left + right])
            for place, (left, right) in enumerate(merges)
        }
        self._bytes = {spelled[0]: vocabulary[name] for name, spelled in BYTE_SYMBOLS.items() if name in vocabulary}
        self._known: dict[tuple[int, ...], list[list[int]] | None] = {}

    def __call__(self, ids: Sequence[int], random: Random) -> list[int]:
        """Other ids of the same text. A stretch without a space that holds a piece of more than `LONGEST` characters
        keeps its own."""
        inner = [place for place, id in enumerate(ids) if place > 0 and self._begins[id]]
        drawn: list[int] = []
        for begin, end in pairwise([0, *inner, len(ids)]) if ids else ():
            stretch = tuple(ids[begin:end])
            characters = self._characters(stretch)
            if characters is None:
                drawn += stretch
            else:
                for piece in characters:
                    drawn += merged(piece, self._merges, self._dropout, random)
        return self._apart(drawn)

    def _characters(self, stretch: tuple[int, ...]) -> list[list[int]] | None:
        """The symbols of one character (or byte) of each piece of a stretch; None where one is too long."""
        if stretch not in self._known:
            if len(self._known) >= _HELD:
                self._known.clear()
            text = b"".join([self._spellings[id] for id in stretch]).decode()
            characters = [[id for character in piece for id in self._symbols(character)] for piece in pieces(text)]
            self._known[stretch] = characters if max(map(len, characters)) <= LONGEST else None
        return self._known[stretch]

    def _symbols(self, character: str) -> list[int]:
        known = self._vocabulary.get(character)
        return [self._bytes[byte] for byte in character.encode()] if known is None else [known]


def merged(symbols: Sequence[int], merges: Merges, dropout: float, random: Random) -> list[int]:
    """Provilkov et al. (2020), algorithm 1: of all merges that are possible each is dropped with probability p, the
    first of those left is applied, until none is left."""
    split = list(symbols)
    while True:
        possible = [
            (*merge, place)
            for place, pair in enumerate(pairwise(split))
            if (merge := merges.get(pair)) is not None and random.random() >= dropout
        ]
        if not possible:
            return split
        _, symbol, place = min(possible)
        split[place : place + 2] = [symbol]
