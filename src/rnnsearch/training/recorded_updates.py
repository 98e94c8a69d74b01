"""Recording of whole updates as CUDA graphs: forward and backward pass, clipping and the optimiser's step.

A GPU finishes the kernels of a recurrent model faster than Python launches them. A replayed update is a single launch:
Python copies the token ids, the learning rate and the scale of the loss to fixed memory, and the results back.

`UpdateRecorder` records updates whose kernels depend only on the shape of the batch (`unsupported_reason`). Others run
as usual, with recorded passes (`accel/cuda_graphs.py`).

Before changing it: a recorded update must not wait for the device, and everything that decides which kernels run must
be part of the key. Tests: tests/training/test_recorded_updates.py on the CPU, tests/training/test_cuda.py on a GPU.

Axes: B sentences, I target positions, M target tokens.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, optim

from rnnsearch.accel.cuda_graphs import MAX_COUNTED_SHAPES, MAX_RECORDINGS, Record, pause_recording
from rnnsearch.data.batch import Stream
from rnnsearch.data.batches import Batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.ops.device import precision
from rnnsearch.text.vocabulary import PAD

log = logging.getLogger(__name__)

MIN_OCCURRENCES = 1
"""Ordinary updates of a shape before it is recorded; they load libraries and allocate the optimiser's state."""
TOKEN_FRACTIONS = 8
"""The maximum number of target tokens of a recording is that of its batch, rounded up to a fraction of the batch's
positions. If a later batch of the shape has more, another recording for all positions replaces it."""


@dataclass
class Step:
    """An update as a function of a batch, for `UpdateRecorder`."""

    loss: Callable[[Batch, BatchRng], Any]
    """Returns the loss of a batch."""
    finish: Callable[[], tuple[Tensor, Tensor | None]]
    """Clips the gradients and updates the parameters; returns the gradient norm and whether the update was made."""
    optimiser: optim.Optimizer
    device: torch.device
    precision: str


class UpdateRecorder:
    """The recorded updates of a run by shape; the least recently used ones are dropped."""

    def __init__(self, step: Step, record: Record) -> None:
        self._step = step
        self._record = record
        self._recordings: OrderedDict[object, _RecordedUpdate] = OrderedDict()
        self._occurrences: dict[object, int] = {}
        self.works = True
        """False after a recording has failed; `run` must not be called any more."""
        self._parameters = [p for group in step.optimiser.param_groups for p in group["params"] if p.requires_grad]
        _keep_on_device(step.optimiser, step.device)

    def __len__(self) -> int:
        return len(self._recordings)

    def run(self, batch: Batch, seed: int, normaliser: int) -> Tensor | None:
        """Make an update if its shape has occurred before.

        Args:
            batch: The only batch of the update.
            seed: Seed of its random numbers.
            normaliser: Divisor of the loss.

        Returns:
            The `update_results`, valid until the next call; None if the caller must make the update.
        """
        key = self._key(batch)
        recording = self._recordings.get(key)
        if recording is None:
            if self._occurrences.get(key, 0) < MIN_OCCURRENCES:
                self._count(key)
                return None
            recording = self._make_recording(key, batch, _rounded_tokens(batch.target))
        elif batch.target.num_tokens > recording.tokens:
            recording = self._make_recording(key, batch, batch.target.ids.numel())
        if recording is None:
            return None
        self._recordings.move_to_end(key)
        return recording.run(batch, seed, normaliser)

    def clear(self) -> None:
        """Free the memory of all recordings."""
        self._recordings.clear()
        self._occurrences.clear()

    def _key(self, batch: Batch) -> object:
        shapes = tuple((name, stream.ids.shape) for name, stream in batch.streams.items())
        # Rates that are not on the device become part of a recording.
        rates = tuple(group["lr"] for group in self._step.optimiser.param_groups if isinstance(group["lr"], float))
        # Graphs contain addresses.
        addresses = tuple(parameter.data_ptr() for parameter in self._parameters)
        return shapes, batch.direction, rates, addresses

    def _count(self, key: object) -> None:
        if len(self._occurrences) >= MAX_COUNTED_SHAPES:
            self._occurrences.clear()
        self._occurrences[key] = self._occurrences.get(key, 0) + 1

    def _make_recording(self, key: object, batch: Batch, tokens: int) -> _RecordedUpdate | None:
        self._recordings.pop(key, None)
        try:
            recording = _RecordedUpdate(self._step, self._parameters, batch, tokens, self._record)
        except torch.OutOfMemoryError:
            # It is not tried again until the shape has occurred again.
            self._occurrences[key] = 0
            return None
        except RuntimeError as error:
            self.works = False
            self.clear()
            log.warning("no updates could be recorded as CUDA graphs: %s", error)
            return None
        self._recordings[key] = recording
        if len(self._recordings) > MAX_RECORDINGS:
            self._recordings.popitem(last=False)
        return recording


class _RecordedUpdate:
    """A recorded update of one shape, which reads the memory of a batch of its own."""

    def __init__(self, step: Step, parameters: list[Any], batch: Batch, tokens: int, record: Record) -> None:
        """Record the update of a batch.

        Args:
            step: The update.
            parameters: Parameters that are trained.
            batch: A batch of the shape.
            tokens: Maximum number of target tokens of its batches.
            record: Records work.
        """
        device = step.device
        self.tokens = tokens
        self._ids = {name: stream.ids.clone() for name, stream in batch.streams.items()}
        self._scale = torch.zeros((), device=device)
        self._results = torch.zeros(3, dtype=torch.float64, device=device)
        self._rng = BatchRng(0, device)

        def update() -> None:
            streams = {name: Stream.without_positions(ids, ids != PAD) for name, ids in self._ids.items()}
            target = streams[batch.direction.target]
            streams[batch.direction.target] = replace(target, token_positions=_token_positions(target.mask, tokens))
            with precision(device, step.precision):
                loss = step.loss(replace(batch, streams=streams, shard=None), self._rng)
            gradients = torch.autograd.grad(loss.total * self._scale, parameters, allow_unused=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            norm, accepted = step.finish()
            self._results.copy_(update_results(loss.nll, norm, accepted))
            for parameter in parameters:
                parameter.grad = None  # its memory is the next recording's

        with pause_recording():
            self._replay = record(update, self._rng.generator)

    def run(self, batch: Batch, seed: int, normaliser: int) -> Tensor:
        """Make the update of a batch of the recorded shape."""
        for name, ids in self._ids.items():
            ids.copy_(batch.streams[name].ids)
        self._scale.fill_(1.0 / normaliser)
        self._rng.generator.manual_seed(seed)
        self._replay()
        return self._results


def unsupported_reason(model: object, objective: object, batch: Batch) -> str | None:
    """Return why the updates of a run cannot be recorded, or None if they can.

    Args:
        model: The trained model.
        objective: Its objective.
        batch: Any batch of the run.
    """
    if not isinstance(model, TranslationModel) or type(objective) is not Likelihood:
        return "only updates of translation models by maximum likelihood are recorded"
    if objective.penalties or objective.teacher is not None or objective.contrast is not None:
        return "the loss has penalties, a teacher or noise words"
    if type(model.output) is not Output or model.speller is not None:
        return "the number of scores depends on the words of a batch"
    if batch.links is not None or batch.copies is not None or batch.vocabulary is not None or batch.noise is not None:
        return "batches have more than token ids"
    if any(stream.characters is not None for stream in batch.streams.values()):
        return "batches have characters"
    return None


def update_results(nll: Tensor, norm: Tensor, accepted: Tensor | None, *reported: Tensor) -> Tensor:
    """Return NLL, gradient norm, 1 if the update was not rejected, and other scalars, on the device."""
    is_accepted = torch.ones_like(norm) if accepted is None else accepted
    return torch.stack([value.detach().double() for value in (nll, norm, is_accepted, *reported)])


def _rounded_tokens(target: Stream) -> int:
    """Return the number of target tokens M, rounded up to a fraction of the positions of the batch."""
    positions = target.ids.numel()
    unit = max(1, -(-positions // TOKEN_FRACTIONS))
    return min(positions, -(-target.num_tokens // unit) * unit)


def _token_positions(mask: Tensor, tokens: int) -> Tensor:
    """Return the indices of real tokens in the flattened mask [B, I], ascending, and then those of padding.

    Args:
        mask: True on real tokens.
        tokens: Number of indices, at least that of the real tokens.
    """
    is_real = mask.flatten()
    # A stable partition by two sums, which take less time than a sort.
    real_rank = is_real.cumsum(0)
    padding_rank = (~is_real).cumsum(0) + real_rank[-1]
    rank = torch.where(is_real, real_rank, padding_rank) - 1
    return torch.empty_like(rank).scatter_(0, rank, torch.arange(len(rank), device=rank.device))[:tokens]


def reads_rates_from_device(optimiser: optim.Optimizer) -> bool:
    """Return True if an optimiser has fused steps, which can read the learning rate from the device."""
    return all("fused" in group for group in optimiser.param_groups)


def _keep_on_device(optimiser: optim.Optimizer, device: torch.device) -> None:
    """Move what a recorded step reads to the device: step counts and, for fused steps, learning rates."""
    for group in optimiser.param_groups:
        if "capturable" in group:
            group["capturable"] = device.type == "cuda"
        if reads_rates_from_device(optimiser):
            group["fused"] = True
            group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=device)
    for state in optimiser.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor):
                state[name] = value.to(device)
