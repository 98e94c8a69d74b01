"""A model's pass over a batch and its way back, recorded for each shape as CUDA graphs and then replayed by one launch
each.

A pass through a recurrent model has thousands of small kernels, each of which a GPU does sooner than Python asks for
the next. A recording asks for all of them at once. It reads and writes memory of its own, so inputs are copied into it
and outputs out of it; beside the launches saved, that is little.

In training alone: batches are then padded to few different shapes (`data/batches.py`, `multiple`).
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.utils.tensors import leaves, map_tree, with_leaves

log = logging.getLogger(__name__)

SWITCH = "RNNSEARCH_GRAPHS"
"""Set to 0 to launch every kernel by itself."""
WIDTH_MULTIPLE = 8
"""Sentences on a GPU are padded up to one, so that few shapes occur."""
MIN_OCCURRENCES = 3
"""How often a shape must have occurred before it is recorded: recording costs more than the pass itself."""
MAX_RECORDINGS = 256
MAX_COUNTED_SHAPES = 4096
"""Shapes that have occurred, but not often enough yet."""
ALIGNMENT_BYTES = 512
"""Bytes."""

Work = Callable[[], None]
Record = Callable[[Work, torch.Generator | None], Work]
"""Does some work, which may draw from a generator, while recording its kernels; returns what runs the same kernels
again, which read and write the same memory, and draw from the generator as it then is."""
Found = TypeVar("Found")
Forward = Callable[[Any, Sequence[Tensor], BatchRng | None], Found]
"""A hashable function of a model and tensors of a batch, which waits for the device nowhere and whose kernels depend on
shapes alone; what it gives is a tree of tensors (`tensors.map_tree`)."""


def run_recorded(forward: Forward[Found], model: nn.Module, tensors: Sequence[Tensor], rng: BatchRng | None) -> Found:
    """`forward(model, tensors, draws)`: in training on a GPU as a recording, elsewhere as it is."""
    device = tensors[0].device
    if device.type != "cuda" or not torch.is_grad_enabled() or os.environ.get(SWITCH) == "0":
        return forward(model, tensors, rng)
    if model not in _RECORDERS:
        _RECORDERS[model] = PassRecorder(CudaGraphs(device))
    return _RECORDERS[model].run(forward, model, tensors, rng)


def forget(model: nn.Module) -> None:
    """Give back the memory of a model's recordings."""
    _RECORDERS.pop(model, None)


class Workspace:
    """A piece of a device's memory in which the tensors of the largest recording so far have room. It is twice as large
    as the one before it, which earlier recordings keep."""

    def __init__(self) -> None:
        self._bytes: Tensor | None = None

    def like(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the same shapes beside one another. What is asked for next lies in the same place."""
        sizes = [-(-t.numel() * t.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for t in tensors]
        before = 0 if self._bytes is None else len(self._bytes)
        if self._bytes is None or before < sum(sizes):
            room = max(sum(sizes), 2 * before)
            self._bytes = torch.empty(room, dtype=torch.uint8, device=tensors[0].device)
        found, begin = [], 0
        for tensor, size in zip(tensors, sizes, strict=True):
            part = self._bytes[begin : begin + tensor.numel() * tensor.element_size()]
            found.append(part.view(tensor.dtype).view(tensor.shape))
            begin += size
        return found


@dataclass(frozen=True)
class Workspaces:
    """What recordings read and write. Apart, as what a pass has read may not be written to before its way back."""

    inputs: Workspace = field(default_factory=Workspace)
    outputs: Workspace = field(default_factory=Workspace)
    asked: Workspace = field(default_factory=Workspace)
    found: Workspace = field(default_factory=Workspace)


@dataclass(frozen=True)
class Call:
    """One pass, as it was asked for; `drawn`: the state of its draws' generator before it; `casting`: the type that
    products run in, None where it is the weights' own."""

    forward: Forward[Any]
    model: nn.Module
    tensors: Sequence[Tensor]
    rng: BatchRng | None
    drawn: Tensor | None
    parameters: Sequence[nn.Parameter]
    casting: torch.dtype | None

    @classmethod
    def of(cls, forward: Forward[Any], model: nn.Module, tensors: Sequence[Tensor], rng: BatchRng | None) -> Call:
        """Under the autocast that is on."""
        kind = tensors[0].device.type
        casting = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        drawn = None if rng is None else rng.generator.get_state()
        return cls(forward, model, tensors, rng, drawn, learned, casting)

    @property
    def key(self) -> object:
        """What its kernels depend on."""
        shapes = tuple((t.shape, t.dtype, t.device) for t in self.inputs)
        kept = (*self.model.parameters(), *self.model.buffers())
        places = tuple((tensor.data_ptr(), tensor.requires_grad) for tensor in kept)
        return self.forward, shapes, None if self.rng is None else self.rng.batch_size, self.casting, places

    @property
    def inputs(self) -> list[Tensor]:
        """All that differs between passes of a shape."""
        rows = None if self.rng is None else self.rng.rows
        return [*self.tensors, *([] if rows is None else [rows])]

    def twin(self, inputs: Sequence[Tensor]) -> BatchRng | None:
        """Draws like its own before it, from another generator, for the rows that inputs tell."""
        if self.rng is None or self.drawn is None:
            return None
        twin = self.rng.fork(None if self.rng.rows is None else inputs[-1])
        twin.generator.set_state(self.drawn)
        return twin

    def outputs(self, inputs: Sequence[Tensor], rng: BatchRng | None) -> Any:
        """Of these inputs and draws in the place of its own, with a way back. No cast weights are taken from another
        pass or left to one."""
        with torch.enable_grad(), self._autocast():
            return self.forward(self.model, inputs[: len(self.tensors)], rng)

    def _autocast(self) -> AbstractContextManager[object]:
        kind, casting = self.tensors[0].device.type, self.casting
        return torch.autocast(kind, casting or torch.bfloat16, enabled=casting is not None, cache_enabled=False)


class Recording:
    """A pass of one shape: `onward` leaves in `outputs` what it gives for `inputs`, `back` in `found` the parameters'
    gradients for `asked`, those of the outputs that `wanted` says; None for parameters that those do not depend on."""

    def __init__(self, call: Call, wanted: Container[int], spaces: Workspaces, record: Record) -> None:
        given = call.inputs
        template = call.outputs(given, call.twin(given))
        made = leaves(template)
        self.wanted = [number in wanted for number in range(len(made))]
        self.differentiable = [leaf.requires_grad for leaf in made]
        self._inputs, self._outputs = spaces.inputs.like(given), spaces.outputs.like(made)
        self._rng = call.twin(self._inputs)
        self._tree = with_leaves(template, self._outputs)
        self._asked = spaces.asked.like([leaf for leaf, want in zip(made, self.wanted, strict=True) if want])
        self._found = spaces.found.like(call.parameters)
        self._reached = [True] * len(call.parameters)
        del template, made
        self._record(call, record)

    def _record(self, call: Call, record: Record) -> None:
        between: list[list[Tensor]] = []
        """What was made onward, with what the way back needs of it."""

        def onward() -> None:
            between[:] = [leaves(call.outputs(self._inputs, self._rng))]
            _copy(self._outputs, between[0])

        def back() -> None:
            outputs = [leaf for leaf, want in zip(between.pop(), self.wanted, strict=True) if want]
            found = torch.autograd.grad(outputs, call.parameters, self._asked, allow_unused=True)
            self._reached = [gradient is not None for gradient in found]
            _copy(self._found, found)

        _copy(self._inputs, call.inputs)
        generator = None if self._rng is None else self._rng.generator
        self._onward, self._back = record(onward, generator), record(back, None)

    def onward(self, call: Call) -> list[Tensor]:
        """The outputs of a call, whose draws are then as after it."""
        _copy(self._inputs, call.inputs)
        if self._rng is not None and call.drawn is not None:
            self._rng.generator.set_state(call.drawn)
        self._onward()
        if self._rng is not None and call.rng is not None:
            call.rng.generator.set_state(self._rng.generator.get_state())
        return [output.clone() for output in self._outputs]

    def back(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The parameters' gradients from those of the outputs."""
        _copy(self._asked, [gradient for gradient in gradients if gradient is not None])
        self._back()
        return [one.clone() if there else None for one, there in zip(self._found, self._reached, strict=True)]

    def tree(self, outputs: Sequence[Tensor]) -> Any:
        """Outputs as the pass gives them."""
        return with_leaves(self._tree, outputs)


@torch.no_grad()
def _copy(places: Sequence[Tensor], values: Sequence[Tensor | None]) -> None:
    for place, value in zip(places, values, strict=True):
        if value is not None:
            place.copy_(value)


class PassRecorder:
    """Recordings of one model's passes by shape; the least recently used are forgotten.

    They share memory, so only one pass is between its beginning and its way back: another one that begins meanwhile is
    done kernel by kernel.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._spaces = Workspaces()
        self._recordings: OrderedDict[object, Recording] = OrderedDict()
        self._occurred: dict[object, _Occurred] = {}
        self._works = True
        self._open: weakref.ref[_Open] | None = None

    def __len__(self) -> int:
        return len(self._recordings)

    def run(self, forward: Forward[Found], model: nn.Module, tensors: Sequence[Tensor], rng: BatchRng | None) -> Found:
        """What `forward` gives, replayed where such shapes have occurred often enough."""
        call = Call.of(forward, model, tensors, rng)
        if self._open is not None and self._open() is not None:
            return forward(model, tensors, rng)
        key = call.key
        recording = self._recordings.get(key) or self._recorded(key, call)
        if recording is None:
            return self._watched(key, forward(model, tensors, rng))
        self._recordings.move_to_end(key)
        token = _Open()
        self._open = weakref.ref(token)
        made: Found = recording.tree(_Replay.apply(recording, call, token, *call.parameters))  # type: ignore[no-untyped-call]
        return made

    def _recorded(self, key: object, call: Call) -> Recording | None:
        """A new one, where it is due and can be made."""
        occurred = self._occurred.get(key)
        if not self._works or occurred is None or occurred.times < MIN_OCCURRENCES or not occurred.wanted:
            return None
        del self._occurred[key]  # whatever comes of it: it is not tried at every turn
        try:
            recording = Recording(call, occurred.wanted, self._spaces, self._record)
        except torch.OutOfMemoryError:
            return None
        except RuntimeError as error:
            self._works = False
            self._recordings.clear()
            log.warning("no CUDA graphs could be recorded, so kernels are launched one by one: %s", error)
            return None
        self._recordings[key] = recording
        if len(self._recordings) > MAX_RECORDINGS:
            self._recordings.popitem(last=False)
        return recording

    def _watched(self, key: object, tree: Found) -> Found:
        """The outputs of a pass that was done kernel by kernel; which of them its way back begins from is noted."""
        if not self._works:
            return tree
        if len(self._occurred) >= MAX_COUNTED_SHAPES:
            self._occurred.clear()
        occurred = self._occurred.setdefault(key, _Occurred())
        wanted, numbers = set[int](), count()
        occurred.times, occurred.wanted = occurred.times + 1, wanted

        def watched(leaf: Tensor) -> Tensor:
            number = next(numbers)
            return _Watched.apply(wanted, number, leaf) if leaf.requires_grad else leaf  # type: ignore[no-any-return, no-untyped-call]

        return map_tree(watched, tree)


class _Open:
    """A pass that was replayed onward and not yet back."""


@dataclass
class _Occurred:
    """How often a shape has; and the numbers of the pass's outputs that had a gradient the last time."""

    times: int = 0
    wanted: set[int] = field(default_factory=set)


class _Watched(torch.autograd.Function):
    """One output as it is; that it gets a gradient is noted. Not all of them at once: what only outputs without one
    depend on has none either, and not a gradient of zeros."""

    @staticmethod
    def forward(ctx: Any, wanted: set[int], number: int, output: Tensor) -> Tensor:
        ctx.wanted, ctx.number = wanted, number
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.wanted.add(ctx.number)
        return None, None, *gradients


class _Replay(torch.autograd.Function):
    """A recorded pass: what it gives, and the gradients of the parameters."""

    @staticmethod
    def forward(ctx: Any, recording: Recording, call: Call, token: _Open, *_: Tensor) -> tuple[Tensor, ...]:
        ctx.recording, ctx.call, ctx.token = recording, call, token
        ctx.set_materialize_grads(False)
        outputs = recording.onward(call)
        told = zip(outputs, recording.differentiable, strict=True)
        ctx.mark_non_differentiable(*(output for output, differentiable in told if not differentiable))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = [gradient is not None for gradient in gradients]
        if ctx.token is not None and wanted == ctx.recording.wanted:
            found: Sequence[Tensor | None] = ctx.recording.back(gradients)
        else:
            found = _again(ctx.call, gradients)
        ctx.token = None
        return None, None, None, *found


def _again(call: Call, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The parameters' gradients by the pass itself, where the way back begins from other outputs than was recorded, or
    is gone a second time."""
    outputs = leaves(call.outputs(call.inputs, call.twin(call.inputs)))
    wanted = [output for output, gradient in zip(outputs, gradients, strict=True) if gradient is not None]
    given = [gradient for gradient in gradients if gradient is not None]
    return torch.autograd.grad(wanted, call.parameters, given, allow_unused=True)


class CudaGraphs:
    """Records work of one device as CUDA graphs.

    They share a pool of memory for what lies between inputs and outputs: one may write over what another made, which
    nobody reads any more. Other threads may use the device meanwhile, as the one that copies batches does.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, work: Work, generator: torch.Generator | None) -> Work:
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # memory that was freed outside is of no use to a recording
            # Not `torch.cuda.graph`, which stays on its stream where the recording fails.
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    self._pool = torch.cuda.graph_pool_handle()  # one that nothing was recorded into cannot serve again
                    raise
                finally:
                    graph.capture_end()
        return graph.replay


_RECORDERS: weakref.WeakKeyDictionary[nn.Module, PassRecorder] = weakref.WeakKeyDictionary()
