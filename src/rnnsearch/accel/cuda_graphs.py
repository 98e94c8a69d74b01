"""Recording of a model's forward and backward pass as CUDA graphs, one pair of graphs per shape of the batch.

A pass of a recurrent model launches thousands of small kernels, each of which a GPU finishes before Python launches the
next. A replayed graph launches all of them at once. It reads and writes fixed memory, so that inputs are copied into it
and outputs out of it, which costs little compared with the launches.

Used in training (`objectives/likelihood.py`), where batches are padded to a few different shapes (`data/batches.py`,
`multiple`).

Before changing it: a recorded function must not synchronise with the host or depend on values of tensors, and
everything that decides which kernels run must be part of `Call.key`. `training/tasks.py` calls `forget` when memory
runs out. The environment variable RNNSEARCH_GRAPHS=0 switches graphs off. Tests:
`tests/objectives/test_recorded.py` and `tests/properties/test_recorded.py` on the CPU,
`tests/properties/test_cuda.py` and `tests/training/test_cuda.py` on a GPU.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.utils.tensors import leaves, map_tree, with_leaves

log = logging.getLogger(__name__)

SWITCH = "RNNSEARCH_GRAPHS"
"""Environment variable; 0 launches every kernel separately."""
WIDTH_MULTIPLE = 8  # sentences on a GPU are padded to multiples of this, so that few shapes occur
MIN_OCCURRENCES = 3  # of a shape before it is recorded, because recording costs more than the pass itself
MAX_RECORDINGS = 256
"""Limit of the number of recorded shapes."""
MAX_COUNTED_SHAPES = 4096  # that have not occurred often enough yet
MIN_FREE_BYTES = 4 << 30
"""Free memory of a GPU below which PyTorch's cache is emptied for a recording, which takes time."""
ALIGNMENT_BYTES = 512
"""Alignment of tensors in a workspace, that of PyTorch's allocator."""

Work = Callable[[], None]
Record = Callable[[Work, torch.Generator | None], Work]
"""Runs some work, which may use a generator, and records its kernels. Returns a function that runs the same kernels
again: they read and write the same memory and use the generator in its state at that time."""
Outputs = TypeVar("Outputs")
Forward = Callable[[Any, Sequence[Tensor], BatchRng | None], Outputs]
"""A hashable function of a model and tensors of a batch that returns a tree of tensors (`tensors.map_tree`). It must
not wait for the device, and its kernels may depend only on shapes."""


def run_recorded(
    forward: Forward[Outputs], model: nn.Module, tensors: Sequence[Tensor], rng: BatchRng | None
) -> Outputs:
    """Return `forward(model, tensors, rng)`, computed by a recording in training on a GPU."""
    device = tensors[0].device
    if _pauses or not torch.is_grad_enabled() or not graphs_are_enabled(device):
        return forward(model, tensors, rng)
    if model not in _RECORDERS:
        _RECORDERS[model] = PassRecorder(CudaGraphs(device))
    return _RECORDERS[model].run(forward, model, tensors, rng)


def graphs_are_enabled(device: torch.device) -> bool:
    """Return True if work on a device is recorded."""
    return device.type == "cuda" and os.environ.get(SWITCH) != "0"


@contextmanager
def pause_recording() -> Iterator[None]:
    """Run passes inside the block without recording them, because a larger part of the work is recorded."""
    _pauses.append(None)
    try:
        yield
    finally:
        _pauses.pop()


def forget(model: nn.Module) -> None:
    """Free the memory of a model's recordings."""
    _RECORDERS.pop(model, None)


class PassRecorder:
    """The recordings of one model's passes by shape; the least recently used ones are dropped.

    They share memory, so that only one pass can be between its forward and its backward part. Another pass that starts
    meanwhile is not replayed.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._workspaces = Workspaces()
        self._recordings: OrderedDict[object, Recording] = OrderedDict()
        self._occurrences: dict[object, _Occurrences] = {}
        self._works = True  # False after a recording has failed
        self._open: weakref.ref[_OpenPass] | None = None

    def __len__(self) -> int:
        return len(self._recordings)

    def run(
        self, forward: Forward[Outputs], model: nn.Module, tensors: Sequence[Tensor], rng: BatchRng | None
    ) -> Outputs:
        """Return the outputs of `forward`, replayed if its shapes have occurred often enough."""
        call = Call.create(forward, model, tensors, rng)
        # The other pass's backward part will read the shared memory. Its token lives as long as its autograd graph.
        if self._open is not None and self._open() is not None:
            return forward(model, tensors, rng)
        key = call.key
        recording = self._recordings.get(key) or self._new_recording(key, call)
        if recording is None:
            return self._watch(key, forward(model, tensors, rng))
        self._recordings.move_to_end(key)
        token = _OpenPass()
        self._open = weakref.ref(token)
        leaf_outputs = _Replay.apply(recording, call, token, *call.parameters)  # type: ignore[no-untyped-call]
        outputs: Outputs = recording.tree(leaf_outputs)
        return outputs

    def _new_recording(self, key: object, call: Call) -> Recording | None:
        """Return a new recording if the shape has occurred often enough and recording works."""
        occurrences = self._occurrences.get(key)
        if not self._works or occurrences is None or occurrences.count < MIN_OCCURRENCES or not occurrences.wanted:
            return None
        del self._occurrences[key]  # even if recording fails: it is not tried at every pass
        try:
            recording = Recording(call, occurrences.wanted, self._workspaces, self._record)
        except torch.OutOfMemoryError:
            return None
        except RuntimeError as error:
            self._works = False
            # Nothing is replayed any more, so the earlier recordings only take memory.
            self._recordings.clear()
            log.warning("no CUDA graphs could be recorded, so kernels are launched one by one: %s", error)
            return None
        self._recordings[key] = recording
        if len(self._recordings) > MAX_RECORDINGS:
            self._recordings.popitem(last=False)
        return recording

    def _watch(self, key: object, outputs: Outputs) -> Outputs:
        """Count a shape, and return the outputs of its pass so that those with a gradient are noted."""
        if not self._works:
            return outputs
        if len(self._occurrences) >= MAX_COUNTED_SHAPES:
            self._occurrences.clear()
        occurrences = self._occurrences.setdefault(key, _Occurrences())
        occurrences.count += 1
        wanted: set[int] = set()
        # A new set, which is filled by the backward pass after this function has returned.
        occurrences.wanted = wanted
        indices = count()

        def watch(leaf: Tensor) -> Tensor:
            index = next(indices)
            return _Watched.apply(wanted, index, leaf) if leaf.requires_grad else leaf  # type: ignore[no-any-return, no-untyped-call]

        return map_tree(watch, outputs)


@dataclass(frozen=True)
class Call:
    """One pass as it was requested."""

    forward: Forward[Any]  # function that runs the forward pass
    model: nn.Module  # model whose parameters are trained
    tensors: Sequence[Tensor]  # inputs of the pass
    rng: BatchRng | None  # random numbers of the batch; None without any
    rng_state: Tensor | None  # of the rng's generator before the pass
    parameters: Sequence[nn.Parameter]  # those that are trained
    autocast_dtype: torch.dtype | None  # None without autocast

    @classmethod
    def create(cls, forward: Forward[Any], model: nn.Module, tensors: Sequence[Tensor], rng: BatchRng | None) -> Call:
        """Return a call in the current state of autocast and rng."""
        device_type = tensors[0].device.type
        autocast_dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        rng_state = None if rng is None else rng.generator.get_state()
        return cls(forward, model, tensors, rng, rng_state, parameters, autocast_dtype)

    @property
    def key(self) -> object:
        """Everything that the kernels depend on."""
        shapes = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in self.inputs)
        batch_size = None if self.rng is None else self.rng.batch_size
        # Graphs contain addresses: parameters that were moved, replaced or frozen need other recordings.
        fixed = (*self.model.parameters(), *self.model.buffers())
        addresses = tuple((tensor.data_ptr(), tensor.requires_grad) for tensor in fixed)
        return self.forward, shapes, batch_size, self.autocast_dtype, addresses

    @property
    def inputs(self) -> list[Tensor]:
        """Everything that differs between passes of one shape."""
        # The rows that random numbers are sampled for differ between batches, so they are an input like the tensors.
        rows = None if self.rng is None else self.rng.rows
        return [*self.tensors, *([] if rows is None else [rows])]

    def copy_rng(self, inputs: Sequence[Tensor]) -> BatchRng | None:
        """Return an rng with the same numbers from its own generator, for the rows in `inputs`."""
        if self.rng is None or self.rng_state is None:
            return None
        rng = self.rng.fork(None if self.rng.rows is None else inputs[-1])
        rng.generator.set_state(self.rng_state)
        return rng

    def outputs(self, inputs: Sequence[Tensor], rng: BatchRng | None) -> Any:
        """Return differentiable outputs for other inputs and another rng.

        Weights that autocast has cast are neither taken from another pass nor left to one.
        """
        with torch.enable_grad(), self._autocast():
            return self.forward(self.model, inputs[: len(self.tensors)], rng)

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = self.autocast_dtype
        device_type = self.tensors[0].device.type
        return torch.autocast(device_type, dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False)


class Workspace:
    """Device memory for the tensors of the largest recording so far.

    When it is too small, it is replaced by one of at least twice its size; earlier recordings keep the old one.
    """

    def __init__(self) -> None:
        self._bytes: Tensor | None = None

    def like(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors of the same shapes; those of the next call overlap them."""
        required = sum(map(_aligned_bytes, tensors))
        capacity = 0 if self._bytes is None else len(self._bytes)
        if self._bytes is None or capacity < required:
            size = max(required, 2 * capacity)
            self._bytes = torch.empty(size, dtype=torch.uint8, device=tensors[0].device)
        return views(self._bytes, tensors)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """Return memory [bytes] for the `views` of tensors of these shapes."""
    return torch.empty(sum(map(_aligned_bytes, tensors)), dtype=torch.uint8, device=tensors[0].device)


def views(memory: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return views of memory [bytes] with the shapes and types of `tensors`, one after the other."""
    results = []
    start = 0
    for tensor in tensors:
        content = memory[start : start + tensor.numel() * tensor.element_size()]
        results.append(content.view(tensor.dtype).view(tensor.shape))
        start += _aligned_bytes(tensor)
    return results


def _aligned_bytes(tensor: Tensor) -> int:
    """Return the size of a tensor, rounded up to a multiple of ALIGNMENT_BYTES, as PyTorch's allocator does."""
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True)
class Workspaces:
    """The memory that recordings read and write.

    They are separate because the inputs of a forward pass must not be overwritten before its backward pass.
    """

    inputs: Workspace = field(default_factory=Workspace)
    """Inputs of the forward pass."""
    outputs: Workspace = field(default_factory=Workspace)
    """Outputs of the forward pass."""
    output_gradients: Workspace = field(default_factory=Workspace)
    parameter_gradients: Workspace = field(default_factory=Workspace)


class Recording:
    """A recorded pass of one shape."""

    def __init__(self, call: Call, wanted: Container[int], workspaces: Workspaces, record: Record) -> None:
        """Record a pass.

        Args:
            wanted: Indices of the outputs that have gradients.
        """
        inputs = call.inputs
        # An ordinary pass first: it shows the shapes of the outputs, and libraries allocate memory outside of the
        # recording.
        template = call.outputs(inputs, call.copy_rng(inputs))
        outputs = leaves(template)
        self.wanted = [index in wanted for index in range(len(outputs))]
        self.differentiable = [leaf.requires_grad for leaf in outputs]
        self._inputs = workspaces.inputs.like(inputs)
        self._outputs = workspaces.outputs.like(outputs)
        self._rng = call.copy_rng(self._inputs)
        self._tree = with_leaves(template, self._outputs)
        wanted_outputs = [leaf for leaf, is_wanted in zip(outputs, self.wanted, strict=True) if is_wanted]
        self._output_gradients = workspaces.output_gradients.like(wanted_outputs)
        self._parameter_gradients = workspaces.parameter_gradients.like(call.parameters)
        self._has_gradient = [True] * len(call.parameters)  # False if no wanted output depends on the parameter
        # Free the memory of this pass before the recording allocates its own.
        del template, outputs, wanted_outputs
        self._record(call, record)

    def _record(self, call: Call, record: Record) -> None:
        graph_outputs: list[list[Tensor]] = []  # of the forward part, with everything that the backward part needs

        def forward() -> None:
            graph_outputs[:] = [leaves(call.outputs(self._inputs, self._rng))]
            _copy(self._outputs, graph_outputs[0])

        def backward() -> None:
            # `pop` releases the autograd graph as soon as the backward part is recorded.
            pairs = zip(graph_outputs.pop(), self.wanted, strict=True)
            outputs = [leaf for leaf, is_wanted in pairs if is_wanted]
            gradients = torch.autograd.grad(outputs, call.parameters, self._output_gradients, allow_unused=True)
            self._has_gradient = [gradient is not None for gradient in gradients]
            _copy(self._parameter_gradients, gradients)

        _copy(self._inputs, call.inputs)
        generator = None if self._rng is None else self._rng.generator
        self._replay_forward = record(forward, generator)
        # The backward part uses no random numbers: masks are among the results of the forward part.
        self._replay_backward = record(backward, None)

    def forward(self, call: Call) -> list[Tensor]:
        """Return the outputs of a call, and advance its rng as the pass itself would."""
        _copy(self._inputs, call.inputs)
        if self._rng is not None and call.rng_state is not None:
            self._rng.generator.set_state(call.rng_state)
        self._replay_forward()
        if self._rng is not None and call.rng is not None:
            # Later passes continue from here, as if this one had not been replayed.
            call.rng.generator.set_state(self._rng.generator.get_state())
        # Cloned, because the next replay overwrites the workspace.
        return [output.clone() for output in self._outputs]

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the parameters' gradients, given those of the outputs."""
        _copy(self._output_gradients, [gradient for gradient in gradients if gradient is not None])
        self._replay_backward()
        pairs = zip(self._parameter_gradients, self._has_gradient, strict=True)
        return [gradient.clone() if has_gradient else None for gradient, has_gradient in pairs]

    def tree(self, outputs: Sequence[Tensor]) -> Any:
        """Return outputs in the structure that the pass returns."""
        return with_leaves(self._tree, outputs)


@torch.no_grad()
def _copy(targets: Sequence[Tensor], values: Sequence[Tensor | None]) -> None:
    for target, value in zip(targets, values, strict=True):
        if value is not None:
            target.copy_(value)


class _OpenPass:
    """A pass whose forward part was replayed and whose backward part was not."""


@dataclass
class _Occurrences:
    """Number of occurrences of a shape."""

    count: int = 0
    wanted: set[int] = field(default_factory=set)  # indices of the outputs that had a gradient the last time


class _Watched(torch.autograd.Function):
    """The identity for one output, which notes that the output gets a gradient.

    It is applied to each output separately: parameters that only outputs without a gradient depend on must get None,
    not zeros.
    """

    @staticmethod
    def forward(ctx: Any, wanted: set[int], index: int, output: Tensor) -> Tensor:
        ctx.wanted = wanted
        ctx.index = index
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.wanted.add(ctx.index)
        return None, None, *gradients


class _Replay(torch.autograd.Function):
    """A recorded pass as a function of the parameters."""

    @staticmethod
    def forward(ctx: Any, recording: Recording, call: Call, token: _OpenPass, *_: Tensor) -> tuple[Tensor, ...]:
        ctx.recording = recording
        ctx.call = call
        ctx.token = token
        # None must differ from a gradient of zeros, because it decides if the recording fits.
        ctx.set_materialize_grads(False)
        outputs = recording.forward(call)
        pairs = zip(outputs, recording.differentiable, strict=True)
        ctx.mark_non_differentiable(*(output for output, is_differentiable in pairs if not is_differentiable))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = [gradient is not None for gradient in gradients]
        # Without the token, the backward part has run before, and another pass may have overwritten the memory.
        if ctx.token is not None and wanted == ctx.recording.wanted:
            parameter_gradients: Sequence[Tensor | None] = ctx.recording.backward(gradients)
        else:
            parameter_gradients = _recompute(ctx.call, gradients)
        # The shared memory is free for the next pass.
        ctx.token = None
        return None, None, None, *parameter_gradients


def _recompute(call: Call, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return the parameters' gradients from the pass itself.

    Needed if other outputs have gradients than when the pass was recorded, or for a second backward pass.
    """
    outputs = leaves(call.outputs(call.inputs, call.copy_rng(call.inputs)))
    wanted_outputs = []
    wanted_gradients = []
    for output, gradient in zip(outputs, gradients, strict=True):
        if gradient is not None:
            wanted_outputs.append(output)
            wanted_gradients.append(gradient)
    return torch.autograd.grad(wanted_outputs, call.parameters, wanted_gradients, allow_unused=True)


class CudaGraphs:
    """Records work on one device as CUDA graphs.

    The graphs share a memory pool for intermediate results: one may overwrite those of another, which are not needed
    any more. Other threads, such as the one that copies batches, may use the device during a recording.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, work: Work, generator: torch.Generator | None) -> Work:
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            # Replays then read the generator's current state instead of the state during the recording.
            graph.register_generator_state(generator)
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            free, _ = torch.cuda.mem_get_info()
            if free < MIN_FREE_BYTES:
                torch.cuda.empty_cache()  # a recording cannot use memory that was freed outside of it
            # Not `torch.cuda.graph`, which stays on its stream if the recording fails.
            with torch.cuda.stream(self._stream):
                # thread_local: calls of other threads that are not allowed during a capture do not fail.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    self._pool = torch.cuda.graph_pool_handle()  # a pool without any recording cannot be used again
                    raise
                finally:
                    graph.capture_end()
        return graph.replay


_pauses: list[None] = []
"""One entry per active `pause_recording`."""
_RECORDERS: weakref.WeakKeyDictionary[nn.Module, PassRecorder] = weakref.WeakKeyDictionary()
"""Recorder of each model."""
