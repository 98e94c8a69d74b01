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
from rnnsearch.config import RunConfig
from rnnsearch.data.batches import Batch, Batches
from rnnsearch.data.prepared import Prepared
from rnnsearch.device import choose_device, precision
from rnnsearch.models.decoders.decoder import Reading
from rnnsearch.models.draws import Draws
from rnnsearch.models.translation_model import Memories, TranslationModel, only
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.systems.build import build
from rnnsearch.training.optimisers import OPTIMISERS, clip

PHASES = (
    "batch",
    "encode",
    "start",
    "recurrence",
    "readout",
    "softmax and its gradient",
    "backward: softmax",
    "backward: readout",
    "backward: recurrence",
    "backward: encode and embeddings",
    "clip",
    "update",
)


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
        """Set the marks on one model."""
        self._wrap(model, "encode", "encode", self._memory)
        self._wrap(model.decoder, "start", "start", None)
        self._wrap(model.decoder, "unroll", "recurrence", self._reading)
        self._wrap(model, "_readout", "readout", None)
        self._wrap(model.output, "losses", "softmax and its gradient", None)
        losses = model.output.losses

        def with_hook(readout: Tensor, *rest: Any) -> Any:
            self._hook(readout, "backward: softmax")
            return losses(readout, *rest)

        _replace(model.output, "losses", with_hook)

    def _wrap(self, owner: Any, method: str, phase: str, hooks: Callable[[Any], None] | None) -> None:
        inner = getattr(owner, method)

        def marked(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            self.mark(phase)
            if hooks is not None:
                hooks(result)
            return result

        _replace(owner, method, marked)

    def _memory(self, memories: Memories) -> None:
        """The recurrence's backward pass ends where the annotations' gradient is ready."""
        memory = only(memories)
        self._hook(memory.keys if memory.keys is not None else memory.annotations, "backward: recurrence")

    def _reading(self, reading: Reading) -> None:
        """The readout's backward pass ends where the contexts' gradient is ready."""
        self._hook(reading.context, "backward: readout")

    def _hook(self, tensor: Tensor, phase: str) -> None:
        if tensor.requires_grad:
            tensor.register_hook(lambda _: self.mark(phase))


def _replace(owner: Any, name: str, method: Any) -> None:
    """A method of one object; its class stays as it is."""
    object.__setattr__(owner, name, method)


def measure(run: Path, settings: list[str], updates: int, warm: int = 10) -> Row:
    """Milliseconds by phase of a mean update, its target tokens (without end symbols), and the batches' share of
    padding."""
    config = run_config.load(run, settings)
    assert config.data.prepared is not None
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    prepared = Prepared.open(Path(config.data.prepared), config)
    device = choose_device(config.training.device)
    model = build(config.model, len(prepared.source), len(prepared.target), seed=1).to(device)
    batches = Batches(prepared.train, config.training.batch, config.training.max_length, config.training.seed)
    marks = Marks(device)
    marks.on(model)
    update = _updater(config, model, device, marks)
    tokens = target = padded = 0
    stream = iter(batches.epoch(0))
    for number in range(warm + updates):
        if number == warm:
            marks.seconds.clear()
            tokens = target = padded = 0
        marks.begin()
        batch = next(stream).to(device)
        marks.mark("batch")
        update(batch, number)
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


def _updater(
    config: RunConfig, model: TranslationModel, device: torch.device, marks: Marks
) -> Callable[[Batch, int], None]:
    """One update of the parameters, as the training loop has it."""
    training = config.training
    parameters = list(model.parameters())
    optimiser = OPTIMISERS[training.optimiser.type].make(parameters, training.optimiser)
    objective = likelihood(training.label_smoothing)

    def update(batch: Batch, number: int) -> None:
        draws = Draws(number + 1, device)
        optimiser.zero_grad(set_to_none=True)
        with precision(device, training.precision):
            loss = objective(model, batch, draws)
        (loss.total / batch.target.tokens).backward()  # type: ignore[no-untyped-call]
        marks.mark("backward: encode and embeddings")
        clip(parameters, training.clip_norm, training.clip_value)
        marks.mark("clip")
        optimiser.step()
        marks.mark("update")

    return update
