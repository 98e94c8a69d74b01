"""Rows of different lengths in one flat array, in memory or memory-mapped; used for ids and word alignments.

The values are in one file, and the ends of the rows, as `<u8`, in another with `ENDS_SUFFIX`; both are part of the
format of prepared data.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
ENDS_SUFFIX = ".ends"
"""Suffix of the file with the end of each row."""


class RaggedArray:
    """Rows one after the other in a flat array, [values] or [values, columns], and the end of each row in it.

    The arrays may be memory-mapped; only requested rows are read.
    """

    def __init__(self, flat: npt.NDArray[Any], ends: npt.NDArray[Any]) -> None:
        self.flat = flat
        self._ends = ends

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Any]], columns: int | None = None) -> RaggedArray:
        """Return an array of rows in memory."""
        flat = np.array([value for row in rows for value in row], dtype=np.int64)
        shaped = flat if columns is None else flat.reshape(-1, columns)
        return cls(shaped, np.cumsum([len(row) for row in rows], dtype=np.int64))

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> RaggedArray:
        """Return an array in memory whose rows are arrays [rows, columns]; there must be at least one."""
        return cls(np.concatenate(arrays), np.cumsum([len(array) for array in arrays], dtype=np.int64))

    @classmethod
    def open(cls, path: Path, dtype: str, columns: int | None = None, ends: Path | None = None) -> RaggedArray:
        """Map the files of a `RaggedFile`.

        Args:
            path: File of the values.
            dtype: Type of the values.
            columns: Number of columns per value, if any.
            ends: File of the row ends, if it has another name.
        """
        is_empty = path.stat().st_size == 0  # an empty file cannot be mapped
        flat: npt.NDArray[Any] = np.zeros(0, dtype) if is_empty else np.memmap(path, dtype=dtype, mode="r")
        row_ends = np.memmap(ends or path.with_name(path.name + ENDS_SUFFIX), dtype="<u8", mode="r")
        return cls(flat if columns is None else flat.reshape(-1, columns), row_ends)

    def __len__(self) -> int:
        return len(self._ends)

    def lengths(self, indices: npt.NDArray[Any]) -> Integers:
        """Return the number of values of each row."""
        # A row starts at the end of the row before it.
        starts = np.where(indices > 0, self._ends[np.maximum(indices, 1) - 1], 0)
        lengths: Integers = self._ends[indices].astype(np.int64) - starts.astype(np.int64)
        return lengths

    def row(self, index: int) -> Integers:
        """Return the values of one row."""
        return self.values(np.array([range(len(self))[index]]))[0]

    def first(self, limit: int) -> tuple[npt.NDArray[Any], Integers]:
        """Return the values of the first rows with at most `limit` values in total, and the end of each row."""
        ends = np.asarray(self._ends[: np.searchsorted(self._ends, limit, side="right")], dtype=np.int64)
        return self.flat[: int(ends[-1]) if len(ends) else 0], ends

    def array(self, index: int) -> npt.NDArray[Any]:
        """Return a view of one row with the type of the file."""
        position = range(len(self))[index]
        end = int(self._ends[position])
        return self.flat[end - int(self.lengths(np.array([position]))[0]) : end]

    def values(self, indices: npt.NDArray[Any]) -> tuple[Integers, Integers, Integers]:
        """Return the values of some rows, concatenated.

        Returns:
            The values; for each value, the index of its row in `indices`; and its position in that row.
        """
        values, rows, positions = self.gather(indices)
        return np.asarray(values, dtype=np.int64), rows, positions

    def gather(self, indices: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Integers, Integers]:
        """Return what `values` returns, with the type of the file."""
        lengths = self.lengths(indices)
        ends = np.cumsum(lengths)
        # Row of each value in the result, and its position in that row.
        rows = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(rows)) - np.repeat(ends - lengths, lengths)
        starts = self._ends[indices].astype(np.int64) - lengths
        # One gather for all rows: of a memory-mapped file, only their pages are read.
        return np.asarray(self.flat[np.repeat(starts, lengths) + positions]), rows, positions


class RaggedFile:
    """A writer of rows; `total` counts the values written."""

    def __init__(self, path: Path) -> None:
        self.total = 0
        with ExitStack() as stack:
            self._flat = stack.enter_context(path.open("wb"))
            self._ends = stack.enter_context(path.with_name(path.name + ENDS_SUFFIX).open("wb"))
            self._stack = stack.pop_all()

    def __enter__(self) -> RaggedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, values: bytes, lengths: npt.NDArray[np.uint64]) -> None:
        """Append rows, given as the bytes of their values and the number of values of each row."""
        self._flat.write(values)
        # Ends are counted from the start of the file, not of this block of rows.
        ends = np.cumsum(lengths, dtype=np.uint64) + np.uint64(self.total)
        ends.astype("<u8").tofile(self._ends)
        self.total += int(lengths.sum())
