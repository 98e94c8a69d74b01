"""Stored form of unknown words: their code points, each word ended by `WORD_END`.

`preprocess.py` writes it in processes without torch, `id_store.py` and `prepared.py` read it. It is part of the format
of prepared data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from rnnsearch.data.ragged import Integers, RaggedArray

CODE_POINT_DTYPE = np.dtype("<u4")
WORD_END = 0x110000
"""Terminator of a word in stored code points: one more than the last code point."""


def codes(rows: Iterable[Sequence[str]]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """Return rows of words as one array of code points, each word ended by `WORD_END`, and the length of each row."""
    flat = [np.zeros(0, dtype=CODE_POINT_DTYPE)]
    lengths = []
    for words in rows:
        for word in words:
            # Each character is one unit of UTF-32, which is its code point.
            code_points = np.frombuffer(word.encode("utf-32-le"), dtype=CODE_POINT_DTYPE)
            flat.append(np.append(code_points, CODE_POINT_DTYPE.type(WORD_END)))
        lengths.append(sum(len(word) + 1 for word in words))
    return np.concatenate(flat), np.array(lengths, dtype=np.uint64)


def words_of_codes(stored: RaggedArray, rows: Integers) -> list[list[str]]:
    """Return the words of some rows that `codes` made."""
    flat, row_indices, _ = stored.values(rows)
    ends = np.flatnonzero(flat == WORD_END)
    # The next word starts after the terminator.
    starts = np.append(0, ends + 1)
    words: list[list[str]] = [[] for _ in rows]
    for start, end, row in zip(starts.tolist(), ends.tolist(), row_indices[ends].tolist(), strict=False):
        words[row].append(flat[start:end].astype(CODE_POINT_DTYPE).tobytes().decode("utf-32-le"))
    return words
