"""A cache that tokenizes much text quickly: each distinct chunk between two spaces is segmented once.

Preparing training data uses it (`data.preprocess`).

Results must equal `Tokenizer`'s: tests/text/test_tokenizer_cache.py.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.text.tokenizer import Tokenizer

MAX_CACHED_CHUNKS = 200_000
"""Maximum number of cached chunks; beyond it the cache is cleared."""

Integers = npt.NDArray[np.int64]


class CachedTokenizer:
    """A tokenizer's `ids` with a cache, several times as fast on much text.

    No token crosses a space, so the ids of a text are the concatenated ids of its chunks.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._clear()

    def _clear(self) -> None:
        self._indices: dict[str, int] = {}  # of each chunk, into the two arrays below
        self._starts: Integers = np.zeros(0, dtype=np.int64)
        self._sizes: Integers = np.zeros(0, dtype=np.int64)
        self._flat: npt.NDArray[Any] = np.zeros(0, dtype=np.uint32)  # ids of all chunks

    def ids(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], Integers]:
        """Return the concatenated ids of all texts, and the number of ids of each text.

        Raises:
            DataError: A text is not valid Unicode.
        """
        if self._tokenizer.normalization:
            # No chunk is then empty, and chunks do not change when they are segmented.
            texts = [self._tokenizer.normalization.text(text) for text in texts]
        # An empty text has no tokens, whereas "".split(" ") would give one chunk.
        rows = [text.split(" ") if text else [] for text in texts]
        chunks = list(chain.from_iterable(rows))
        distinct = set(chunks)
        # Before the new chunks are added, whose indices are used below.
        if len(self._indices) > MAX_CACHED_CHUNKS:
            self._clear()
        self._add(list(distinct.difference(self._indices)))
        indices = np.fromiter(map(self._indices.__getitem__, chunks), dtype=np.int64, count=len(chunks))
        sizes = self._sizes[indices]
        ends = np.cumsum(sizes)
        # Output position p of a chunk that ends at `end` is at start + p - (end - size) of the cache.
        shift = np.repeat(self._starts[indices] - ends + sizes, sizes)
        flat = self._flat[shift + np.arange(len(shift))]
        last_chunks = np.cumsum(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
        # Ids up to each text's last chunk, as differences.
        return flat, np.diff(np.concatenate([[0], ends])[last_chunks], prepend=0)

    def _add(self, chunks: list[str]) -> None:
        """Segment new chunks, each as a text, before which the tokenizer puts the chunk's leading space."""
        rows = self._tokenizer.ids(chunks)
        if "" in chunks:  # between two spaces; as a text it would have no ids
            rows[chunks.index("")] = self._additional_space()
        sizes = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        flat = np.fromiter(chain.from_iterable(rows), dtype=np.uint32, count=int(sizes.sum()))
        self._indices |= {chunk: index for index, chunk in enumerate(chunks, len(self._indices))}
        self._starts = np.concatenate([self._starts, len(self._flat) + np.cumsum(sizes) - sizes])
        self._sizes = np.concatenate([self._sizes, sizes])
        self._flat = np.concatenate([self._flat, flat])

    def _additional_space(self) -> list[int]:
        """Return the ids that one more space in a row adds."""
        one, two = self._tokenizer.ids([" ", "  "])
        return two[len(one) :]
