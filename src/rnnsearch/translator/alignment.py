"""Lazy alignment links of translations by an aligner.

Aligning is as expensive as a short search and often not needed, so `Translator` gives each translation a `PairLinks`,
which aligns a whole batch on first access.

`translator.py` creates the links. Results are computed once, on first access, in the thread that reads them; the server
reads them in a model's thread (`serve/registry.py`, `BatchOptions.align`). Tests: tests/test_translation.py,
tests/commands/test_align.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rnnsearch.align.aligner import Aligner, Pair
from rnnsearch.text.alignments import Link
from rnnsearch.text.tokenizer import Segmented


class BatchLinks:
    """An aligner's links for a batch of sentence pairs; all are aligned together on first access."""

    def __init__(self, aligner: Aligner, pairs: Sequence[tuple[Segmented, Segmented]]) -> None:
        self._aligner = aligner
        self._pairs = pairs

    @cached_property
    def words(self) -> list[tuple[Link, ...]]:
        """Links between the words of each pair."""
        return self._align([Pair.from_words(source.text, target.text) for source, target in self._pairs])

    @cached_property
    def tokens(self) -> list[tuple[Link, ...]]:
        """Links between the tokens of each pair."""
        return self._align([Pair.from_tokens(source, target) for source, target in self._pairs])

    def _align(self, pairs: list[Pair]) -> list[tuple[Link, ...]]:
        return [tuple(sorted(links)) for links in self._aligner.links(pairs)]


@dataclass(frozen=True)
class PairLinks:
    """The links of one sentence pair of a batch."""

    batch: BatchLinks
    index: int
    """Index of the pair in the batch."""

    @property
    def words(self) -> tuple[Link, ...]:
        """Links between words."""
        return self.batch.words[self.index]

    @property
    def tokens(self) -> tuple[Link, ...]:
        """Links between tokens."""
        return self.batch.tokens[self.index]


def links_by_rank(
    aligner: Aligner, pairs: Sequence[tuple[Segmented, Segmented]], ranks: Sequence[int]
) -> list[PairLinks]:
    """Return lazy links of sentence pairs; those of equal rank in their n-best lists are aligned together.

    So an application that shows only the best translations aligns only these.
    """
    indices_by_rank: dict[int, list[int]] = {}
    for index, rank in enumerate(ranks):
        indices_by_rank.setdefault(rank, []).append(index)
    links: dict[int, PairLinks] = {}
    for indices in indices_by_rank.values():
        batch = BatchLinks(aligner, [pairs[index] for index in indices])
        for position, index in enumerate(indices):
            links[index] = PairLinks(batch, position)
    return [links[index] for index in range(len(pairs))]
