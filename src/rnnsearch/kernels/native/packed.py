"""Weights laid out once for native products, and what every call of native code needs."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from rnnsearch.engine.packed import Kind, Laid


def at(x: Tensor) -> c_void_p:
    """The address of a contiguous tensor's numbers."""
    return c_void_p(x.data_ptr())


def threads() -> c_int32:
    """As many threads as torch uses."""
    return c_int32(torch.get_num_threads())


class Packed(Laid):
    """A weight [outputs, inputs] and its bias, laid out for native products of one kind."""

    def __init__(self, native: ctypes.CDLL, weight: Tensor, bias: Tensor | None, kind: Kind) -> None:
        rows = None if bias is None else bias.detach().float().numpy()
        super().__init__(native, weight.detach().float().contiguous().numpy(), rows, kind)

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b of rows of any number of axes."""
        rows = x.reshape(-1, self.matrix.inputs).float().contiguous()
        y = rows.new_empty(rows.shape[0], self.matrix.outputs)
        self._native.linear(byref(self.matrix), at(rows), c_int64(rows.shape[0]), at(y), threads())
        return y.view(*x.shape[:-1], -1)
