"""Weights laid out once for native products. Imports no torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure, addressof, byref, c_float, c_int32, c_int64, c_void_p
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
    """`PackedMatrix` of packed_matrix.h."""

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
            native.pack_int8(at(weight), at(scale), byref(self.matrix))

    def times(self, x: Array, threads: int = 1) -> Array:
        """x W^T + b of rows of any number of axes."""
        rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]), np.float32)
        y = np.empty((len(rows), self.matrix.outputs), np.float32)
        self._native.linear(byref(self.matrix), at(rows), c_int64(len(rows)), at(y), c_int32(threads))
        return y.reshape(*x.shape[:-1], -1)


# Steps as native code reads them: lists of parts with ranges of numbers (`recurrence.h`). Imports no torch.


class What(IntEnum):
    """`OpType` of recurrence.h."""

    INPUT = 0
    READ = 1
    PRODUCT = 2
    SIGMOID = 3
    TANH = 4
    GRU = 5
    LSTM = 6
    ADDITIVE = 7
    DOT = 8
    ADD = 9
    NORM = 10
    CENTRE = 11
    MAXOUT = 12
    LOG_POSITION = 13
    TANH_VALUES = 14
    SSRU = 15


class CPart(Structure):
    """`Op` of recurrence.h."""

    _fields_ = (
        ("what", c_int64),
        ("size", c_int64),
        ("at", c_int64 * 8),
        ("before", c_int64),
        ("weight", c_void_p),
        ("mask", c_void_p),
        ("mask_row", c_int64),
        ("mask_position", c_int64),
        ("gradient", c_void_p),
    )

    def set(self, what: int, size: int, at: Sequence[int], before: int) -> None:
        """What does not depend on weights."""
        self.what, self.size, self.before = what, size, before
        for n, place in enumerate(at):
            self.at[n] = place


class CFeature(Structure):
    """`Feature` of source_features.h."""

    _fields_ = tuple((name, c_int64) for name in ("units", "neighbours", "keeps", "fixed", "kept"))


class CFeatures(Structure):
    """`Features` of source_features.h."""

    _fields_ = (("each", c_void_p), *((name, c_int64) for name in ("count", "width", "memory", "prepared")))

    @staticmethod
    def of(each: Sequence[tuple[int, ...]]) -> tuple[CFeatures, object]:
        """Those of which CFeature says this each, and what must be kept as long as they are used."""
        features, found = (CFeature * len(each))(*(CFeature(*one) for one in each)), CFeatures(count=len(each))
        for one in features:
            units = rounded_up(one.units)
            found.width += units or 2 * one.neighbours + 1
            found.memory += units or 1
            found.prepared += 3 * units or 1
        found.each = addressof(features)
        return found, features


class CDecoder(Structure):
    """`Decoder` of decoder.h."""

    _fields_ = (
        *((name, c_int64) for name in ("x_size", "sums_size", "values_size", "reads_size", "key", "annotation")),
        ("heads", c_int64),
        ("parts", c_int64),
        ("part", c_void_p),
        ("bias", c_void_p),
        ("vector", c_void_p),
        ("scale", c_float),
        ("reach", c_int64),
        ("spread", c_float),
        ("states", c_int64),
        ("state", c_void_p),
        ("state_size", c_int64),
        ("readout", c_void_p),
        ("table", c_void_p),
        ("features", CFeatures),
        *((name, c_void_p) for name in ("from_word", "embeddings", "bytes", "scales")),
    )


class CBatch(Structure):
    """`SourceBatch` of decoder.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("keys", "annotations", "mask", "centres", "prepared")),
        ("width", c_int64),
        ("centre_count", c_int64),
    )
