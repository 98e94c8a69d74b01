"""The same text in other symbols each time, drawn at random piece by piece: what BPE-dropout and unigram sampling
share."""

from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import exp, fsum, log
from random import Random
from typing import Generic, TypeVar

from rnnsearch.text.tokenizer import BYTE_SYMBOLS, NEVER, Tokenizer
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


# BPE-dropout (Provilkov et al., 2020): the same text in other symbols each time, by merges left out at random.

Merges = dict[tuple[int, int], tuple[int, int]]
"""Which two symbols are merged: the place among the merges (the lower goes first), and what they become."""


class MergeDropout(Resegmentation[list[int]]):
    """Segments what a `bpe` tokenizer has segmented anew, with merges dropped. The time for a piece grows by the square
    of its length."""

    def __init__(self, tokenizer: Tokenizer, dropout: float) -> None:
        """`dropout`: the probability p of each merge, at each step, to be left out."""
        super().__init__(tokenizer)
        self._dropout = dropout
        self._apart = tokenizer.apart
        vocabulary, merges = tokenizer.merges()
        self._merges: Merges = {
            (vocabulary[left], vocabulary[right]): (place, vocabulary[left + right])
            for place, (left, right) in enumerate(merges)
        }

    def _piece(self, symbols: list[tuple[str, int]]) -> list[int]:
        return [id for _, id in symbols]

    def _drawn(self, held: list[int], random: Random) -> list[int]:
        return self._apart(merged(held, self._merges, self._dropout, random))


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


# Subword regularisation (Kudo, 2018): segmentations drawn from a unigram model, smoothed by an exponent.
#
# P(x | X) ∝ prod_i p(x_i)^alpha over all segmentations x of a piece X (section 3.3, l = infinity), drawn by summing
# forward over the lattice of symbols and choosing backward.


@dataclass(frozen=True)
class Ending:
    """The symbols that may end at one place of a piece."""

    starts: list[int]
    ids: list[int]
    cumulated: list[float]
    """Their probabilities, given that one of them ends there, summed up."""


class UnigramSampling(Resegmentation[list[Ending]]):
    """Segments what a `unigram` tokenizer has segmented anew, drawn from all segmentations."""

    def __init__(self, tokenizer: Tokenizer, alpha: float) -> None:
        """`alpha`: the exponent; near 0 all segmentations are alike, 1 is the model's own probability."""
        super().__init__(tokenizer)
        self._alpha = alpha
        scores = tokenizer.scores()
        self._scores = {name: score for name, score in scores.items() if score > NEVER}
        self._longest = max(map(len, self._scores))

    def _piece(self, symbols: list[tuple[str, int]]) -> list[Ending]:
        """The lattice of a piece; `forward[j]` is the log of the sum, over the segmentations of its first j characters,
        of their probabilities to the power of alpha."""
        forward, endings = [0.0], []
        for end in range(1, len(symbols) + 1):
            starts, ids, weights = [], [], []
            for start in range(max(0, end - self._longest), end):
                name = "".join([name for name, _ in symbols[start:end]])
                if name in self._scores:
                    starts.append(start)
                    ids.append(self._ids[name])
                    weights.append(self._alpha * self._scores[name] + forward[start])
            most = max(weights)
            shares = [exp(weight - most) for weight in weights]
            forward.append(most + log(fsum(shares)))
            endings.append(Ending(starts, ids, [*accumulate(share / fsum(shares) for share in shares)]))
        return endings

    def _drawn(self, held: list[Ending], random: Random) -> list[int]:
        found, end = [], len(held)
        while end > 0:
            ending = held[end - 1]
            # Sums may fall short of 1 by an ulp.
            chosen = min(bisect(ending.cumulated, random.random()), len(ending.ids) - 1)
            found.append(ending.ids[chosen])
            end = ending.starts[chosen]
        return found[::-1]
