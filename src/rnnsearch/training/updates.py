"""One update of the parameters: gradients, clipping and the optimiser's step, recorded as a CUDA graph if possible.

`training/loop.py` calls `Updater.run` once per update and reads the results later, so that the loop does not wait for a
GPU.

Tests: tests/training/test_loop.py, tests/training/test_recorded_updates.py, tests/training/test_cuda.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from rnnsearch.accel.cuda_graphs import CudaGraphs, graphs_are_enabled, pause_recording
from rnnsearch.config import TrainingConfig
from rnnsearch.data.batches import Batch
from rnnsearch.data.mixed_batches import TrainingBatches
from rnnsearch.objectives.loss import Model
from rnnsearch.training.gradients import NLL, Gradients
from rnnsearch.training.optimisers import AdaptiveClipping
from rnnsearch.training.progress import Reporter
from rnnsearch.training.recorded_updates import (
    Step,
    UpdateRecorder,
    reads_rates_from_device,
    unsupported_reason,
    update_results,
)
from rnnsearch.training.tasks import Task
from rnnsearch.utils.distributed import Processes
from rnnsearch.utils.tensors import HostCopy


class UpdateValues(NamedTuple):
    """Values of an update for the training loop."""

    nll: float
    norm: float
    """Gradient norm before clipping."""
    accepted: bool
    """False if the update was rejected."""
    reported: dict[str, float]
    """Other values for the log (`Objective.report`)."""


class UpdateResults(HostCopy):
    """A copy of what `update_results` returned, and the names of its reported values."""

    def __init__(self, tensor: Tensor, names: Sequence[str] = ()) -> None:
        super().__init__(tensor)
        self._names = names

    def read(self) -> UpdateValues:
        """Return the values when they have been computed."""
        nll, norm, accepted, *reported = self.wait().tolist()
        return UpdateValues(nll, norm, bool(accepted), dict(zip(self._names, reported, strict=True)))


class Updater(Generic[Model]):
    """Makes the updates of a run."""

    def __init__(
        self,
        training: TrainingConfig,
        task: Task[Model],
        batches: TrainingBatches,
        device: torch.device,
        folder: Path,
        reporter: Reporter,
        processes: Processes,
    ) -> None:
        """Initialise without an update; see `Trainer` for the arguments."""
        self.clipping = AdaptiveClipping(training.clip_deviations, device)
        self.gradients = Gradients(training, task, batches, device, folder, reporter, processes, self._release_memory)
        self._training = training
        self._task = task
        self._device = device
        self._processes = processes
        self._recorder: UpdateRecorder | None = None
        self._knows_recorder = False  # True after the first batch has shown whether updates can be recorded

    def run(self, group: list[Batch], update: int) -> UpdateResults:
        """Make an update, as a CUDA graph if its shape has occurred before, and return its results.

        Args:
            group: Batches of the update.
            update: Number of the update.
        """
        if not self._knows_recorder:
            self._knows_recorder = True
            self._recorder = self._make_recorder(group[0])
        # If updates cannot be recorded, their passes may be.
        if self._recorder is None or not self._recorder.works:
            return self._run_unrecorded(group, update)
        results = self._recorder.run(group[0], self.gradients.seed(update), self.gradients.normaliser(group))
        if results is not None:
            return UpdateResults(results)
        with pause_recording():
            return self._run_unrecorded(group, update)

    def _run_unrecorded(self, group: list[Batch], update: int) -> UpdateResults:
        sums = self.gradients.accumulate(group, update)  # forward and backward; splits on out-of-memory
        norm = self.gradients.clip()  # after all-reduce and L2
        accepted = self.clipping.accepts(norm)
        nll = sums.pop(NLL)
        reported = self._task.objective.report(sums)
        results = update_results(nll, norm, accepted, *reported.values())
        if self._device.type == "cpu":
            # Before the step, so that the weights stay finite.
            self.gradients.check_finite(group, update, *results[:2].tolist())
        self._task.update(sums, accepted)
        return UpdateResults(results, tuple(reported))

    def _make_recorder(self, batch: Batch) -> UpdateRecorder | None:
        """Return a recorder if updates on this device can be recorded, given any batch of the run."""
        has_one_batch = self._processes.world_size == self._training.batch.accumulate == 1
        if not has_one_batch or self._training.keep_zeros or not graphs_are_enabled(self._device):
            return None
        # Without fused steps, a rate that changes would become part of every recording, and the host skips steps.
        optimiser = self._task.optimiser
        is_constant = self._training.schedule.type == "constant" and self._training.clip_deviations is None
        if not is_constant and not reads_rates_from_device(optimiser):
            return None
        if unsupported_reason(self._task.model, self._task.objective, batch) is not None:
            return None
        step = Step(self._task.loss, self._finish, optimiser, self._device, self._training.precision)
        return UpdateRecorder(step, CudaGraphs(self._device))

    def _finish(self) -> tuple[Tensor, Tensor | None]:
        """Clip the gradients and update the parameters, for `UpdateRecorder`."""
        norm = self.gradients.clip()
        accepted = self.clipping.accepts(norm)
        self._task.update({}, accepted)
        return norm, accepted

    def _release_memory(self) -> None:
        if self._recorder is not None:
            self._recorder.clear()
        self._task.release_memory()
