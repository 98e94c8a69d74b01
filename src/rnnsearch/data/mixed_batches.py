"""Batches of a multi-way model: those of several directions, mixed.

Each batch belongs to one direction. With a temperature of 1, an epoch has each pair of each direction once; higher
temperatures use small corpora more often and large ones less often.

`training/run.py` creates `MixedBatches`. Its batches depend only on the corpus, the seed and the epoch number, and with
one direction they are those of `Batches`: tests/data/test_mixed_batches.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rnnsearch.data.batch import Direction
from rnnsearch.data.batches import Batch, Batches

REPETITION_STRIDE = 1 << 32
"""Distance of the epoch numbers of a direction's first and second pass over its pairs in one epoch."""


class MixedBatches:
    """The batches of several directions, with the interface of `Batches`.

    The number of batches of a direction is proportional to the number that it has in one pass over its pairs to the
    power of 1/T; the sum is that of all directions' passes.
    """

    def __init__(self, parts: Mapping[Direction, Batches], seed: int, temperature: float = 1.0) -> None:
        """Initialise the mixture.

        Args:
            parts: Batches of each direction, of the same process.
            seed: Seed of the run.
            temperature: T, at least 1.
        """
        self.parts = dict(parts)
        self.left_out = sum(batches.left_out for batches in self.parts.values())
        """Number of rows that are too long, summed over the directions."""
        self._seed = seed
        self._temperature = temperature

    def count(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return int(self._quotas(epoch).sum())

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """Yield this process's shards of the batches of an epoch, without the first `skip`."""
        quotas = self._quotas(number)
        # The index of the direction of each batch.
        order = np.repeat(np.arange(len(quotas)), quotas)
        np.random.default_rng([self._seed, number, len(quotas)]).shuffle(order)
        skipped = np.bincount(order[:skip], minlength=len(quotas)).tolist()
        streams = []
        for batches, start in zip(self.parts.values(), skipped, strict=True):
            streams.append(self._repeat(batches, number, start))
        for index in order[skip:].tolist():
            yield next(streams[index])

    def whole_batch(self, indices: Sequence[int], direction: Direction | None = None) -> Batch:
        """Return the batch of some pairs of the corpus in a direction, with the rows of all processes."""
        assert direction is not None
        return self.parts[direction].whole_batch(indices, direction)

    @property
    def padding_waste(self) -> float:
        """Fraction of padding among all positions, the mean of all directions' last epochs."""
        return sum(batches.padding_waste for batches in self.parts.values()) / len(self.parts)

    def _quotas(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the number of batches of each direction in an epoch, at least one."""
        counts = np.array([batches.count(epoch) for batches in self.parts.values()])
        if self._temperature == 1.0:
            return counts
        weights = (counts / counts.max()) ** (1.0 / self._temperature)
        quotas: npt.NDArray[np.int64] = np.rint(counts.sum() * weights / weights.sum()).astype(np.int64)
        return np.maximum(quotas, 1)

    @staticmethod
    def _repeat(batches: Batches, epoch: int, skip: int) -> Iterator[Batch]:
        """Yield a direction's batches of an epoch without the first `skip`, and then those of further passes."""
        # The first pass has the number of the epoch, so that one direction has the batches of a bilingual run.
        number = epoch
        while skip >= (count := batches.count(number)):
            skip -= count
            number += REPETITION_STRIDE
        while True:
            yield from batches.epoch(number, skip)
            number += REPETITION_STRIDE
            skip = 0


TrainingBatches = Batches | MixedBatches
"""The training batches of a run."""
