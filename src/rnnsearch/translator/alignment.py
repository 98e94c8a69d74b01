"""What an aligner says of translations: their links, found when they are first asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rnnsearch.align.aligner import Aligner, Pair
from rnnsearch.text.alignments import Link
from rnnsearch.text.tokenizer import Segmented


class AlignedPairs:
    """An aligner's links of sentence pairs that were made together; found together, when they are first asked for."""

    def __init__(self, aligner: Aligner, pairs: Sequence[tuple[Segmented, Segmented]]) -> None:
        self._aligner, self._pairs = aligner, pairs

    @cached_property
    def words(self) -> list[tuple[Link, ...]]:
        """Of words."""
        return self._found([Pair.of_words(source.text, target.text) for source, target in self._pairs])

    @cached_property
    def tokens(self) -> list[tuple[Link, ...]]:
        """Of tokens."""
        return self._found([Pair.of_symbols(source, target) for source, target in self._pairs])

    def _found(self, pairs: list[Pair]) -> list[tuple[Link, ...]]:
        return [tuple(sorted(links)) for links in self._aligner.links(pairs)]


@dataclass(frozen=True)
class OneAligned:
    """The links of one of them."""

    pairs: AlignedPairs
    number: int

    @property
    def words(self) -> tuple[Link, ...]:
        """Of its words."""
        return self.pairs.words[self.number]

    @property
    def tokens(self) -> tuple[Link, ...]:
        """Of its tokens."""
        return self.pairs.tokens[self.number]


def linked(
    aligner: Aligner, each: Sequence[tuple[Segmented, Segmented]], ranks: Sequence[int]
) -> list[OneAligned | None]:
    """The links of each pair of sentences; those of one rank are found together."""
    links: list[OneAligned | None] = [None] * len(each)
    for rank in set(ranks):
        numbers = [n for n, own in enumerate(ranks) if own == rank]
        pairs = AlignedPairs(aligner, [each[n] for n in numbers])
        for place, n in enumerate(numbers):
            links[n] = OneAligned(pairs, place)
    return links
