"""Batches of a multi-way model: those of several directions, mixed, and those of further tasks.

Each batch belongs to one direction. With a temperature of 1, an epoch has each pair of each direction once; higher
temperatures use small corpora more often and large ones less often. Batches of tasks (`tasks.py`) are added by their
mixing ratios; they change neither the batches of translation nor the order of these.

`training/run.py` creates `MixedBatches`. Its batches depend only on the corpus, the seed and the epoch number, and with
one direction they are those of `Batches`: tests/data/test_mixed_batches.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.data.batch import Direction
from rnnsearch.data.batches import Batch, Batches

REPETITION_STRIDE = 1 << 32
"""Distance of the epoch numbers of a direction's first and second pass over its pairs in one epoch."""

Indices = npt.NDArray[np.int64]


class TaskBatches(NamedTuple):
    """Batches of a task."""

    batches: Batches
    """Batches over the sentences of the task."""
    ratio: float
    """Number of batches per batch of translation, above 0."""


class MixedBatches:
    """The batches of several directions and tasks, with the interface of `Batches`.

    The number of batches of a direction is proportional to the number that it has in one pass over its pairs to the
    power of 1/T; the sum is that of all directions' passes. A task has its ratio times this sum.
    """

    def __init__(
        self,
        directions: Mapping[Direction, Batches],
        seed: int,
        temperature: float = 1.0,
        tasks: Mapping[Direction, TaskBatches] | None = None,
    ) -> None:
        """Initialise the mixture.

        Args:
            directions: Batches of each direction, of the same process.
            seed: Seed of the run.
            temperature: T, at least 1.
            tasks: Batches of each task, of the same process.
        """
        self.directions = dict(directions)
        self._tasks = dict(tasks or {})
        self.parts = {**self.directions, **{task: part.batches for task, part in self._tasks.items()}}
        """Batches of each direction and each task."""
        self.left_out = sum(batches.left_out for batches in self.parts.values())
        """Number of rows that are too long, summed over the directions and tasks."""
        self._seed = seed
        self._temperature = temperature

    def count(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        quotas = self._quotas(epoch)
        return int(quotas.sum() + self._task_quotas(epoch, int(quotas.sum())).sum())

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """Yield this process's shards of the batches of an epoch, without the first `skip`."""
        order = self._order(number)
        skipped = np.bincount(order[:skip], minlength=len(self.parts)).tolist()
        streams = []
        for batches, start in zip(self.parts.values(), skipped, strict=True):
            streams.append(self._repeat(batches, number, start))
        for index in order[skip:].tolist():
            yield next(streams[index])

    def _order(self, number: int) -> Indices:
        """Return the index in `parts` of each batch of an epoch."""
        quotas = self._quotas(number)
        order = np.repeat(np.arange(len(quotas)), quotas)
        seed = [self._seed, number, len(quotas)]
        np.random.default_rng(seed).shuffle(order)
        task_quotas = self._task_quotas(number, len(order))
        tasks = np.repeat(len(quotas) + np.arange(len(task_quotas)), task_quotas)
        # Separate random numbers, so that tasks do not change the order of the other batches.
        rng = np.random.default_rng([*seed, len(task_quotas)])
        rng.shuffle(tasks)
        is_task = np.arange(len(order) + len(tasks)) < len(tasks)
        rng.shuffle(is_task)
        mixed = np.empty(len(is_task), dtype=np.int64)
        mixed[is_task] = tasks
        mixed[~is_task] = order
        return mixed

    def whole_batch(self, indices: Sequence[int], direction: Direction | None = None) -> Batch:
        """Return the batch of some pairs of the corpus in a direction, with the rows of all processes."""
        assert direction is not None
        return self.parts[direction].whole_batch(indices, direction)

    @property
    def padding_waste(self) -> float:
        """Fraction of padding among all positions, the mean of all directions' and tasks' last epochs."""
        return sum(batches.padding_waste for batches in self.parts.values()) / len(self.parts)

    def _quotas(self, epoch: int) -> Indices:
        """Return the number of batches of each direction in an epoch, at least one."""
        counts = np.array([batches.count(epoch) for batches in self.directions.values()])
        if self._temperature == 1.0:
            return counts
        weights = (counts / counts.max()) ** (1.0 / self._temperature)
        quotas: Indices = np.rint(counts.sum() * weights / weights.sum()).astype(np.int64)
        return np.maximum(quotas, 1)

    def _task_quotas(self, epoch: int, num_batches: int) -> Indices:
        """Return the number of batches of each task in an epoch with so many batches of translation."""
        ratios = np.array([part.ratio for part in self._tasks.values()])
        # The rounded differences of running sums: small ratios have a batch in some epochs only.
        ends = np.floor(ratios * num_batches * (epoch + 1) + 0.5)
        quotas: Indices = (ends - np.floor(ratios * num_batches * epoch + 0.5)).astype(np.int64)
        return quotas

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
