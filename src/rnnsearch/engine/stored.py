"""Encoding of arrays in engine files (`file.py`): dense, as 4-bit integers, or sparse.

`int8`, `bf16`, `fp32`, `uint16` and `int32` are stored as consecutive values. A row of `int4` has the factors of its
groups and then its values, two per byte, the lower half first. A `sparse` array has one bit per value, the lowest of a
byte first, that is set if the value is not zero; then the values that are not zero. This module must not import torch.

`export/web/module/arrays.js` decodes the same forms; existing files contain them, so add a form instead of changing
one. Tests: tests/runtime/test_runtime.py, tests/page/test_module.py.
"""

from __future__ import annotations

import math
from io import BufferedIOBase
from typing import NamedTuple

import numpy as np

from rnnsearch.engine.structs import Array

ALIGNMENT = 64  # bytes
TYPES = {
    "int8": np.int8,
    "bf16": np.uint16,
    "fp32": np.float32,
    "int4": np.uint8,
    "uint16": np.uint16,
    "int32": np.int32,
}
"""Type of the stored values by its name in the header."""
DENSE, SPARSE = "dense", "sparse"

INT4_GROUP = 16  # values with a common factor
INT4_MAX = 7
"""Largest absolute value of a 4-bit integer."""
INT4_FACTOR_UNIT = 8  # a byte is value * factor / 8, rounded
INT4_MAX_FACTOR = 145  # maps 7 to 127
ENCODED_ROWS = 4096  # rows that factors are searched for at once
DECODED_ROWS = 128  # rows that are decoded at once, because intermediate values take ten times as much memory


def quantise_int8(weight: Array) -> tuple[Array, Array]:
    """Return int8 values [outputs, inputs] and a scale per row [outputs], equal to those of native code.

    See `int8_scale` in packed_matrix.h.
    """
    # Rows of zeros get the scale 1: no division by 0.
    maximum = np.abs(weight).max(1, initial=0).astype(np.float32)
    scale = np.where(maximum > 0, maximum / np.float32(127), np.float32(1)).astype(np.float32)
    # Multiplied by the reciprocal, as native code does: a division would round differently.
    return np.rint(weight * (np.float32(1) / scale)[:, None]).astype(np.int8), scale


def reproducible_scales(scale: Array) -> Array:
    """Return scales s' such that int8 rows times s', quantised again, get the original scale s.

    s * 127 / 127 need not be s in fp32, but a neighbouring number s' gives s.
    """
    result = scale.copy()
    # Each iteration moves by one ulp; the scale is at most a few away.
    for _ in range(4):
        quantised = ((result * np.float32(127)).astype(np.float32) / np.float32(127)).astype(np.float32)
        result = np.where(quantised < scale, np.nextafter(result, np.float32(np.inf)), result)
        result = np.where(quantised > scale, np.nextafter(result, np.float32(0)), result)
    return result


def to_bf16(values: Array) -> Array:
    """Return the upper halves of fp32 values, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # 0x7FFF, or 0x8000 if the lowest remaining bit is odd: ties go to the even value.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(halves: Array) -> Array:
    """Return the fp32 values of upper halves."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def pack_int4(values: Array) -> Array:
    """Return rows of int8 values as stored int4 rows, with the best factor of each group.

    A group that contains 127 keeps it, so that the row keeps its scale.
    """
    blocks = range(0, len(values), ENCODED_ROWS)
    return np.concatenate([_pack_int4_block(values[start : start + ENCODED_ROWS]) for start in blocks])


def _pack_int4_block(values: Array) -> Array:
    rows, width = values.shape
    groups = -(-width // INT4_GROUP)
    padded = np.zeros((rows, groups, INT4_GROUP), np.float32)
    padded.reshape(rows, -1)[:, :width] = values
    maximum = np.abs(padded).max(2)  # [rows, groups]
    covering = np.clip(np.ceil(maximum * INT4_FACTOR_UNIT / INT4_MAX), 1, INT4_MAX_FACTOR)  # factor without clipping
    best_factor = covering
    best_error = np.full(covering.shape, np.inf, np.float32)
    for fraction in np.linspace(0.6, 1.0, 17):  # a smaller factor clips a few large values but rounds others less
        # A group with 127 sets the row's scale, so its largest value must not be clipped.
        factor = np.where(maximum == 127, covering, np.maximum(1, np.rint(covering * fraction)))[..., None]
        error = ((padded - _int4_to_int8(_int8_to_int4(padded, factor), factor)) ** 2).sum(2)
        # <=: of equal errors, the larger fraction wins, which clips less.
        best_factor = np.where(error <= best_error, factor[..., 0], best_factor)
        best_error = np.minimum(error, best_error)
    integers = _int8_to_int4(padded, best_factor[..., None]).astype(np.int8)
    # Two's complement of 4 bits; JavaScript and `_unpack_int4_block` extend the sign.
    nibbles = (integers & 15).astype(np.uint8).reshape(rows, -1)
    pairs = nibbles[:, : 2 * -(-width // 2)].reshape(rows, -1, 2)
    return np.concatenate([best_factor.astype(np.uint8), pairs[..., 0] | pairs[..., 1] << 4], axis=1)


def unpack_int4(stored: Array, width: int) -> Array:
    """Return the int8 values [rows, width] of stored int4 rows."""
    values = np.empty((len(stored), width), np.int8)
    for start in range(0, len(stored), DECODED_ROWS):
        values[start : start + DECODED_ROWS] = _unpack_int4_block(stored[start : start + DECODED_ROWS], width)
    return values


def _unpack_int4_block(stored: Array, width: int) -> Array:
    groups = -(-width // INT4_GROUP)
    factor = stored[:, :groups].astype(np.float32)
    pairs = stored[:, groups:]
    integers = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(len(stored), -1)[:, :width].astype(np.float32)
    # Sign extension: 8 to 15 are -8 to -1.
    integers = np.where(integers > INT4_MAX, integers - 16, integers)
    return _int4_to_int8(integers, np.repeat(factor, INT4_GROUP, axis=1)[:, :width]).astype(np.int8)


def _int8_to_int4(values: Array, factor: Array) -> Array:
    return np.clip(np.rint(values * INT4_FACTOR_UNIT / factor), -INT4_MAX, INT4_MAX)


def _int4_to_int8(integers: Array, factor: Array) -> Array:
    return np.clip(np.rint(integers * factor / INT4_FACTOR_UNIT), -127, 127)


def int4_row_bytes(width: int) -> int:
    """Return the number of bytes of a stored int4 row."""
    return -(-width // INT4_GROUP) + -(-width // 2)


def encode(type: str, array: Array) -> tuple[str, bytes]:
    """Return the form of an array, DENSE or SPARSE, and its bytes in the shorter of the two."""
    values = np.ascontiguousarray(array).reshape(-1)
    nonzero = values != 0
    if type == "fp32":
        nonzero |= np.signbit(values)  # -0.0 is kept
    sparse = np.packbits(nonzero, bitorder="little").tobytes() + values[nonzero].tobytes()
    dense = values.tobytes()
    return (SPARSE, sparse) if type != "int4" and len(sparse) < len(dense) else (DENSE, dense)


def max_bytes(shape: list[int]) -> int:
    """Return the maximum size of an array with this shape.

    Raises:
        ValueError, TypeError: It is not a shape.
    """
    # `isinstance` accepts True as 1, which is harmless.
    if not 1 <= len(shape) <= 2 or not all(isinstance(n, int) and n >= 1 for n in shape):
        raise ValueError
    return 4 * math.prod(shape)


class Payload(NamedTuple):
    """The arrays of an open file."""

    file: BufferedIOBase  # the open file
    begin: int  # position in the file
    size: int  # bytes

    def read(self, dtype: np.dtype, count: int, offset: int) -> Array:
        """Read `count` values.

        Raises:
            ValueError: The payload ends before.
        """
        # Before any memory is allocated for the values.
        if offset + count * dtype.itemsize > self.size:
            raise ValueError
        values = np.empty(count, dtype)
        self.file.seek(self.begin + offset)
        if self.file.readinto(values.data) != values.nbytes:
            raise ValueError
        return values


def check_entry(payload: Payload, type: str, shape: list[int], begin: int, form: str = DENSE) -> None:
    """Raise ValueError, KeyError or TypeError if `read_array` would not find a whole array with these arguments."""
    size = np.dtype(TYPES[type]).itemsize
    count = max_bytes(shape) // 4
    if not isinstance(begin, int) or begin < 0 or begin % ALIGNMENT or form not in (DENSE, SPARSE):
        raise ValueError
    if type == "int4":
        size = int4_row_bytes(shape[1])
        count = shape[0]
    elif form == SPARSE:
        nonzero = _read_bits(payload, count, begin)
        # The number of values is known only from the bits.
        begin += -(-count // 8)
        count = int(nonzero.sum(dtype=np.int64))
    if begin + count * size > payload.size:
        raise ValueError


def decoded_dtype(type: str) -> np.dtype:
    """Return the type of the array that `read_array` returns."""
    return np.dtype({"bf16": np.float32, "int4": np.int8}.get(type, TYPES[type]))


def read_array(payload: Payload, type: str, shape: list[int], begin: int, form: str = DENSE) -> Array:
    """Read an array, which must have passed `check_entry`; bf16 becomes fp32, and int4 becomes int8.

    Raises:
        ValueError: The payload ends before.
    """
    dtype = np.dtype(TYPES[type])
    count = max_bytes(shape) // 4
    if type == "int4":
        rows, width = shape
        return unpack_int4(payload.read(dtype, rows * int4_row_bytes(width), begin).reshape(rows, -1), width)
    if form == SPARSE:
        nonzero = _read_bits(payload, count, begin)
        values = np.zeros(count, dtype)
        values[nonzero] = payload.read(dtype, int(nonzero.sum(dtype=np.int64)), begin + -(-count // 8))
    else:
        values = payload.read(dtype, count, begin)
    values = values.reshape(shape)
    return from_bf16(values) if type == "bf16" else values


def _read_bits(payload: Payload, count: int, begin: int) -> Array:
    """Return [count], True for the values of a sparse array that are not zero."""
    bits = payload.read(np.dtype(np.uint8), -(-count // 8), begin)
    return np.unpackbits(bits, count=count, bitorder="little").astype(bool)
