"""Beam and greedy search on a GPU from recordings: a step is replayed as a CUDA graph, and the host reads it later.

A step launches 50 to 100 small kernels, which takes the host much longer than the GPU needs to run them, and the host
must know the scores of a step to decide which sentences go on. Here

- the encoder with the first step, and every later step, are recorded once per shape (`accel/cuda_graphs.py`) and
  replayed with one launch each. Sentences are padded to a multiple of `ROW_MULTIPLE`, sources to a multiple of
  `WIDTH_MULTIPLE` positions;
- the scores of a step are copied to the host while later steps run, at most `MAX_STEPS_AHEAD` of them. `BeamProgress`
  decides as in other searches, only later: steps after the end of a sentence are computed and ignored;
- finished sentences leave the batch when half of it has finished, by copying the others to the memory of a smaller
  recording;
- `decode.py` launches the first steps of a batch before it makes the results of the batch before.

`beam.py` uses it wherever `unsupported_reason` returns None, for hypotheses equal to those of `BeamSearch.steps`.
RNNSEARCH_GRAPHS=0 switches it off. If memory runs out, the recordings are freed and the search runs without them.

Before changing it: recordings share the memory of live hypotheses, so one search at a time uses them; a search in
another thread meanwhile runs without. Tests: tests/properties/test_recorded_search.py (on the CPU, where a recording is
the function itself, and on a GPU), `benchmarks/gpu_search.py`.

Axes: A sentences in the batch, B sentences of the call, K live hypotheses per sentence, J source positions.
"""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rnnsearch.accel.cuda_graphs import WIDTH_MULTIPLE, CudaGraphs, Record, Workspace, graphs_are_enabled, packed, views
from rnnsearch.data.batch import Stream
from rnnsearch.engine.structs import Array
from rnnsearch.search import topk
from rnnsearch.search.backtrace import BeamProgress, BeamStep
from rnnsearch.search.candidates import Columns
from rnnsearch.search.expansion import BeamExpansion, LiveHypotheses, Selector
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.scorer import RecordableScorer, Scorer, Sources
from rnnsearch.text.vocabulary import EOS, PAD
from rnnsearch.utils.tensors import HostCopy, leaves, map_tree, to_device, with_leaves

log = logging.getLogger(__name__)
Result = TypeVar("Result")

ROW_MULTIPLE = 8  # sentences of a batch are padded to a multiple of this, so that few shapes occur
MAX_STEPS_AHEAD = 2
"""Steps that are launched before the host reads the first of them; up to this many are computed in vain at the end."""
FIRST_STEPS = 8
"""Steps that are launched at once, so that a GPU is busy while the host makes the results of the batch before."""
MAX_RECORDED_POSITIONS = 512
"""Source positions up to which the encoder is recorded; its graph has several kernels per position."""
MIN_USES_TO_RECORD_ENCODER = 2
MIN_USES_TO_RECORD_FEWER_ROWS = 4
"""Searches of one shape before these are recorded, because a recording costs several times what it saves in one."""
MAX_SHAPES = 64
"""Limit of the number of recorded shapes of a scorer; the least recently used ones are dropped."""

AFTER_FIRST = 2
"""Any position after the first one: a recorded step does not depend on it."""


def unsupported_reason(
    scorer: Scorer, sources: Sources, options: SearchOptions, columns: Columns, selector: Selector
) -> str | None:
    """Return why a search cannot run from recordings, or None if it can."""
    if not isinstance(scorer, RecordableScorer) or scorer.recorded_weights() is None:
        return f"a step of {type(scorer).__name__} may need the host"
    if not options.unconstrained or options.has_prefix:
        return "prefixes, phrases and other constraints depend on the position or on the history of a hypothesis"
    if selector is not topk.best_continuations:
        return "the selection of continuations uses random numbers or needs the host"
    if columns.ids is not None:
        return "candidate lists differ between batches"
    if columns.count < 2 * options.beam:
        return "the first steps have fewer hypotheses than later ones"
    if any(stream.characters is not None for stream in sources.values()):
        return "no two batches have the same number of different words with characters"
    if not all(stream.is_ids_only for stream in sources.values()):
        return "a source is an array"
    return None


@contextmanager
def beside_later_work(device: torch.device, done: torch.cuda.Event | None) -> Iterator[None]:
    """Run work in the block on a separate stream after an event, so that it does not wait for work launched later."""
    if done is None:
        yield
        return
    stream = _results_stream(device)
    stream.wait_event(done)
    with torch.cuda.stream(stream):
        yield


@cache
def _results_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def find_recorder(scorer: Scorer) -> SearchRecorder | None:
    """Return the recorder of a scorer's searches, or None if its device has none or it is switched off."""
    if not graphs_are_enabled(scorer.device) or not isinstance(scorer, RecordableScorer):
        return None
    owner = scorer.recording_owner
    if owner not in _RECORDERS:
        _RECORDERS[owner] = SearchRecorder(partial(CudaGraphs, scorer.device))
    return _RECORDERS[owner]


def forget(owner: object) -> None:
    """Free the memory of the recordings of a model's or scorer's searches."""
    _RECORDERS.pop(owner, None)


@dataclass(frozen=True)
class RecordedCall:
    """A search of one batch."""

    scorer: RecordableScorer
    expansion: BeamExpansion
    sources: Sources
    progress: BeamProgress
    options: SearchOptions
    max_length: Array  # [B]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources."""
        return tuple(self.sources)

    @property
    def widths(self) -> tuple[int, ...]:
        """Positions per source, padded."""
        return tuple(_round_up(stream.ids.shape[1], WIDTH_MULTIPLE) for stream in self.sources.values())

    @cached_property
    def key(self) -> object:
        """Everything that the kernels of a step depend on, except for the number of sentences."""
        weights = self.scorer.recorded_weights() or ()
        # Graphs contain addresses: weights that were moved or replaced need other recordings.
        addresses = tuple(weight.data_ptr() for weight in weights)
        device_type = self.scorer.device.type
        autocast = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
        return self.names, self.widths, self.scorer.recording_key, self.expansion.key, autocast, addresses


class SearchRecorder:
    """The recordings of one scorer's searches by shape."""

    def __init__(self, make_record: Callable[[], Record]) -> None:
        self._make_record = make_record
        self._record = make_record()
        self._lock = Lock()
        self._workspace = Workspace()  # of the live hypotheses with their memory
        self._shapes: OrderedDict[tuple[int, object], _StepRecording] = OrderedDict()
        self._works = True  # False after a recording has failed

    def __len__(self) -> int:
        return len(self._shapes)

    def recordings(self) -> Mapping[tuple[int, object], _StepRecording]:
        """Return the recordings by their sentences, with padding, and the rest of their shape."""
        return self._shapes

    def begin(self, call: RecordedCall) -> RecordedRun | None:
        """Launch the first steps of a search, to be completed by `finish` or ended by `cancel`.

        Returns None if the search must run without recordings.
        """
        if not self._works or not self._lock.acquire(blocking=False):
            return None
        return self._attempt(lambda: RecordedRun(self, call))

    def finish(self, run: RecordedRun) -> list[BeamStep] | None:
        """Return the steps of a search, or None if it must run without recordings, with a new `BeamProgress`."""
        history = self._attempt(run.finish)
        if history is not None:
            self._lock.release()
        return history

    def cancel(self) -> None:
        """End the search that has begun."""
        self._lock.release()

    def _attempt(self, work: Callable[[], Result]) -> Result | None:
        """Return the result of a part of a search, or None if a recording failed; errors end the search."""
        try:
            return work()
        except _RecordingError as error:
            self._works = False
            self._free()
            log.warning("search could not be recorded as CUDA graphs, so kernels are launched one by one: %s", error)
        except torch.OutOfMemoryError:
            self._free()
        except BaseException:
            self._lock.release()
            raise
        self._lock.release()
        return None

    def _free(self) -> None:
        self._shapes.clear()
        self._workspace = Workspace()
        self._record = self._make_record()  # the memory pool of freed graphs cannot be used again

    def start(self, call: RecordedCall) -> tuple[_StepRecording, _StepBuffer]:
        """Run the encoder and the first step; return the recording of later steps and the first step."""
        rows = _round_up(len(call.max_length), ROW_MULTIPLE)
        key = (rows, call.key)
        recording = self._shapes.get(key)
        sources = _padded(call, rows)
        if recording is not None:
            self._shapes.move_to_end(key)
            recording.uses += 1
            is_frequent = recording.uses >= MIN_USES_TO_RECORD_ENCODER
            if recording.start is None and is_frequent and max(call.widths) <= MAX_RECORDED_POSITIONS:
                recording.start = self._recorded(_StartRecording, call, sources, recording, self._record)
            if recording.start is not None:
                recording.start.run(sources)
                return recording, recording.start.output
        live, step = _first_step(call.expansion, sources)
        if recording is None:
            recording = self._recording(key, call, live)
        recording.load(live)
        first = _StepBuffer(step)
        first.write(step)
        return recording, first

    def drop_finished(self, call: RecordedCall, recording: _StepRecording, active: Array) -> _StepRecording | None:
        """Return a recording with fewer rows whose live hypotheses are those of the `active` rows.

        None if too few sentences have finished, or if the recording would be used too rarely.
        """
        rows = _fewer_rows(recording.rows, len(active))
        if rows == recording.rows:
            return None
        key = (rows, call.key)
        smaller = self._shapes.get(key)
        if smaller is None and recording.uses < MIN_USES_TO_RECORD_FEWER_ROWS:
            return None
        # The other rows repeat an active one; no step of theirs is read.
        index = np.concatenate([active, np.full(rows - len(active), active[0])])
        live = recording.live.select_sentences(to_device(torch.from_numpy(index), call.scorer.device))
        if smaller is None:
            smaller = self._recording(key, call, live)
        self._shapes.move_to_end(key)
        smaller.uses += 1
        smaller.load(live)
        return smaller

    def _recording(self, key: tuple[int, object], call: RecordedCall, live: LiveHypotheses) -> _StepRecording:
        """Return a new recording of a step from hypotheses like `live`."""
        recording: _StepRecording = self._recorded(_StepRecording, call, live, self._workspace, self._record)
        self._shapes[key] = recording
        if len(self._shapes) > MAX_SHAPES:
            self._shapes.popitem(last=False)
        return recording

    @staticmethod
    def _recorded(make: Any, *arguments: object) -> Any:
        """Return `make(*arguments)`, or raise _RecordingError instead of errors other than short memory."""
        try:
            return make(*arguments)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise _RecordingError(error) from error


class RecordedRun:
    """A search that is running."""

    def __init__(self, recorder: SearchRecorder, call: RecordedCall) -> None:
        """Launch the first steps, of which none is read yet."""
        self._recorder = recorder
        self._call = call
        self._sentences = np.arange(len(call.max_length))  # in the rows of the recording, which may have more
        self._recording, first = recorder.start(call)
        self._sent = deque([_SentStep(first, self._sentences)])
        self._history: list[BeamStep] = []
        self._remaining = int(call.max_length.max())  # steps after the first one, with the last one for EOS
        for _ in range(min(self._remaining, FIRST_STEPS - 1)):
            self._launch()

    def finish(self) -> list[BeamStep]:
        """Return all steps."""
        while self._sent or self._remaining:
            is_ahead = len(self._sent) > MAX_STEPS_AHEAD or not self._remaining
            # The host waits only if it is too far ahead, or at the end.
            if self._sent and (is_ahead or self._sent[0].is_ready()):
                if not self._read():
                    break
            else:
                self._launch()
        return self._history

    def _launch(self) -> None:
        """Launch a step and the copy of its scores."""
        self._call.options.raise_if_cancelled()
        self._recording.replay()
        self._sent.append(_SentStep(self._recording.output, self._sentences))
        self._remaining -= 1

    def _read(self) -> bool:
        """Read the first step that was sent and return True if any sentence goes on."""
        step = self._sent.popleft().read()
        self._history.append(step)
        active = self._call.progress.add(step)
        # Steps that were launched before sentences left the batch still have the sentences of that time.
        if active.any() and step.sentences is self._sentences:
            smaller = self._recorder.drop_finished(self._call, self._recording, np.flatnonzero(active))
            if smaller is not None:
                self._recording = smaller
                self._sentences = self._sentences[active]
        return bool(active.any())


class _RecordingError(Exception):
    """A recording is not possible."""


class _StepRecording:
    """A recorded step of one shape, from and to live hypotheses in fixed memory."""

    def __init__(self, call: RecordedCall, live: LiveHypotheses, workspace: Workspace, record: Record) -> None:
        """Record a step from hypotheses like `live`, which is not modified."""
        self.start: _StartRecording | None = None
        """The recording of the encoder and the first step."""
        self.rows = len(live.total)
        """A, sentences with padding."""
        self.uses = 1
        """Number of searches that have used it."""
        self._constraints = call.expansion.constraints  # their tensors are read by the recorded kernels
        expansion = call.expansion
        names = call.names
        # An ordinary step first: it shows the shapes, and libraries allocate memory outside of the recording.
        following, step = _step(expansion, live, AFTER_FIRST, names)
        if _layout(following) != _layout(live):
            raise RuntimeError("the shapes of a state differ between steps")
        self.output = _StepBuffer(step)
        """The last replayed step."""
        self._memory = workspace.like(leaves(live))
        self.live = with_leaves(live, self._memory)
        """The live hypotheses after the last replayed step."""
        del following, step
        self.load(live)  # valid ids, in case that the recording runs the step

        def work() -> None:
            following, step = _step(expansion, self.live, AFTER_FIRST, names)
            self.load(following)
            self.output.write(step)

        self.replay = record(work, None)

    def load(self, live: LiveHypotheses) -> None:
        """Copy hypotheses to the recording's memory."""
        _copy(self._memory, leaves(live))


class _StartRecording:
    """The recorded encoder and first step of one shape, which write the live hypotheses of a `_StepRecording`."""

    def __init__(
        self, call: RecordedCall, ids: Mapping[str, Tensor], recording: _StepRecording, record: Record
    ) -> None:
        """Record a start from padded sources like `ids`."""
        self.ids = {name: values.clone() for name, values in ids.items()}
        """Padded ids of each source by name."""
        self._constraints = call.expansion.constraints  # their tensors are read by the recorded kernels
        expansion = call.expansion
        live, step = _first_step(expansion, self.ids)
        if _layout(live) != _layout(recording.live):
            raise RuntimeError("the shapes of a state differ between batches")
        self.output = _StepBuffer(step)
        """The first step."""
        del live, step

        def work() -> None:
            live, step = _first_step(expansion, self.ids)
            recording.load(live)
            self.output.write(step)

        self.replay = record(work, None)

    def run(self, ids: Mapping[str, Tensor]) -> None:
        """Encode padded sources and run the first step."""
        for name, values in ids.items():
            self.ids[name].copy_(values)
        self.replay()


class _StepBuffer:
    """Fixed memory for the tensors of a step; those that the host reads are next to each other."""

    def __init__(self, step: BeamStep) -> None:
        """Allocate memory for steps like `step`."""
        small = step._replace(attention={})
        self.memory = packed(leaves(small))
        """[bytes], all tensors except for attention."""
        self.tensors = views(self.memory, leaves(small))
        """The tensors in `memory`."""
        self._small = with_leaves(small, self.tensors)
        self._layout = []  # offset in bytes, shape of a row, and type of each tensor
        for tensor in self.tensors:
            array = torch.empty(0, dtype=tensor.dtype).numpy()
            self._layout.append((tensor.data_ptr() - self.memory.data_ptr(), tensor.shape[1:], array.dtype))
        self.attention = map_tree(torch.empty_like, step.attention)
        """Source name -> [A * K', J]."""

    def write(self, step: BeamStep) -> None:
        """Copy a step to this memory."""
        _copy(self.tensors, leaves(step._replace(attention={})))
        _copy(leaves(self.attention), leaves(step.attention))

    def on_host(self, memory: Array, sentences: Array, attention: dict[str, Tensor]) -> BeamStep:
        """Return a step from a copy of `memory` on the host, with the first rows of its tensors."""
        count = len(sentences)
        tensors = []
        for offset, row_shape, dtype in self._layout:
            # Much faster than views of a tensor.
            tensors.append(torch.from_numpy(np.ndarray((count, *row_shape), dtype, memory, offset)))
        return with_leaves(self._small, tensors)._replace(sentences=sentences, attention=attention)


class _SentStep:
    """A step on its way to the host."""

    def __init__(self, buffer: _StepBuffer, sentences: Array) -> None:
        """Start to copy a step, whose first rows belong to `sentences`, to pinned memory."""
        self._buffer = buffer
        self._sentences = sentences
        # New copies: the next replay overwrites the buffer.
        self._attention = {name: weights.clone() for name, weights in buffer.attention.items()}
        self._memory = HostCopy(buffer.memory)

    def is_ready(self) -> bool:
        """Return True if `read` does not wait."""
        return self._memory.is_ready()

    def read(self) -> BeamStep:
        """Return the step, except for attention on the host."""
        return self._buffer.on_host(self._memory.wait().numpy(), self._sentences, self._attention)


def _first_step(expansion: BeamExpansion, ids: Mapping[str, Tensor]) -> tuple[LiveHypotheses, BeamStep]:
    """Return the live hypotheses after the first step, and the step."""
    # As in `Stream.from_ids`, but without positions, whose number differs between batches.
    sources = {name: Stream.without_positions(values, values != PAD) for name, values in ids.items()}
    return _step(expansion, expansion.start(sources), 1, tuple(ids))


def _step(
    expansion: BeamExpansion, live: LiveHypotheses, position: int, names: Sequence[str]
) -> tuple[LiveHypotheses, BeamStep]:
    """Return the live hypotheses after a step, and the step without its sentences."""
    live, step = expansion.step(live, position, NO_SENTENCES, names)
    return expansion.advance(live, step), step


def _padded(call: RecordedCall, rows: int) -> dict[str, Tensor]:
    """Return the ids of the sources [rows, J], padded with sentences that consist of EOS."""
    padded = {}
    for (name, stream), width in zip(call.sources.items(), call.widths, strict=True):
        ids = stream.ids
        B, J = ids.shape
        padded[name] = ids.new_full((rows, width), PAD)
        padded[name][:B, :J] = ids
        padded[name][B:, :1].fill_(EOS)
    return padded


def _copy(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values to targets, which may be views of the targets' memory; few kernels copy all of them."""
    pairs: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for target, value in zip(targets, values, strict=True):
        shares_memory = value.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
        if shares_memory and value.data_ptr() == target.data_ptr() and value.stride() == target.stride():
            continue
        # Cloned before any target is overwritten.
        pairs.setdefault(target.dtype, []).append((target, value.clone() if shares_memory else value))
    for same_type in pairs.values():
        torch._foreach_copy_([target for target, _ in same_type], [value for _, value in same_type])


def _layout(tree: object) -> list[tuple[torch.Size, torch.dtype]]:
    return [(leaf.shape, leaf.dtype) for leaf in leaves(tree)]


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _fewer_rows(rows: int, active: int) -> int:
    """Return the rows of the smallest recording for `active` sentences that halving `rows` leads to."""
    while rows > ROW_MULTIPLE and (half := _round_up(rows // 2, ROW_MULTIPLE)) >= active and half < rows:
        rows = half
    return rows


NO_SENTENCES: Array = np.zeros(0, dtype=np.int64)
_RECORDERS: weakref.WeakKeyDictionary[object, SearchRecorder] = weakref.WeakKeyDictionary()
"""Recorder of each owner of recordings (see `RecordableScorer`)."""
