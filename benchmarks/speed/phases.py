"""Where the time of a training update goes: the phases of the forward pass, of the backward pass, and the update.

The marks are set from here, on one model: the classes know nothing of them, and without them nothing costs anything. A
backward phase ends where the gradient of what its forward phase read is ready, which a hook on that tensor tells.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Row
from rnnsearch import config as run_config
from rnnsearch.data.batches import Batches
from rnnsearch.data.prepared import Prepared
from rnnsearch.models.batch_rng import Draws
from rnnsearch.models.memory import Memory
from rnnsearch.models.translation_model import TranslationModel, only
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.ops.device import choose_device, precision
from rnnsearch.systems.translation import build
from rnnsearch.training.malloc import kept_heap
from rnnsearch.training.optimisers import OPTIMISERS, clip

FORWARD = ("batch", "encode", "start", "recurrence", "readout", "softmax and its gradient")
BACKWARD = ("softmax", "readout", "recurrence", "encode and embeddings")
PHASES = (*FORWARD, *(f"backward: {phase}" for phase in BACKWARD), "clip", "update")


class Marks:
    """Seconds by phase: each mark gives the time since the last one to a phase."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.last = 0.0

    def begin(self) -> None:
        """From here on."""
        self._wait()
        self.last = time.perf_counter()

    def mark(self, phase: str) -> None:
        """All since the last mark was `phase`."""
        self._wait()
        now = time.perf_counter()
        self.seconds[phase] += now - self.last
        self.last = now

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def on(self, model: TranslationModel) -> None:
        """Set the marks on one model: the backward pass of the softmax, of the readout and of the recurrence each end
        where the gradient of what they read is ready: the readouts, the contexts, the annotations' keys."""
        self._wrap(model, "encode", "encode", "recurrence", lambda memories, *_: _read_by_attention(only(memories)))
        self._wrap(model.decoder, "start", "start")
        self._wrap(model.decoder, "unroll", "recurrence", "readout", lambda reading, *_: reading.context)
        self._wrap(model, "_readout", "readout")
        self._wrap(model.output, "losses", "softmax and its gradient", "softmax", lambda _, readouts, *__: readouts)

    def _wrap(
        self, owner: Any, method: str, phase: str, ended: str = "", at: Callable[..., Tensor] | None = None
    ) -> None:
        """A method of one object, whose class stays as it is: its call is `phase`, and the backward pass of `ended` is
        over where the gradient of `at`, a tensor among result and arguments, is ready."""
        inner = getattr(owner, method)

        def marked(*given: Any) -> Any:
            result = inner(*given)
            self.mark(phase)
            if at is not None and (tensor := at(result, *given)).requires_grad:
                tensor.register_hook(lambda _: self.mark(f"backward: {ended}"))
            return result

        object.__setattr__(owner, method, marked)


def _read_by_attention(memory: Memory) -> Tensor:
    return memory.annotations if memory.keys is None else memory.keys


@kept_heap()
def measure(run: Path, settings: list[str], updates: int, warm: int = 10) -> Row:
    """Milliseconds by phase of a mean update, made as the training loop does, its target tokens (without end symbols),
    and the batches' share of padding."""
    config = run_config.load(run, settings)
    training = config.training
    assert config.data.prepared is not None
    prepared = Prepared.open(Path(config.data.prepared), config)
    device = choose_device(training.device)
    model = build(config.model, len(prepared.source), len(prepared.target), seed=1).to(device)
    parameters = list(model.parameters())
    optimiser = OPTIMISERS[training.optimiser.type](parameters, training.optimiser)
    objective = Likelihood(training.label_smoothing)
    marks = Marks(device)
    marks.on(model)
    tokens = target = padded = 0
    stream = iter(Batches(prepared.train, training.batch, training.max_length, training.seed).epoch(0))
    for number in range(warm + updates):
        if number == warm:
            marks.seconds.clear()
            tokens = target = padded = 0
        marks.begin()
        batch = next(stream).to(device)
        marks.mark("batch")
        optimiser.zero_grad(set_to_none=True)
        with precision(device, training.precision):
            loss = objective(model, batch, Draws(number + 1, device))
        (loss.total / batch.target.tokens).backward()  # type: ignore[no-untyped-call]
        marks.mark("backward: encode and embeddings")
        clip(parameters, training.clip_norm, training.clip_value)
        marks.mark("clip")
        optimiser.step()
        marks.mark("update")
        tokens += batch.target.tokens + batch.source.tokens
        target += batch.target.tokens - batch.sentences
        padded += batch.target.mask.numel() + batch.source.mask.numel()
    milliseconds = {phase: 1000 * marks.seconds[phase] / updates for phase in PHASES if marks.seconds[phase]}
    return {
        "milliseconds": milliseconds,
        "total_ms": sum(milliseconds.values()),
        "padding": 1 - tokens / padded,
        "target_tokens": target / updates,
    }
