"""What a whole beam search in native code finds. Imports no torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rnnsearch.engine.rnnsearch import CHypotheses
from rnnsearch.engine.structs import Array


class NBest(NamedTuple):
    """The n best of a batch of B sentences over J source symbols, before they are cut to their lengths: tokens, scores
    [B, n, T], attention [B, n, T, J] (J = 0 without), length (0: there is none), finished [B, n]."""

    tokens: Array
    scores: Array
    attention: Array
    length: Array
    finished: Array

    @classmethod
    def room(cls, B: int, n: int, T: int, J: int) -> NBest:
        """Room for them."""
        symbols, sentences = (B, n, T), (B, n)
        return cls(
            np.zeros(symbols, np.int64),
            np.zeros(symbols, np.float32),
            np.zeros((*symbols, J), np.float32),
            np.zeros(sentences, np.int64),
            np.zeros(sentences, np.int64),
        )

    @property
    def made(self) -> CHypotheses:
        """Where native code writes them."""
        tokens, scores, attention, length, finished = (part.ctypes.data for part in self)
        return CHypotheses(self.tokens.shape[2], tokens, scores, attention, length, finished)
