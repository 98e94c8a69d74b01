"""Arrays and steps in the form that native code reads: packed weight matrices and ctypes structures.

Used with and without PyTorch. Each structure mirrors one of a C++ header in `ops/native`, with the same fields in the
same order. This module must not import torch.

Change header, structure and the offsets in `export/web/module` together. Tests: tests/models/test_native.py,
tests/properties/test_engine.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure, addressof, byref, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

UNIT_MULTIPLE = 16  # sizes are rounded up to multiples of this; no processor's vectors are longer
MAX_UNITS = 1 << 14  # of a layer, and size of an embedding: native code keeps one row on its stack

Array = npt.NDArray[Any]


def round_up(size: int) -> int:
    """Return the size in whole vectors."""
    return -(-size // UNIT_MULTIPLE) * UNIT_MULTIPLE


def pointer(x: Array) -> c_void_p:
    """Return the address of the first value of a contiguous array."""
    return c_void_p(x.ctypes.data)


class DType(IntEnum):
    """Type of the values that matrix products multiply, weights and inputs alike.

    INT8 values have one scale per row; their sums are exact. Sums of the others are in fp32.
    """

    FP32 = 0
    BF16 = 1
    INT8 = 2

    @property
    def values_per_word(self) -> int:
        """Number of values in 4 bytes."""
        return (1, 2, 4)[self]


class CMatrix(Structure):
    """`PackedMatrix` of packed_matrix.h."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("scale", c_void_p),
        ("correction", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("dtype", c_int32),
    )


class PackedMatrix:
    """A weight [outputs, inputs] and its bias, packed once for many native products in one type.

    The weight is in fp32, or in int8 (-127 to 127) with a scale per row, which is packed unchanged.
    """

    def __init__(
        self, native: ctypes.CDLL, weight: Array, bias: Array | None, dtype: DType, scale: Array | None = None
    ) -> None:
        self._native = native
        # The layout depends on the vectors of the variant that was loaded.
        panel_width = int(native.panel_width())
        outputs, inputs = weight.shape
        padded_outputs = -(-outputs // panel_width) * panel_width
        words = -(-inputs // dtype.values_per_word)
        # UNIT_MULTIPLE words more than needed, so that the matrix can start at a cache line.
        self._panels = np.empty(padded_outputs * words + UNIT_MULTIPLE, np.float32)  # words of 4 bytes of any type
        start = -self._panels.ctypes.data // 4 % UNIT_MULTIPLE  # of the first whole cache line
        self._bias = np.zeros(padded_outputs, np.float32)
        self._scale = np.zeros(padded_outputs, np.float32)
        self._correction = np.zeros(padded_outputs, np.int32)
        if bias is not None:
            self._bias[:outputs] = bias
        # Never null: native code reads bias and scale of whole panels.
        row_pointers = (row.ctypes.data for row in (self._bias, self._scale, self._correction))
        self.struct = CMatrix(self._panels[start:].ctypes.data, *row_pointers, outputs, inputs, dtype)
        if scale is None:
            weight = np.ascontiguousarray(weight, np.float32)
            native.pack(pointer(weight), byref(self.struct))
        else:
            weight = np.ascontiguousarray(weight, np.int8)
            scale = np.ascontiguousarray(scale, np.float32)
            # Unchanged, so that a file gives the same sums on every machine.
            native.pack_int8(pointer(weight), pointer(scale), byref(self.struct))

    def multiply(self, x: Array, threads: int = 1) -> Array:
        """Return x W^T + b for x [..., inputs]."""
        rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]), np.float32)
        y = np.empty((len(rows), self.struct.outputs), np.float32)
        self._native.linear(byref(self.struct), pointer(rows), c_int64(len(rows)), pointer(y), c_int32(threads))
        return y.reshape(*x.shape[:-1], -1)


class OpType(IntEnum):
    """`OpType` of recurrence.h; the numbers are stored in engine files."""

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


class COp(Structure):
    """`Op` of recurrence.h."""

    _fields_ = (
        ("type", c_int64),
        ("size", c_int64),
        ("offset", c_int64 * 8),
        ("previous", c_int64),
        ("weight", c_void_p),
        ("mask", c_void_p),
        ("mask_row_stride", c_int64),
        ("mask_position_stride", c_int64),
        ("d_weight", c_void_p),
        ("source", c_int64),
    )

    def set_operands(self, type: int, size: int, offsets: Sequence[int], previous: int) -> None:
        """Set the fields that do not depend on weights or masks."""
        self.type = type
        self.size = size
        self.previous = previous
        for n, offset in enumerate(offsets):
            self.offset[n] = offset


class CFeature(Structure):
    """`Feature` of source_features.h."""

    _fields_ = tuple((name, c_int64) for name in ("units", "neighbours", "accumulates", "query_sums", "query_values"))


class CFeatures(Structure):
    """`Features` of source_features.h."""

    _fields_ = (("items", c_void_p), *((name, c_int64) for name in ("count", "width", "state_size", "prepared_size")))

    @staticmethod
    def create(descriptions: Sequence[tuple[int, ...]]) -> tuple[CFeatures, object]:
        """Return the structure for features, each described by the fields of `CFeature`.

        Returns:
            The structure, and an object that must live as long as the structure.
        """
        items = (CFeature * len(descriptions))(*(CFeature(*description) for description in descriptions))
        features = CFeatures(count=len(descriptions))
        for item in items:
            units = round_up(item.units)  # 0 for a sum of weights, otherwise of a GRU
            # The same sums as in source_features.h, which relies on them.
            features.width += units or 2 * item.neighbours + 1
            features.state_size += units or 1
            features.prepared_size += 3 * units or 1
        features.items = addressof(items)
        return features, items


class CAttention(Structure):
    """`Attention` of decoder.h."""

    _fields_ = (
        *((name, c_int64) for name in ("key_size", "annotation_size", "heads")),
        ("score_vector", c_void_p),
        ("score_scale", c_float),
        ("window_radius", c_int64),
        ("window_sigma", c_float),
        ("features", CFeatures),
    )


class CDecoder(Structure):
    """`Decoder` of decoder.h."""

    _fields_ = (
        *((name, c_int64) for name in ("x_size", "sums_size", "values_size", "reads_size", "num_attentions")),
        ("attentions", c_void_p),
        ("num_ops", c_int64),
        ("ops", c_void_p),
        ("bias", c_void_p),
        ("num_states", c_int64),
        ("states", c_void_p),
        ("state_size", c_int64),
        ("readout", c_void_p),
        ("word_table", c_void_p),
        *((name, c_void_p) for name in ("word_projection", "embeddings", "int8_embeddings", "embedding_scales")),
    )


class CSourceBatch(Structure):
    """`SourceBatch` of decoder.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("keys", "annotations", "mask", "window_centres", "prepared")),
        ("length", c_int64),
        ("num_centres", c_int64),
    )
