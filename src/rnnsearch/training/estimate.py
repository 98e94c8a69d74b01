"""What a run will take on this machine, tried out before it begins."""

from __future__ import annotations

import sys
import time
from itertools import islice
from typing import Any

import torch

from rnnsearch.data.batches import Batch
from rnnsearch.device import precision
from rnnsearch.models.draws import Draws
from rnnsearch.objectives.recorded import OCCURRENCES
from rnnsearch.training.loop import Trainer
from rnnsearch.training.progress import minutes

TRIED = 4
"""Batches tried out; the first is slower than all others, and does not count."""
MOMENTS = 8
"""Bytes a parameter that an optimiser adds (Adam's two moments) once it has made an update."""


def estimate(trainer: Trainer[Any]) -> str | None:
    """Time and memory in words, by passes over the first epoch's first batches, on a GPU as often as it takes until
    they are replayed. Their gradients are thrown away: nothing that is trained or drawn changes. None where a batch
    does not fit into memory and is to be halved."""
    taken: list[float] = []
    times = OCCURRENCES + 2 if trainer.device.type == "cuda" else 1
    try:
        for batch in islice(trainer.batches.epoch(0), TRIED):
            taken.append([_seconds(trainer, batch) for _ in range(times)][-1])
    except torch.OutOfMemoryError:
        return None
    finally:
        memory = _memory(trainer)
        for parameter in trainer.gradients.parameters:
            parameter.grad = None
    counted = taken[1:] or taken
    batch_seconds, training = sum(counted) / len(counted), trainer.training
    epoch = batch_seconds * trainer.batches.count(0)
    limits = [] if training.max_epochs is None else [training.max_epochs * epoch]
    if training.max_updates is not None:
        limits.append(training.max_updates * training.batch.accumulate * batch_seconds)
    if training.max_minutes is not None:
        limits.append(60 * training.max_minutes)
    most = f", at most {minutes(min(limits))} in all" if limits else ""
    room = "" if memory is None else f"; {memory / 2**30:.1f} GiB of memory"
    return f"about {minutes(epoch)} an epoch here{most}{room}"


def _seconds(trainer: Trainer[Any], batch: Batch) -> float:
    """Of one pass and its way back."""
    begin = time.monotonic()
    own = batch.to(trainer.device)
    with precision(trainer.device, trainer.training.precision):
        loss = trainer.task.objective(trainer.model, own, Draws(trainer.training.seed, trainer.device))
    loss.total.backward()  # type: ignore[no-untyped-call]
    float(loss.nll)  # which waits for the device
    return time.monotonic() - begin


def _memory(trainer: Trainer[Any]) -> int | None:
    """Bytes that this process has needed at most so far, preparing included, and what an optimiser will add; None where
    the system does not say."""
    moments = MOMENTS * (sum(p.numel() for p in trainer.gradients.parameters) - trainer.task.tables.in_files)
    if trainer.device.type == "cuda":
        return torch.cuda.max_memory_allocated(trainer.device) + moments
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) + moments
