"""Time of a training update by phase of the forward pass, of the backward pass, and of the update.

Markers are attached to one model from outside, so that the model's classes do not contain them and pay nothing for
them. A backward phase ends when the gradient of the input of its forward phase is ready, which a hook on that tensor
reports.
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
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.memory import Memory
from rnnsearch.models.translation_model import TranslationModel, only_memory
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.ops.device import choose_device, precision
from rnnsearch.ops.malloc import retain_freed_memory
from rnnsearch.systems.translation import build
from rnnsearch.training.optimisers import OPTIMISERS, clip

FORWARD = ("batch", "encode", "start", "recurrence", "readout", "softmax and its gradient")
BACKWARD = ("softmax", "readout", "recurrence", "encode and embeddings")
PHASES = (*FORWARD, *(f"backward: {phase}" for phase in BACKWARD), "clip", "update")


class PhaseTimer:
    """Seconds per phase. Each mark adds the time since the previous mark to a phase."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.last = 0.0

    def start(self) -> None:
        """Start the clock."""
        self._synchronize()
        self.last = time.perf_counter()

    def mark(self, phase: str) -> None:
        """Add the time since the previous mark to `phase`."""
        self._synchronize()
        now = time.perf_counter()
        self.seconds[phase] += now - self.last
        self.last = now

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def attach(self, model: TranslationModel) -> None:
        """Attach markers to one model.

        The backward passes of the softmax, the readout and the recurrence end when the gradients of the readouts, the
        contexts and the annotations' keys are ready.
        """
        self._wrap(
            model, "encode", "encode", "recurrence", lambda memories, *_: _attention_input(only_memory(memories))
        )
        self._wrap(model.decoder, "start", "start")
        self._wrap(model.decoder, "unroll", "recurrence", "readout", lambda reading, *_: reading.context)
        self._wrap(model, "_readout", "readout")
        self._wrap(model.output, "losses", "softmax and its gradient", "softmax", lambda _, readouts, *__: readouts)

    def _wrap(
        self,
        owner: Any,
        method: str,
        phase: str,
        backward_phase: str = "",
        boundary: Callable[..., Tensor] | None = None,
    ) -> None:
        """Wrap a method of one object, without changing its class.

        Args:
            owner: The object.
            method: Name of the method.
            phase: Phase that ends with each call.
            backward_phase: Phase that ends when the gradient of the boundary tensor is ready.
            boundary: Selects the boundary tensor from the result and the arguments.
        """
        inner = getattr(owner, method)

        def marked(*arguments: Any) -> Any:
            result = inner(*arguments)
            self.mark(phase)
            if boundary is not None and (tensor := boundary(result, *arguments)).requires_grad:
                tensor.register_hook(lambda _: self.mark(f"backward: {backward_phase}"))
            return result

        object.__setattr__(owner, method, marked)


def _attention_input(memory: Memory) -> Tensor:
    return memory.annotations if memory.keys is None else memory.keys


@retain_freed_memory()
def measure(run: Path, settings: list[str], updates: int, warm: int = 10) -> Row:
    """Measure the milliseconds per phase of an average update, performed as in the training loop.

    Also returns the target tokens per update (without end tokens) and the fraction of padding in the batches.
    """
    config = run_config.load(run, settings)
    training = config.training
    assert config.data.prepared is not None
    prepared = Prepared.open(Path(config.data.prepared), config)
    device = choose_device(training.device)
    model = build(config.model, len(prepared.source), len(prepared.target), seed=1).to(device)
    parameters = list(model.parameters())
    optimiser = OPTIMISERS[training.optimiser.type](parameters, training.optimiser)
    objective = Likelihood(training.label_smoothing)
    timer = PhaseTimer(device)
    timer.attach(model)
    tokens = target = padded = 0
    batches = iter(Batches(prepared.train, training.batch, training.max_length, training.seed).epoch(0))
    for number in range(warm + updates):
        if number == warm:
            timer.seconds.clear()
            tokens = target = padded = 0
        timer.start()
        batch = next(batches).to(device)
        timer.mark("batch")
        optimiser.zero_grad(set_to_none=True)
        with precision(device, training.precision):
            loss = objective(model, batch, BatchRng(number + 1, device))
        (loss.total / batch.target.num_tokens).backward()  # type: ignore[no-untyped-call]
        timer.mark("backward: encode and embeddings")
        clip(parameters, training.clip_norm, training.clip_value)
        timer.mark("clip")
        optimiser.step()
        timer.mark("update")
        tokens += batch.target.num_tokens + batch.source.num_tokens
        target += batch.target.num_tokens - batch.sentences
        padded += batch.target.mask.numel() + batch.source.mask.numel()
    milliseconds = {phase: 1000 * timer.seconds[phase] / updates for phase in PHASES if timer.seconds[phase]}
    return {
        "milliseconds": milliseconds,
        "total_ms": sum(milliseconds.values()),
        "padding": 1 - tokens / padded,
        "target_tokens": target / updates,
    }
