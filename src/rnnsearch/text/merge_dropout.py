"""BPE-dropout (Provilkov et al., 2020): the same text in other symbols each time, by merges left out at random."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from rnnsearch.text.resegmentation import Resegmentation
from rnnsearch.text.tokenizer import Tokenizer

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
