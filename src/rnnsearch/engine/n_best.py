"""Results of a native beam search over a batch, shared by the engine and by search with PyTorch.

This module must not import torch.

The order of the fields is that of `Hypotheses` in `ops/native/beam_search.h`, which native code fills: do not reorder
them. Tests: tests/properties/test_native_search.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rnnsearch.engine.rnnsearch import CHypotheses
from rnnsearch.engine.structs import Array


class NBestArrays(NamedTuple):
    """The n best hypotheses of B sentences with J source positions, padded to T tokens."""

    tokens: Array  # [B, n, T]
    scores: Array  # [B, n, T], log-probabilities of the tokens
    attention: Array  # [B, n, T, J]; J is 0 without attention
    length: Array  # [B, n]; 0: there are fewer hypotheses
    finished: Array  # [B, n], 1 if the hypothesis ended with EOS

    @classmethod
    def allocate(cls, B: int, n: int, T: int, J: int) -> NBestArrays:
        """Return contiguous arrays of zeros, which native code fills."""
        return cls(
            tokens=np.zeros((B, n, T), np.int64),
            scores=np.zeros((B, n, T), np.float32),
            attention=np.zeros((B, n, T, J), np.float32),
            length=np.zeros((B, n), np.int64),
            finished=np.zeros((B, n), np.int64),
        )

    @property
    def struct(self) -> CHypotheses:
        """The structure that native code writes to, for the arrays of `allocate`, which are contiguous.

        It contains only addresses: the caller must keep this tuple while native code runs.
        """
        return CHypotheses(self.tokens.shape[2], *(array.ctypes.data for array in self))
