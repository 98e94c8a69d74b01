"""Noise words: what an objective that tells words of the text from others (`objectives/contrast.py`) draws a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor


class Noise(NamedTuple):
    """K words that all target positions of a batch share."""

    ids: Int[Tensor, "K"]
    log_q: Float[Tensor, "K"]
    """The log-probability of each under the distribution that they are drawn from."""
    of_target: Float[Tensor, "B I"]
    """That of the target symbols."""

    def rows(self, start: int, stop: int) -> Noise:
        """That of some rows of the batch."""
        return self._replace(of_target=self.of_target[start:stop])

    def each(self, change: Callable[[Tensor], Tensor]) -> Noise:
        """The same, each tensor changed."""
        return Noise(*map(change, self))


class Proposal:
    """Words drawn by their counts in the training text to a power; one that never occurs counts as if once."""

    def __init__(self, counts: NDArray[np.int64], power: float, samples: int) -> None:
        share = np.maximum(counts, 1).astype(np.float64) ** power
        self._ends = np.cumsum(share)
        self._log_q = np.log(share / self._ends[-1]).astype(np.float32)
        self._samples = samples

    def noise(self, targets: Int[Tensor, "B I"], *seed: int) -> Noise:
        """That of a batch: a function of the `seed` alone."""
        at = np.random.default_rng(seed).random(self._samples) * self._ends[-1]
        ids = np.minimum(np.searchsorted(self._ends, at, side="right"), len(self._ends) - 1)
        return Noise(*map(torch.from_numpy, (ids, self._log_q[ids], self._log_q[targets.numpy()])))
