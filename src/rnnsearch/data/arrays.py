"""Sources that are arrays instead of text, such as image regions or speech frames: files, and arrays as sentences.

A NumPy file (.npy) holds the arrays of one stream: with three axes [arrays, rows, features], or with two axes
[rows, features] if the arrays differ in their number of rows. A file with the same name and `ENDS_SUFFIX` then holds
the end of each array among the rows, ascending. Files are memory-mapped and may come from anyone: nothing is unpickled,
and their headers are checked before any memory is used. Prepared data store arrays in the second format.

In the rest of the package an array behaves like a sentence of `ArraySource`, with a token per row. Batches and models
read its values (`Stream.values`). Tests: tests/data/test_arrays.py.

Axes: J rows of an array, F features, T rows of all arrays of a file.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.config.data import ArrayConfig
from rnnsearch.data.ragged import RaggedArray
from rnnsearch.errors import DataError, RnnsearchError, library_errors
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.text.vocabulary import UNK

Values = npt.NDArray[np.float32]
"""[J, F], the values of one array."""
SUFFIX = ".npy"
"""Suffix of files of arrays."""
ENDS_SUFFIX = ".ends.npy"
"""Suffix, instead of `SUFFIX`, of the file with the end of each array; part of the format of prepared data."""
VALUE_DTYPE = np.dtype("<f4")
"""Type of the values in prepared data."""
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_MAX_ITEM_BYTES = 8


# Arrays as sentences.


class NamedArray(str):
    """The name of an array, such as `scenes.npy:3`, with its values; it is in the place of a text."""

    values: npt.NDArray[Any]

    def __new__(cls, name: str, values: npt.NDArray[Any]) -> NamedArray:
        """Return a name with values [J, F] of any type, which `array_source` checks."""
        named = super().__new__(cls, name)
        named.values = values
        return named


class ArrayIds(list[int]):
    """An array in the place of a sentence's ids: UNK for each row, and the values [J, F]."""

    def __init__(self, values: Values) -> None:
        super().__init__([UNK] * len(values))
        self.values = values


@dataclass(frozen=True)
class ArraySource(Segmented):
    """An array as a source sentence: each row is a token and a word, whose text is its number or its grid position."""

    grid: tuple[int, int] | None = None
    """Rows and columns of the grid of an image's regions."""

    @property
    def spelled_ids(self) -> Any:
        """The array itself, which has no words outside a vocabulary."""
        return self.ids

    @property
    def translatable(self) -> ArraySource:
        """The array, which is searched unless it has no rows."""
        return self

    @property
    def image_grid(self) -> tuple[int, int] | None:
        """Rows and columns of regions, if there is a grid."""
        return self.grid

    @property
    def has_unknown(self) -> bool:
        """False: rows have no vocabulary."""
        return False

    @property
    def is_text(self) -> bool:
        """False: models read no end token after the rows of an array."""
        return False


def array_source(array: object, options: ArrayConfig, stream: str) -> ArraySource:
    """Return an array as a source sentence.

    Args:
        array: A `NamedArray`.
        options: `[data.arrays.NAME]` of the stream.
        stream: Name of the stream.

    Raises:
        RnnsearchError: It is a text, or an array that does not fit the stream.
    """
    if not isinstance(array, NamedArray):
        raise RnnsearchError(f"the model reads arrays ({stream}), not text; give it arrays, or a .npy file")
    values = checked_values(array.values, options, str(array))
    labels = row_labels(len(values), options)
    offsets = []
    start = 0
    for label in labels:
        offsets.append((start, start + len(label)))
        start += len(label) + 1
    grid = None if options.grid is None else (options.grid[0], options.grid[1])
    return ArraySource(" ".join(labels), ArrayIds(values), labels, offsets, grid=grid)


def row_labels(rows: int, options: ArrayConfig) -> list[str]:
    """Return the names of the rows of an array: `row,column` in a grid, otherwise the number, both counted from 1."""
    if options.grid is None:
        return [str(number) for number in range(1, rows + 1)]
    _, width = options.grid
    return [f"{index // width + 1},{index % width + 1}" for index in range(rows)]


def checked_values(array: npt.NDArray[Any], options: ArrayConfig, location: str) -> Values:
    """Return the values of an array in fp32.

    Raises:
        DataError: Its type, shape or a value is not valid; the message starts with `location`.
    """
    if array.dtype.kind not in "fiu" or array.ndim != 2 or array.shape[1] != options.features:
        must = f"must be an array of numbers [rows, {options.features}]"
        raise DataError(f"{location}: {must}; got {array.dtype} [{', '.join(map(str, array.shape))}]")
    if options.rows not in (None, len(array)) and len(array) > 0:
        raise DataError(f"{location}: must have {options.rows} rows, one per cell of the grid; got {len(array)}")
    with np.errstate(over="ignore"):  # too large for fp32: infinity, which is rejected below
        values: Values = np.asarray(array, dtype=np.float32)
    if not np.isfinite(values).all():
        raise DataError(f"{location}: must hold finite numbers; got NaN, infinity or a number beyond fp32")
    return values


# Files.


def is_array_file(path: Path) -> bool:
    """Return True if the name of a file is that of arrays."""
    return path.suffix.lower() == SUFFIX


def ends_path(path: Path) -> Path:
    """Return the file of the ends of the arrays in a file."""
    return path.with_name(path.name.removesuffix(SUFFIX) + ENDS_SUFFIX)


def open_arrays(path: Path, options: ArrayConfig) -> RaggedArray:
    """Map a file of arrays.

    Raises:
        DataError: The file is missing, is no such file, or its arrays have other shapes than `options` says.
    """
    flat = _map(path)
    if flat.ndim not in (2, 3) or flat.shape[-1] != options.features:
        axes = f"[arrays, rows, {options.features}], or [rows, {options.features}] with a file of ends"
        raise DataError(f"{path}: must have the axes {axes}; got [{', '.join(map(str, flat.shape))}]")
    if flat.ndim == 3:
        arrays, rows, features = flat.shape
        return RaggedArray(flat.reshape(-1, features), np.arange(1, arrays + 1, dtype=np.int64) * rows)
    ends = _map(ends_path(path))
    if ends.ndim != 1 or ends.dtype.kind not in "iu":
        raise DataError(f"{ends_path(path)}: must have the ends of arrays as integers [arrays]; got {ends.dtype}")
    bounds = np.concatenate([np.zeros(1, np.int64), ends.astype(np.int64)])
    if (np.diff(bounds) < 0).any() or bounds[-1] != len(flat):
        raise DataError(f"{ends_path(path)}: must be ascending ends up to the {len(flat)} rows of {path.name}")
    return RaggedArray(flat, bounds[1:])


def _map(path: Path) -> npt.NDArray[Any]:
    """Map a NumPy file of numbers, or raise DataError."""
    try:
        with path.open("rb") as file:
            with library_errors(f"{path}: must be a NumPy file (.npy) of numbers"):
                read_header = _HEADER_READERS[np.lib.format.read_magic(file)]
                shape, is_fortran, dtype = read_header(file)
            start = file.tell()
            size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if dtype.kind not in "fiu" or dtype.itemsize > _MAX_ITEM_BYTES or dtype.shape:
        must = "must hold numbers of at most 64 bits (save it with dtype=np.float32)"
        raise DataError(f"{path}: {must}; got {'objects' if dtype.hasobject else dtype}")
    if is_fortran and len(shape) > 1:
        raise DataError(f"{path}: must be in C order (save np.ascontiguousarray(array)); got Fortran order")
    count = 1
    for axis in shape:
        count *= int(axis)
    needed = start + count * dtype.itemsize
    if any(axis < 0 for axis in shape) or needed != size:
        raise DataError(f"{path}: must have {needed:,} bytes according to its header; got {size:,}")
    if count == 0:  # cannot be mapped
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape)


def array_names(path: Path, name: str, options: ArrayConfig) -> Generator[bytes, None, None]:
    """Yield the name `NAME:NUMBER` of each array of a file, like lines of text; an empty one for an array without rows.

    Raises:
        DataError: The file is not valid.
    """
    if not name.isprintable():
        raise DataError(f"{path}: the name of a file of arrays must have only printable characters")
    arrays = open_arrays(path, options)
    for index in range(len(arrays)):
        has_rows = arrays.lengths(np.array([index]))[0] > 0
        yield f"{name}:{index + 1}".encode() if has_rows else b""


def read_arrays(path: Path, options: ArrayConfig) -> list[NamedArray]:
    """Return the arrays of a file that fits into memory, such as a dev set.

    Raises:
        DataError: The file or an array is not valid.
    """
    arrays = open_arrays(path, options)
    return list(iterate_arrays(arrays, path))


def named_array(arrays: RaggedArray, index: int, path: Path) -> NamedArray:
    """Return one array of a file."""
    return NamedArray(f"{path.name}:{index + 1}", arrays.array(index))


def iterate_arrays(arrays: RaggedArray, path: Path) -> Iterator[NamedArray]:
    """Yield all arrays of a file."""
    for index in range(len(arrays)):
        yield named_array(arrays, index, path)


class ArrayFiles:
    """The array files of a corpus, in which names (`array_names`) are looked up; each is opened once."""

    def __init__(self, base: Path, options: Mapping[str, ArrayConfig]) -> None:
        self._base = base
        self._options = options
        self._opened: dict[tuple[str, str], RaggedArray] = {}

    def find(self, stream: str, name: str) -> Values:
        """Return the array of a name, with no rows for an empty name.

        Raises:
            DataError: A value of the array is not valid.
        """
        options = self._options[stream]
        if not name:
            return np.zeros((0, options.features), np.float32)
        file, _, number = name.rpartition(":")
        if (stream, file) not in self._opened:
            self._opened[stream, file] = open_arrays(self._base / file, options)
        array = self._opened[stream, file].array(int(number) - 1)
        return checked_values(array, options, f"{self._base / file}:{number}")


class ArrayWriter:
    """Writes arrays one after the other; `digest` is that of their values and lengths."""

    def __init__(self, path: Path, features: int) -> None:
        self._path = path
        self._features = features
        self._ends: list[int] = []
        self._file = path.open("wb")
        self._rows = 0
        self._digest = sha256()
        self._write_header()

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        # With the final number of rows; NumPy reserves space for any number of them.
        start = self._file.tell()
        self._file.seek(0)
        self._write_header()
        self._file.seek(start)
        self._file.close()
        np.save(ends_path(self._path), np.array(self._ends, dtype=np.int64), allow_pickle=False)

    def _write_header(self) -> None:
        header = {"descr": VALUE_DTYPE.str, "fortran_order": False, "shape": (self._rows, self._features)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def add(self, values: Values) -> None:
        """Append an array [J, F]."""
        content = np.ascontiguousarray(values, VALUE_DTYPE).tobytes()
        self._file.write(content)
        self._rows += len(values)
        self._ends.append(self._rows)
        self._digest.update(len(values).to_bytes(8, "little") + content)

    @property
    def num_rows(self) -> int:
        """Number of rows written."""
        return self._rows

    @property
    def num_missing(self) -> int:
        """Number of arrays without rows."""
        return int((np.diff(np.array([0, *self._ends])) == 0).sum())

    @property
    def digest(self) -> str:
        """SHA-256 of the arrays."""
        return self._digest.hexdigest()
