"""Weights laid out once for native products, and what every call of native code needs."""

from __future__ import annotations

import ctypes
from ctypes import Structure, byref, c_int32, c_int64, c_void_p
from enum import IntEnum

import torch
from torch import Tensor

from rnnsearch.kernels.native.library import library

UNIT = 16
"""Sizes are rounded up to multiples of this: no vector is longer."""


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


def decoding() -> ctypes.CDLL | None:
    """The native code of decoding; None where it cannot be had."""
    return library()


def multiplies_bf16() -> bool:
    """Whether there is native code here and the processor multiplies bf16 numbers."""
    native = decoding()
    return native is not None and bool(native.has_bf16())


def at(x: Tensor) -> c_void_p:
    """The address of a contiguous tensor's numbers."""
    return c_void_p(x.data_ptr())


def threads() -> c_int32:
    """As many threads as torch uses."""
    return c_int32(torch.get_num_threads())


class Matrix(Structure):
    """`Matrix` of products.h."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("scale", c_void_p),
        ("excess", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("kind", c_int32),
    )


class Packed:
    """A weight [outputs, inputs] and its bias, laid out for native products of one kind."""

    def __init__(self, native: ctypes.CDLL, weight: Tensor, bias: Tensor | None, kind: Kind) -> None:
        panel = int(native.panel_width())
        outputs, inputs = weight.shape
        rounded = -(-outputs // panel) * panel
        depth = -(-inputs // kind.each)
        self._native = native
        self._panels = torch.empty(rounded * depth + UNIT)  # 4 bytes each, whatever they hold
        begin = -self._panels.data_ptr() // 4 % UNIT  # whole cache lines
        self._rows = (torch.zeros(rounded), torch.zeros(rounded), torch.zeros(rounded, dtype=torch.int32))
        """Bias, scale and excess of each row."""
        if bias is not None:
            self._rows[0][:outputs] = bias
        of_rows = (part.data_ptr() for part in self._rows)
        self.matrix = Matrix(self._panels[begin:].data_ptr(), *of_rows, outputs, inputs, kind)
        weight = weight.float().contiguous()
        native.pack(c_void_p(weight.data_ptr()), byref(self.matrix))

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b of rows of any number of axes."""
        rows = x.reshape(-1, self.matrix.inputs).float().contiguous()
        y = rows.new_empty(rows.shape[0], self.matrix.outputs)
        self._native.linear(byref(self.matrix), at(rows), c_int64(rows.shape[0]), at(y), threads())
        return y.view(*x.shape[:-1], -1)
