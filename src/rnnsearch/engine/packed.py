"""Weights laid out once for native products. Imports no torch."""

from __future__ import annotations

import ctypes
from ctypes import Structure, byref, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

UNIT = 16
"""Sizes are rounded up to multiples of this: no vector is longer."""

MOST_UNITS = 1 << 14
"""Of a layer, and numbers of an embedded word: one row stands on native code's stack."""

Array = npt.NDArray[Any]


def rounded_up(size: int) -> int:
    """A size and what it takes to the next vector."""
    return -(-size // UNIT) * UNIT


class Kind(IntEnum):
    """What products are of: fp32; bf16; or bytes times a scale a row, of weights and of inputs alike. Sums of bytes are
    exact, those of the others fp32."""

    FP32 = 0
    BF16 = 1
    INT8 = 2

    @property
    def each(self) -> int:
        """Numbers in 4 bytes."""
        return (1, 2, 4)[self]


class Matrix(Structure):
    """`Matrix` of matrix.h."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("scale", c_void_p),
        ("excess", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("kind", c_int32),
    )


def at(x: Array) -> c_void_p:
    """The address of a contiguous array's numbers."""
    return c_void_p(x.ctypes.data)


class Laid:
    """A weight [outputs, inputs] and its bias, laid out for native products of one kind.

    The weight is fp32, or bytes -127 .. 127 with a scale for each row, which are laid out as they are.
    """

    def __init__(
        self, native: ctypes.CDLL, weight: Array, bias: Array | None, kind: Kind, scale: Array | None = None
    ) -> None:
        self._native = native
        panel = int(native.panel_width())
        outputs, inputs = weight.shape
        rounded = -(-outputs // panel) * panel
        depth = -(-inputs // kind.each)
        self._panels = np.empty(rounded * depth + UNIT, np.float32)  # 4 bytes each, whatever they hold
        begin = -self._panels.ctypes.data // 4 % UNIT  # whole cache lines
        self._rows = (np.zeros(rounded, np.float32), np.zeros(rounded, np.float32), np.zeros(rounded, np.int32))
        """Bias, scale and excess of each row."""
        if bias is not None:
            self._rows[0][:outputs] = bias
        of_rows = (part.ctypes.data for part in self._rows)
        self.matrix = Matrix(self._panels[begin:].ctypes.data, *of_rows, outputs, inputs, kind)
        if scale is None:
            weight = np.ascontiguousarray(weight, np.float32)
            native.pack(at(weight), byref(self.matrix))
        else:
            weight, scale = np.ascontiguousarray(weight, np.int8), np.ascontiguousarray(scale, np.float32)
            native.pack_bytes(at(weight), at(scale), byref(self.matrix))

    def times(self, x: Array, threads: int = 1) -> Array:
        """x W^T + b of rows of any number of axes."""
        rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]), np.float32)
        y = np.empty((len(rows), self.matrix.outputs), np.float32)
        self._native.linear(byref(self.matrix), at(rows), c_int64(len(rows)), at(y), c_int32(threads))
        return y.reshape(*x.shape[:-1], -1)
