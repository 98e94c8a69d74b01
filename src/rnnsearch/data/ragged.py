"""Rows of different lengths, on disk or in memory: what ids and word alignments are kept as."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
ENDS = ".ends"
"""Added to a file's name: where each of its rows ends."""


class RaggedArray:
    """Rows one after the other in one flat array, [values] or [values, columns], and the end of each row in it.

    The arrays may be memory-mapped: only the rows asked for are read.
    """

    def __init__(self, flat: npt.NDArray[Any], ends: npt.NDArray[Any]) -> None:
        self.flat = flat
        self._ends = ends

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Any]], columns: int | None = None) -> RaggedArray:
        """From rows in memory."""
        flat = np.array([value for row in rows for value in row], dtype=np.int64)
        shaped = flat if columns is None else flat.reshape(-1, columns)
        return cls(shaped, np.cumsum([len(row) for row in rows], dtype=np.int64))

    @classmethod
    def open(cls, path: Path, dtype: str, columns: int | None = None, ends: Path | None = None) -> RaggedArray:
        """What a `RaggedFile` wrote; `ends`: where the ends are, if not beside it by its name."""
        empty = path.stat().st_size == 0  # which cannot be mapped
        flat: npt.NDArray[Any] = np.zeros(0, dtype) if empty else np.memmap(path, dtype=dtype, mode="r")
        places = np.memmap(ends or path.with_name(path.name + ENDS), dtype="<u8", mode="r")
        return cls(flat if columns is None else flat.reshape(-1, columns), places)

    def __len__(self) -> int:
        return len(self._ends)

    def lengths(self, indices: npt.NDArray[Any]) -> Integers:
        """How many values rows have."""
        starts = np.where(indices > 0, self._ends[np.maximum(indices, 1) - 1], 0)
        lengths: Integers = self._ends[indices].astype(np.int64) - starts.astype(np.int64)
        return lengths

    def row(self, index: int) -> Integers:
        """One row."""
        return self.values(np.array([range(len(self))[index]]))[0]

    def first(self, limit: int) -> tuple[npt.NDArray[Any], Integers]:
        """The values of the first rows, as many as have `most` together or fewer, and where each row ends."""
        ends = np.asarray(self._ends[: np.searchsorted(self._ends, limit, side="right")], dtype=np.int64)
        return self.flat[: int(ends[-1]) if len(ends) else 0], ends

    def values(self, indices: npt.NDArray[Any]) -> tuple[Integers, Integers, Integers]:
        """The values of rows one after the other; of each, which of `indices` it is of, and its place in that row."""
        lengths = self.lengths(indices)
        ends = np.cumsum(lengths)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        places = np.arange(len(rows)) - np.repeat(ends - lengths, lengths)
        starts = self._ends[indices].astype(np.int64) - lengths
        return np.asarray(self.flat[np.repeat(starts, lengths) + places], dtype=np.int64), rows, places


class RaggedFile:
    """Writes rows as they come; `total` counts their values."""

    def __init__(self, path: Path) -> None:
        self.total = 0
        with ExitStack() as stack:
            self._flat = stack.enter_context(path.open("wb"))
            self._ends = stack.enter_context(path.with_name(path.name + ENDS).open("wb"))
            self._stack = stack.pop_all()

    def __enter__(self) -> RaggedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, values: bytes, lengths: npt.NDArray[np.uint64]) -> None:
        """More rows: their values in the bytes they are kept in, and how many each has."""
        self._flat.write(values)
        ends = np.cumsum(lengths, dtype=np.uint64) + np.uint64(self.total)
        ends.astype("<u8").tofile(self._ends)
        self.total += int(lengths.sum())
