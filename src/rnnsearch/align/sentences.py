"""Training text of one language in little memory: ids of chunks (the stretches between spaces) and their tokens.

No token crosses a space, so each distinct chunk is tokenized once per tokenizer, whatever its number of occurrences.
The structure of `Sentences` is known to `align/native.py` and `ops/native/aligner.cpp`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rnnsearch.text.tokenizer import Tokenizer

Ids = NDArray[np.int64]
READ_SIZE = 4
"""Number of tokens that native code reads together, beyond the end of a chunk (`READ_SIZE` in `aligner.cpp`)."""
_CHUNKS_PER_CALL = 10_000
"""Number of chunks that are tokenized together."""


class Sentences(Sequence[Ids]):
    """Token ids of sentences, stored as chunks and the tokens of each distinct chunk."""

    def __init__(
        self, chunks: NDArray[np.int32], starts: NDArray[np.int64], tokens: NDArray[np.int32], token_starts: Ids
    ) -> None:
        self.chunks = chunks
        """Chunk ids of all sentences."""
        self.starts = starts
        """Index of each sentence's first chunk, and the number of chunks."""
        self.tokens = tokens
        """Token ids of all distinct chunks, and `READ_SIZE` - 1 zeros."""
        self.token_starts = token_starts
        """Index of each distinct chunk's first token, and the number of tokens."""

    @classmethod
    def from_ids(cls, rows: Sequence[Ids]) -> Sentences:
        """Return sentences with these token ids."""
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        chunks = np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int32)
        size = int(chunks.max(initial=-1)) + 1
        # Each token is a chunk.
        tokens = np.arange(size + READ_SIZE - 1, dtype=np.int32)
        tokens[size:] = 0
        return cls(chunks, _starts(lengths), tokens, np.arange(size + 1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, n: int) -> Ids: ...
    @overload
    def __getitem__(self, n: slice) -> Sequence[Ids]: ...
    def __getitem__(self, n: Any) -> Any:
        if isinstance(n, slice):
            return [self[index] for index in range(*n.indices(len(self)))]
        chunks = self.chunks[self.starts[n] : self.starts[n + 1]].tolist()
        parts = [self.tokens[self.token_starts[chunk] : self.token_starts[chunk + 1]] for chunk in chunks]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def lengths(self) -> Ids:
        """Return the number of tokens of each sentence."""
        lengths = np.zeros(len(self), np.int64)
        chunk_lengths = np.diff(self.token_starts)
        # In portions, because the lengths of all chunks would take twice the memory of their ids.
        for begin in range(0, len(self), _CHUNKS_PER_CALL):
            starts = self.starts[begin : begin + _CHUNKS_PER_CALL + 1]
            sums = _starts(chunk_lengths[self.chunks[starts[0] : starts[-1]]])
            lengths[begin : begin + _CHUNKS_PER_CALL] = np.diff(sums[starts - starts[0]])
        return lengths


class ChunkedText:
    """A text as ids of chunks, from which tokenizers are learned and `Sentences` are made."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._chunks = array("i")
        self._starts = array("q", [0])
        self._texts: list[str] = []  # distinct chunks by id

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def num_chunks(self) -> int:
        """Number of chunks of all sentences."""
        return len(self._chunks)

    def add(self, sentence: str) -> None:
        """Add a sentence. Empty chunks between two spaces are omitted."""
        ids = self._ids
        self._chunks.extend([ids.setdefault(chunk, len(ids)) for chunk in sentence.split(" ") if chunk])
        self._starts.append(len(self._chunks))

    def sentence(self, n: int) -> str:
        """Return a sentence, with single spaces."""
        distinct = self._distinct()
        return " ".join(distinct[chunk] for chunk in self._chunks[self._starts[n] : self._starts[n + 1]])

    def counts(self, max_chunks: int) -> Counter[str]:
        """Return the number of occurrences of each chunk in all sentences, or in evenly spaced ones.

        Args:
            max_chunks: Approximate maximum number of chunks to count.
        """
        chunks, starts = self._arrays()
        step = max(1, -(-len(chunks) // max_chunks))
        if step > 1:
            parts = [chunks[starts[n] : starts[n + 1]] for n in range(0, len(self), step)]
            chunks = np.concatenate([chunks[:0], *parts])
        counts = np.bincount(chunks, minlength=len(self._ids)).tolist()
        return Counter({chunk: count for chunk, count in zip(self._ids, counts, strict=True) if count})

    def tokenize(self, tokenizer: Tokenizer) -> Sentences:
        """Return the tokens of all sentences."""
        distinct = self._distinct()
        tokens = array("i")
        token_starts = array("q", [0])
        for begin in range(0, len(distinct), _CHUNKS_PER_CALL):
            for ids in tokenizer.ids(distinct[begin : begin + _CHUNKS_PER_CALL]):
                tokens.extend(ids)
                token_starts.append(len(tokens))
        tokens.extend([0] * (READ_SIZE - 1))
        return Sentences(*self._arrays(), np.frombuffer(tokens, np.int32), np.frombuffer(token_starts, np.int64))

    def _distinct(self) -> list[str]:
        if len(self._texts) != len(self._ids):
            self._texts = list(self._ids)
        return self._texts

    def _arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return np.frombuffer(self._chunks, np.int32), np.frombuffer(self._starts, np.int64)


def _starts(lengths: Ids) -> Ids:
    """Return the sums of the lengths before each sequence, and the sum of all."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts
