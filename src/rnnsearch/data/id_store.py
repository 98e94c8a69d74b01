"""The training text as models read it: the ids of each side, row by row."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.data.characters import codes, words_of_codes
from rnnsearch.data.ragged import Integers, RaggedArray
from rnnsearch.text.tokenizer import Spelled
from rnnsearch.text.vocabulary import EOS, PAD

COUNTED = 1 << 22
"""Symbols at a time."""


class Documents(NamedTuple):
    """Of each row, which document it is of and its place there, as the text was read: rows left out leave gaps."""

    number: npt.NDArray[np.uint32]
    place: npt.NDArray[np.uint32]


class ParallelIds:
    """The ids of sentences and their translations by the names of the sides, the last of which is translated into. A
    row may lack a side. No special id is stored."""

    def __init__(
        self,
        sides: Mapping[str, RaggedArray],
        links: RaggedArray | None = None,
        present: Mapping[str, npt.NDArray[np.bool_]] | None = None,
        documents: Documents | None = None,
        unknown: Mapping[str, RaggedArray] | None = None,
    ) -> None:
        """`present`: of the sides that some rows lack, which rows have them. `unknown`: of the sides that have them,
        the unknown words of each row, as `spelling.codes`."""
        assert len({len(rows) for rows in (*sides.values(), *([] if links is None else [links]))}) == 1
        self._sides = dict(sides)
        self._present = dict(present or {})
        self._unknown = dict(unknown or {})
        self.links = links
        """Word alignments over symbols, where the corpus has them."""
        self.documents = documents
        """Where the corpus says where documents end."""

    @classmethod
    def from_rows(
        cls, sides: Mapping[str, Sequence[Sequence[int] | None]], links: RaggedArray | None = None
    ) -> "ParallelIds":
        """From lists of ids (without BOS and EOS) in memory, maybe `Spelled`; None where a row lacks the side."""
        present = {name: np.array([ids is not None for ids in rows]) for name, rows in sides.items() if None in rows}
        unknown = {}
        for name, rows in sides.items():
            words = [row.unknown if isinstance(row, Spelled) else () for row in rows]
            if any(words):
                flat, sizes = codes(words)
                unknown[name] = RaggedArray(flat, np.cumsum(sizes))
        ids = {name: RaggedArray.from_rows([ids or () for ids in rows]) for name, rows in sides.items()}
        return cls(ids, links, present, unknown=unknown)

    def __len__(self) -> int:
        return len(next(iter(self._sides.values())))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the sides."""
        return tuple(self._sides)

    def select(self, names: Sequence[str]) -> "ParallelIds":
        """The same rows, of some sides."""
        present = {name: rows for name, rows in self._present.items() if name in names}
        unknown = {name: words for name, words in self._unknown.items() if name in names}
        return ParallelIds({name: self._sides[name] for name in names}, self.links, present, self.documents, unknown)

    def row(self, index: int) -> tuple[Integers, ...]:
        """The ids of one row's sides, without EOS."""
        return tuple(side.row(index) for side in self._sides.values())

    def first(self, name: str, limit: int) -> tuple[Integers, Integers]:
        """The symbols of one side's first rows, as many as have `most` together or fewer, and where each row ends."""
        values, ends = self._sides[name].first(limit)
        return values.astype(np.int64), ends

    def counts(self, name: str, vocabulary: int) -> Integers:
        """How often each symbol of one side's vocabulary occurs; EOS once a row."""
        flat, found = self._sides[name].flat, np.zeros(vocabulary, dtype=np.int64)
        for begin in range(0, len(flat), COUNTED):
            found += np.bincount(flat[begin : begin + COUNTED], minlength=vocabulary)
        found[EOS] += len(self)
        return found

    def unknown_words(self, name: str, indices: Integers) -> list[list[str]]:
        """The unknown words of rows of one side, in order; none of a side that they were not kept of."""
        return words_of_codes(self._unknown[name], indices) if name in self._unknown else [[] for _ in indices]

    def lengths(self, indices: npt.NDArray[np.integer]) -> Integers:
        """Symbols of rows' sides, EOS included, [sides, rows]; 0 for a side that a row lacks."""
        return np.stack([self._lengths(name, indices) for name in self._sides])

    def padded(self, name: str, indices: Integers, width: int = 0) -> Integers:
        """The ids [B, J] of one side, each row ended by EOS, then padded by PAD, to `width` where the longest row is
        shorter. A row that lacks the side is padding alone."""
        lengths = self._lengths(name, indices)
        values, rows, places = self._sides[name].values(indices)
        padded = np.full((len(indices), max(int(lengths.max()), width)), PAD, dtype=np.int64)
        padded[rows, places] = values
        having = np.flatnonzero(lengths)
        padded[having, lengths[having] - 1] = EOS
        return padded

    def _lengths(self, name: str, indices: npt.NDArray[np.integer]) -> Integers:
        lengths = self._sides[name].lengths(indices) + 1
        return lengths * self._present[name][indices] if name in self._present else lengths
