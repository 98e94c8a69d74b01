"""Loops of many small GPU kernels, recorded once for each shape as a CUDA graph and then replayed by one launch.

A recurrence has a dozen kernels a position, each of which a GPU does sooner than Python asks for the next. A recording
asks for all of them at once. It reads and writes memory of its own, so inputs are copied into it and outputs out of it;
beside the kernels saved, that is little. In training alone: batches are then padded to few different shapes
(`data/batches.py`, `multiple`).
"""

from __future__ import annotations

import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

log = logging.getLogger(__name__)

OFF = "RNNSEARCH_GRAPHS"
"""Set to 0 to launch every kernel by itself."""
WIDTH_MULTIPLE = 8
"""Sentences on a GPU are padded up to one, so that few shapes occur."""
SEEN = 2
"""How often a shape must occur before it is recorded: recording costs more than the loop itself, and the loop must have
run before, so that what libraries set up at a first call is not part of it."""
SHARE = 8
"""All recordings together keep at most one part in so many of the GPU's memory."""
KNOWN = 4096
"""Shapes whose occurrences are counted."""

Loop = Callable[..., tuple[Tensor, ...]]
"""A pure function of tensors, which waits for the device nowhere and whose kernels depend on shapes alone."""
Replay = Callable[[], None]


Record = Callable[[Loop, Sequence[Tensor]], tuple[tuple[Tensor, ...], Replay]]
"""Runs a loop once while recording its kernels; returns its outputs, and what runs the same kernels again, which read
and write the same memory."""


class Recording(NamedTuple):
    """What a replay reads, what it writes, and itself."""

    inputs: list[Tensor]
    outputs: tuple[Tensor, ...]
    replay: Replay

    @property
    def size(self) -> int:
        """Bytes of memory kept."""
        return sum(t.numel() * t.element_size() for t in (*self.inputs, *self.outputs))


class Recorder:
    """Recordings by loop and shapes. The least recently used are forgotten beyond `budget` bytes."""

    def __init__(self, record: Record, budget: int) -> None:
        self._record, self._budget = record, budget
        self._recordings: OrderedDict[object, Recording] = OrderedDict()
        self._seen: Counter[object] = Counter()
        self._works = True
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._recordings)

    def run(self, loop: Loop, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What `loop` gives for the inputs, replayed where such shapes have occurred often enough."""
        key = (loop, *((t.shape, t.dtype, t.device) for t in inputs))
        with self._lock:
            recording = self._recordings.get(key)
            if recording is not None:
                self._recordings.move_to_end(key)
            else:
                recording = self._recorded(key, loop, inputs)
            if recording is None:
                return loop(*inputs)
            for own, given in zip(recording.inputs, inputs, strict=True):
                own.copy_(given)
            recording.replay()
            return tuple(output.clone() for output in recording.outputs)

    def _recorded(self, key: object, loop: Loop, inputs: Sequence[Tensor]) -> Recording | None:
        if not self._works or self._seen[key] < SEEN:
            if len(self._seen) >= KNOWN:
                self._seen.clear()
            self._seen[key] += 1
            return None
        try:
            own = [torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t) for t in inputs]
            recording = Recording(own, *self._record(loop, own))
        except torch.OutOfMemoryError:
            self._recordings.clear()
            return None
        except RuntimeError as error:
            self._works = False
            self._recordings.clear()
            log.warning("no CUDA graphs could be recorded, so kernels are launched one by one: %s", error)
            return None
        self._recordings[key] = recording
        while len(self._recordings) > 1 and sum(r.size for r in self._recordings.values()) > self._budget:
            self._recordings.popitem(last=False)
        return recording


def cuda_graph(pool: Any, loop: Loop, inputs: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Replay]:
    """Record a loop as a CUDA graph. Other threads may use the GPU meanwhile: batches are copied by one.

    Recordings that share a memory `pool` may write over what others made, so no two may run at once, and outputs must
    be copied before the next runs.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        outputs = loop(*inputs)
    return outputs, graph.replay


_RECORDERS: dict[torch.device, Recorder] = {}


def replayed(loop: Loop, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`loop(*inputs)`: on a GPU as a recording, elsewhere as it is."""
    device = inputs[0].device
    if device.type != "cuda" or os.environ.get(OFF) == "0":
        return loop(*inputs)
    if device not in _RECORDERS:
        total = torch.cuda.get_device_properties(device).total_memory
        record = partial(cuda_graph, torch.cuda.graph_pool_handle())
        _RECORDERS[device] = Recorder(record, total // SHARE)
    return _RECORDERS[device].run(loop, inputs)
