"""Loops of many small GPU kernels, recorded once for each shape as a CUDA graph and then replayed by one launch.

A recurrence has a dozen kernels a position, each of which a GPU does sooner than Python asks for the next. A recording
asks for all of them at once. It reads and writes memory of its own, so inputs are copied into it and outputs out of it;
beside the launches saved, that is little. All recordings of a device share that memory, as one runs at a time.

In training alone: batches are then padded to few different shapes (`data/batches.py`, `multiple`).
"""

from __future__ import annotations

import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

log = logging.getLogger(__name__)

OFF = "RNNSEARCH_GRAPHS"
"""Set to 0 to launch every kernel by itself."""
WIDTH_MULTIPLE = 8
"""Sentences on a GPU are padded up to one, so that few shapes occur."""
OCCURRENCES = 3
"""How often a shape must have occurred before it is recorded: recording costs more than the loop itself."""
MOST_RECORDINGS = 256
MOST_COUNTED = 4096
"""Shapes that have occurred, but not often enough yet."""
ALIGNMENT = 512
"""Bytes."""

Loop = Callable[..., tuple[Tensor, ...]]
"""A pure function of tensors, which waits for the device nowhere and whose kernels depend on shapes alone."""
Work = Callable[[], None]
Record = Callable[[Work], Work]
"""Does some work while recording its kernels; returns what runs the same kernels again, which read and write the same
memory."""


class Recording(NamedTuple):
    """What a replay reads, what it writes, and itself."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    replay: Work


class Workspace:
    """One piece of a device's memory, as large as the largest recording's inputs and outputs together."""

    def __init__(self) -> None:
        self._bytes: Tensor | None = None

    def like(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the same shapes beside one another. What is asked for next lies in the same place."""
        sizes = [-(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT for t in tensors]
        if self._bytes is None or len(self._bytes) < sum(sizes):
            # Earlier recordings keep the piece that they were made with.
            self._bytes = torch.empty(sum(sizes), dtype=torch.uint8, device=tensors[0].device)
        found, begin = [], 0
        for tensor, size in zip(tensors, sizes, strict=True):
            part = self._bytes[begin : begin + tensor.numel() * tensor.element_size()]
            found.append(part.view(tensor.dtype).view(tensor.shape))
            begin += size
        return found


class LoopRecorder:
    """Recordings by loop and shapes of one device; the least recently used are forgotten."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._workspace = Workspace()
        self._recordings: OrderedDict[object, Recording] = OrderedDict()
        self._occurred: Counter[object] = Counter()
        self._works = True
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._recordings)

    def run(self, loop: Loop, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What `loop` gives for the inputs, replayed where such shapes have occurred often enough."""
        key = (loop, *((t.shape, t.dtype) for t in inputs))
        with self._lock:
            recording = self._recordings.get(key)
            if recording is None and self._due(key):
                recording = self._recorded(key, loop, inputs)
            if recording is None:
                return loop(*inputs)
            self._recordings.move_to_end(key)
            for own, given in zip(recording.inputs, inputs, strict=True):
                own.copy_(given)
            recording.replay()
            return tuple(output.clone() for output in recording.outputs)

    def _due(self, key: object) -> bool:
        if not self._works:
            return False
        if len(self._occurred) >= MOST_COUNTED:
            self._occurred.clear()
        self._occurred[key] += 1
        return self._occurred[key] > OCCURRENCES

    def _recorded(self, key: object, loop: Loop, inputs: Sequence[Tensor]) -> Recording | None:
        del self._occurred[key]  # whatever comes of it: it is not tried at every turn
        try:
            shapes = loop(*inputs)
            own = self._workspace.like([*inputs, *shapes])
            given, made = own[: len(inputs)], own[len(inputs) :]
            del shapes
            for mine, one in zip(given, inputs, strict=True):
                mine.copy_(one)

            def work() -> None:
                for mine, one in zip(made, loop(*given), strict=True):
                    mine.copy_(one)

            recording = Recording(given, made, self._record(work))
        except torch.OutOfMemoryError:
            return None
        except RuntimeError as error:
            self._works = False
            self._recordings.clear()
            log.warning("no CUDA graphs could be recorded, so kernels are launched one by one: %s", error)
            return None
        self._recordings[key] = recording
        if len(self._recordings) > MOST_RECORDINGS:
            self._recordings.popitem(last=False)
        return recording


class CudaGraphs:
    """Records work of one device as CUDA graphs.

    They share a pool of memory for what lies between inputs and outputs: one may write over what another made, which
    nobody reads any more. Other threads may use the device meanwhile, as the one that copies batches does.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            # Not `torch.cuda.graph`, which stays on its stream where the recording fails.
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
        return graph.replay


_RECORDERS: dict[torch.device, LoopRecorder] = {}


def replayed(loop: Loop, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`loop(*inputs)`: on a GPU as a recording, elsewhere as it is."""
    device = inputs[0].device
    if device.type != "cuda" or os.environ.get(OFF) == "0":
        return loop(*inputs)
    if device not in _RECORDERS:
        _RECORDERS[device] = LoopRecorder(CudaGraphs(device))
    return _RECORDERS[device].run(loop, inputs)
