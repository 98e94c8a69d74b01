"""The corpus as models read it: the ids of each stream, row by row, in memory or memory-mapped.

`Prepared.train` opens it. Streams are in the order of the run file's languages, the target last. Files are those of
`prepared.py`.

Axes: B rows, J positions with EOS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.data.code_points import codes, words_of_codes
from rnnsearch.data.ragged import Integers, RaggedArray
from rnnsearch.text.tokenizer import SpelledIds
from rnnsearch.text.vocabulary import EOS, PAD

COUNT_BLOCK_TOKENS = 1 << 22
"""Tokens counted together."""


class Documents(NamedTuple):
    """The document of each row and its position in it; rows that were left out leave gaps."""

    number: npt.NDArray[np.uint32]
    """Number of the document of each row, counted from 0."""
    place: npt.NDArray[np.uint32]
    """Position of each row in its document."""


class ParallelIds:
    """Token ids of sentences and their translations by the names of the streams, the last of which is the target.

    A row may have no sentence in a stream. Special ids (BOS, EOS) are not stored.
    """

    def __init__(
        self,
        streams: Mapping[str, RaggedArray],
        links: RaggedArray | None = None,
        present: Mapping[str, npt.NDArray[np.bool_]] | None = None,
        documents: Documents | None = None,
        unknown: Mapping[str, RaggedArray] | None = None,
    ) -> None:
        """Initialise the store.

        Args:
            streams: Ids of each stream; of a stream of arrays, the values [values, F].
            links: Word alignments between tokens.
            present: For streams that some rows do not have: True for the rows that do.
            documents: The documents of the rows, if the corpus marks them.
            unknown: The unknown words of each row as code points (see `characters.codes`), for some streams.
        """
        assert len({len(rows) for rows in (*streams.values(), *([] if links is None else [links]))}) == 1
        self._streams = dict(streams)
        self._present = dict(present or {})
        self._unknown = dict(unknown or {})
        self.links = links
        """Word alignments between tokens, if the corpus has them."""
        self.documents = documents
        """Documents of the rows, if the corpus marks them."""

    @classmethod
    def from_rows(
        cls, streams: Mapping[str, Sequence[Sequence[int] | None] | RaggedArray], links: RaggedArray | None = None
    ) -> ParallelIds:
        """Return a store of ids in memory.

        Args:
            streams: Ids of each row (without BOS and EOS), possibly `SpelledIds`; None if a row does not have the
                stream. Of a stream of arrays, the arrays.
            links: Word alignments between tokens.
        """
        present = {}
        unknown = {}
        for name, rows in streams.items():
            if isinstance(rows, RaggedArray):
                continue
            if None in rows:
                present[name] = np.array([ids is not None for ids in rows])
            words = [row.unknown if isinstance(row, SpelledIds) else () for row in rows]
            if any(words):
                flat, sizes = codes(words)
                unknown[name] = RaggedArray(flat, np.cumsum(sizes))
        stored = {}
        for name, rows in streams.items():
            if isinstance(rows, RaggedArray):
                stored[name] = rows
            else:
                stored[name] = RaggedArray.from_rows([ids or () for ids in rows])
        return cls(stored, links, present, unknown=unknown)

    def __len__(self) -> int:
        return len(next(iter(self._streams.values())))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the streams."""
        return tuple(self._streams)

    def select(self, names: Sequence[str]) -> ParallelIds:
        """Return the same rows with some of the streams."""
        present = {name: rows for name, rows in self._present.items() if name in names}
        unknown = {name: words for name, words in self._unknown.items() if name in names}
        streams = {name: self._streams[name] for name in names}
        return ParallelIds(streams, self.links, present, self.documents, unknown)

    def stream(self, name: str) -> RaggedArray:
        """Return the ids of all rows of a stream."""
        return self._streams[name]

    def with_stream(self, name: str, rows: RaggedArray, present: npt.NDArray[np.bool_] | None = None) -> ParallelIds:
        """Return the same rows with a new stream, or other ids in one, without word alignments.

        Args:
            name: Name of the stream.
            rows: Its ids.
            present: True for the rows that have the stream; None if all have it.
        """
        unknown = {other: words for other, words in self._unknown.items() if other != name}
        presence = self._present if present is None else {**self._present, name: present}
        return ParallelIds({**self._streams, name: rows}, None, presence, self.documents, unknown)

    def present(self, name: str) -> npt.NDArray[np.bool_]:
        """Return the mask [rows] of the rows that have a stream."""
        return self._present[name] if name in self._present else np.ones(len(self), dtype=bool)

    def has_rows(self, names: Sequence[str]) -> bool:
        """Return True if any row has all of some streams."""
        complete = np.ones(len(self), dtype=bool)
        for name in names:
            complete &= self.present(name)
        return bool(complete.any())

    def row(self, index: int) -> tuple[Integers, ...]:
        """Return the ids of one row's streams, without EOS."""
        return tuple(stream.row(index) for stream in self._streams.values())

    def first(self, name: str, limit: int) -> tuple[Integers, Integers]:
        """Return the ids of a stream's first rows with at most `limit` tokens in total, and the end of each row."""
        values, ends = self._streams[name].first(limit)
        return values.astype(np.int64), ends

    def counts(self, name: str, vocabulary: int) -> Integers:
        """Return the count of each token of a stream's vocabulary; EOS counts once per row."""
        flat = self._streams[name].flat
        counts = np.zeros(vocabulary, dtype=np.int64)
        # In blocks, because bincount converts its input to 64-bit integers.
        for start in range(0, len(flat), COUNT_BLOCK_TOKENS):
            counts += np.bincount(flat[start : start + COUNT_BLOCK_TOKENS], minlength=vocabulary)
        counts[EOS] += len(self)
        return counts

    def unknown_words(self, name: str, indices: Integers) -> list[list[str]]:
        """Return the unknown words of some rows of a stream, in order; none if they are not stored."""
        return words_of_codes(self._unknown[name], indices) if name in self._unknown else [[] for _ in indices]

    def is_array(self, name: str) -> bool:
        """Return True if a stream consists of arrays."""
        return self._streams[name].flat.ndim == 2

    def arrays(self, name: str, indices: npt.NDArray[np.integer]) -> list[npt.NDArray[np.float32]]:
        """Return the arrays [J, F] of some rows of a stream."""
        stream = self._streams[name]
        return [np.asarray(stream.array(index), dtype=np.float32) for index in indices.tolist()]

    def lengths(self, indices: npt.NDArray[np.integer]) -> Integers:
        """Return the lengths [streams, rows] with EOS, which arrays do not have; 0 if a row has no such stream."""
        return np.stack([self._lengths(name, indices) for name in self._streams])

    def padded(self, name: str, indices: Integers, width: int = 0) -> Integers:
        """Return the ids [B, J] of a stream: each row ended by EOS and padded with PAD, to at least `width`.

        A row that does not have the stream consists of padding only.
        """
        lengths = self._lengths(name, indices)
        values, rows, positions = self._streams[name].values(indices)
        padded = np.full((len(indices), max(int(lengths.max()), width)), PAD, dtype=np.int64)
        padded[rows, positions] = values
        present = np.flatnonzero(lengths)
        # Lengths include EOS; a row without the stream has length 0 and stays padding.
        padded[present, lengths[present] - 1] = EOS
        return padded

    def _lengths(self, name: str, indices: npt.NDArray[np.integer]) -> Integers:
        lengths = self._streams[name].lengths(indices)
        if self.is_array(name):
            return lengths
        lengths = lengths + 1  # with EOS, which is not stored
        return lengths * self._present[name][indices] if name in self._present else lengths
