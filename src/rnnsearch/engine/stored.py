"""How arrays stand in a file: whole, as numbers of 4 bits, or without their zeros. Imports no torch.

`int8`, `bf16`, `fp32`, `uint16` and `int32` are numbers one after the other. Of `int4`, a row has its groups' factors
and then its numbers, two in a byte, the lower half first. What is `sparse` has a bit for each number, the lowest of a
byte first, whether it is not zero, and then those that are not.
"""

from __future__ import annotations

import math
from io import BufferedIOBase
from typing import NamedTuple

import numpy as np

from rnnsearch.engine.structs import Array

ALIGNED = 64
TYPES = {
    "int8": np.int8,
    "bf16": np.uint16,
    "fp32": np.float32,
    "int4": np.uint8,
    "uint16": np.uint16,
    "int32": np.int32,
}
"""Of what stands in a file, by the name that the header has for it."""
DENSE, SPARSE = "dense", "sparse"
GROUP = 16
"""Numbers of 4 bits with a factor of their own."""
TOP = 7
"""The largest of them."""
EIGHTHS = 8
"""A factor counts eighths: number * factor / 8, rounded, is a byte."""
GREATEST = 145
"""The factor that takes 7 to 127."""
ROWS = 4096
"""Rows at a time, for which factors are sought."""
ROWS_READ = 128
"""Rows at a time, of which bytes are made: on the way each number takes ten times as much."""


def in_bytes(weight: Array) -> tuple[Array, Array]:
    """Bytes [outputs, inputs] and a scale [outputs]: a weight's rows as native code rounds them when it lays them out
    in int8 (`int8_scale` in packed_matrix.h)."""
    top = np.abs(weight).max(1, initial=0).astype(np.float32)
    scale = np.where(top > 0, top / np.float32(127), np.float32(1)).astype(np.float32)
    return np.rint(weight * (np.float32(1) / scale)[:, None]).astype(np.int8), scale


def readable(scale: Array) -> Array:
    """Scales s' such that rows of bytes times s', rounded to bytes again, get the scale s: s' * 127 / 127 need not be
    s' in fp32, but that of a neighbour is s."""
    found = scale.copy()
    for _ in range(4):
        again = ((found * np.float32(127)).astype(np.float32) / np.float32(127)).astype(np.float32)
        found = np.where(again < scale, np.nextafter(found, np.float32(np.inf)), found)
        found = np.where(again > scale, np.nextafter(found, np.float32(0)), found)
    return found


def to_bf16(values: Array) -> Array:
    """The upper halves of fp32 numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(halves: Array) -> Array:
    """Those numbers in fp32."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def in_halves(values: Array) -> Array:
    """Rows of bytes in 4 bits each, as they stand in a file: of each group the factor that comes closest to its bytes.

    A group that has 127 keeps it, and so the row its scale.
    """
    return np.concatenate([_halved(values[begin : begin + ROWS]) for begin in range(0, len(values), ROWS)])


def _halved(values: Array) -> Array:
    rows, width = values.shape
    groups = -(-width // GROUP)
    padded = np.zeros((rows, groups, GROUP), np.float32)
    padded.reshape(rows, -1)[:, :width] = values
    top = np.abs(padded).max(2)
    exact = np.clip(np.ceil(top * EIGHTHS / TOP), 1, GREATEST)
    best, least = exact, np.full(exact.shape, np.inf, np.float32)
    for share in np.linspace(0.6, 1.0, 17):  # a smaller factor clips the few largest, and is finer for the others
        factor = np.where(top == 127, exact, np.maximum(1, np.rint(exact * share)))[..., None]
        error = ((padded - _bytes(_numbers(padded, factor), factor)) ** 2).sum(2)
        best, least = np.where(error <= least, factor[..., 0], best), np.minimum(error, least)
    numbers = (_numbers(padded, best[..., None]).astype(np.int8) & 15).astype(np.uint8).reshape(rows, -1)
    pairs = numbers[:, : 2 * -(-width // 2)].reshape(rows, -1, 2)
    return np.concatenate([best.astype(np.uint8), pairs[..., 0] | pairs[..., 1] << 4], axis=1)


def from_halves(stored: Array, width: int) -> Array:
    """The bytes [rows, `width`] of what `in_halves` gave."""
    found = np.empty((len(stored), width), np.int8)
    for begin in range(0, len(stored), ROWS_READ):
        found[begin : begin + ROWS_READ] = _whole(stored[begin : begin + ROWS_READ], width)
    return found


def _whole(stored: Array, width: int) -> Array:
    groups = -(-width // GROUP)
    factor, pairs = stored[:, :groups].astype(np.float32), stored[:, groups:]
    numbers = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(len(stored), -1)[:, :width].astype(np.float32)
    numbers = np.where(numbers > TOP, numbers - 16, numbers)
    return _bytes(numbers, np.repeat(factor, GROUP, axis=1)[:, :width]).astype(np.int8)


def half_width(width: int) -> int:
    """Bytes in a file of a row of so many numbers of 4 bits."""
    return -(-width // GROUP) + -(-width // 2)


def _numbers(values: Array, factor: Array) -> Array:
    return np.clip(np.rint(values * EIGHTHS / factor), -TOP, TOP)


def _bytes(numbers: Array, factor: Array) -> Array:
    return np.clip(np.rint(numbers * factor / EIGHTHS), -127, 127)


def written(type: str, array: Array) -> tuple[str, bytes]:
    """An array's bytes, dense or sparse, whatever is less."""
    numbers = np.ascontiguousarray(array).reshape(-1)
    there = numbers != 0
    if type == "fp32":
        there |= np.signbit(numbers)  # -0.0 is kept
    sparse = np.packbits(there, bitorder="little").tobytes() + numbers[there].tobytes()
    dense = numbers.tobytes()
    return (SPARSE, sparse) if type != "int4" and len(sparse) < len(dense) else (DENSE, dense)


def bytes_of(shape: list[int]) -> int:
    """The most that an array of a shape can take. Errors: ValueError, TypeError for what is no shape."""
    if not 1 <= len(shape) <= 2 or not all(isinstance(n, int) and n >= 1 for n in shape):
        raise ValueError
    return 4 * math.prod(shape)


class Payload(NamedTuple):
    """The arrays of an open file: where they begin in it, and how many bytes they are."""

    file: BufferedIOBase
    begin: int
    size: int

    def numbers(self, kind: np.dtype, count: int, at: int) -> Array:
        """So many numbers from a byte of it on. Errors: ValueError where they are not all there."""
        if at + count * kind.itemsize > self.size:
            raise ValueError
        found = np.empty(count, kind)
        self.file.seek(self.begin + at)
        if self.file.readinto(found.data) != found.nbytes:
            raise ValueError
        return found


def require(payload: Payload, type: str, shape: list[int], begin: int, form: str = DENSE) -> None:
    """Errors: ValueError, KeyError, TypeError where `read` would not find a whole array."""
    size, count = np.dtype(TYPES[type]).itemsize, bytes_of(shape) // 4
    if not isinstance(begin, int) or begin < 0 or begin % ALIGNED or form not in (DENSE, SPARSE):
        raise ValueError
    if type == "int4":
        size, count = half_width(shape[1]), shape[0]
    elif form == SPARSE:
        there = _bits(payload, count, begin)
        begin, count = begin + -(-count // 8), int(there.sum(dtype=np.int64))
    if begin + count * size > payload.size:
        raise ValueError


def type_of(type: str) -> np.dtype:
    """Of what `read` finds."""
    return np.dtype({"bf16": np.float32, "int4": np.int8}.get(type, TYPES[type]))


def read(payload: Payload, type: str, shape: list[int], begin: int, form: str = DENSE) -> Array:
    """An array; what is in bf16 becomes fp32, what is in 4 bits bytes.

    Errors: ValueError where it does not lie in the file; what else `require` finds is not looked for again.
    """
    kind, count = np.dtype(TYPES[type]), bytes_of(shape) // 4
    if type == "int4":
        rows, width = shape
        return from_halves(payload.numbers(kind, rows * half_width(width), begin).reshape(rows, -1), width)
    if form == SPARSE:
        there = _bits(payload, count, begin)
        found = np.zeros(count, kind)
        found[there] = payload.numbers(kind, int(there.sum(dtype=np.int64)), begin + -(-count // 8))
    else:
        found = payload.numbers(kind, count, begin)
    found = found.reshape(shape)
    return from_bf16(found) if type == "bf16" else found


def _bits(payload: Payload, count: int, begin: int) -> Array:
    """[count], which numbers of a sparse array are there."""
    bits = payload.numbers(np.dtype(np.uint8), -(-count // 8), begin)
    return np.unpackbits(bits, count=count, bitorder="little").astype(bool)
