"""Checkpoints of a run, and the handling of signals.

A checkpoint is a folder with the weights, the optimiser's tensors and the state of the loop: all that
`Trainer.resume` needs to continue as if the run had not been interrupted.

`training/run_folder.py` reads the hash of the corpus from it. File format: `model.safetensors`, `optimiser.safetensors`
(keys `<parameter number>.<name>`, in the order of the optimiser's parameters) and `state.json` (the fields of
`TrainingState`). A new field needs a default, and none may be renamed, so that runs of earlier versions resume.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, optim

from rnnsearch.errors import TrainingError
from rnnsearch.utils.files import JSON_ERRORS, atomic_folder, write_text
from rnnsearch.utils.weights import load_weights, read_weights, save_model_weights, save_weights

if TYPE_CHECKING:
    from rnnsearch.training.tasks import Task


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Catch the first SIGINT or SIGTERM inside the block; yield a function that returns True once one arrived.

    A second signal has its usual effect. Outside the main thread, where Python allows no handlers, nothing is caught.
    """
    received = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield received.is_set
        return
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, _frame: FrameType | None) -> None:
        received.set()
        signal.signal(number, handlers[number])  # a second signal has its usual effect

    for number in handlers:
        signal.signal(number, handle)
    try:
        yield received.is_set
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


MODEL_FILE = "model.safetensors"
"""Parameters of the model by name."""
OPTIMISER_FILE = "optimiser.safetensors"
"""Tensors of the optimiser."""
STATE_FILE = "state.json"
"""State of the training loop."""


@dataclass
class TrainingState:
    """Counters and scores of a run; stored as `state.json`.

    Attributes:
        epoch: Complete passes over the training data.
        batch: Batches done of the current epoch.
        update: Parameter updates done.
        seconds: Time spent in training, without evaluation.
        waited: Part of `seconds` spent waiting for batches.
        best: Best dev score by the run's metric.
        worse: Evaluations in a row without a better dev score.
        best_directions: Best dev score of each direction of a multi-way model, by name.
        worse_directions: Evaluations in a row without a better dev score of each direction.
        nll: Sum over the training batches since the last evaluation; likewise `sentences` and `tokens`.
        evaluated: Update of the last evaluation.
        pending: True if an evaluation was due when the state was saved.
        history: One row per dev evaluation.
        schedule: State of the learning-rate schedule.
        norms: State of `AdaptiveClipping`.
        corpus: SHA-256 of the prepared corpus; None in checkpoints of old versions.
    """

    epoch: int = 0
    batch: int = 0
    update: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    best: float | None = None
    worse: int = 0
    nll: float = 0.0
    sentences: int = 0
    tokens: int = 0
    evaluated: int = 0
    pending: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)
    schedule: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    corpus: str | None = None
    best_directions: dict[str, float] = field(default_factory=dict)
    worse_directions: dict[str, int] = field(default_factory=dict)


def save_state(folder: Path, state: TrainingState, task: Task[Any]) -> None:
    """Write a checkpoint folder atomically."""
    # All files or none: weights must not be combined with the optimiser's state of another update.
    with atomic_folder(folder) as temporary:
        save_model_weights(temporary / MODEL_FILE, task.model)
        save_weights(temporary / OPTIMISER_FILE, _optimiser_tensors(task.optimiser))
        write_text(temporary / STATE_FILE, json.dumps(asdict(state), indent=1))


def load_state(folder: Path, task: Task[Any]) -> TrainingState:
    """Load the model and the optimiser of a task from a checkpoint folder and return the state.

    Raises:
        TrainingError: If the state is damaged.
        ModelError: If the weights are damaged or do not fit the model.
    """
    try:
        state = TrainingState(**json.loads((folder / STATE_FILE).read_text(encoding="utf-8")))
    except JSON_ERRORS as error:
        raise TrainingError(f"{folder / STATE_FILE}: is damaged ({error}); remove {folder} to start again") from None
    load_weights(folder / MODEL_FILE, task.model)
    _load_optimiser(read_weights(folder / OPTIMISER_FILE), task.optimiser)
    task.tables.map_optimiser_state(task.optimiser)
    return state


def read_corpus_hash(folder: Path) -> str | None:
    """Return the SHA-256 of a checkpoint's corpus, or None if the state has none or is damaged (see `load_state`)."""
    try:
        corpus_hash = json.loads((folder / STATE_FILE).read_text(encoding="utf-8")).get("corpus")
    except JSON_ERRORS:
        return None
    return None if corpus_hash is None else str(corpus_hash)


def _parameters(optimiser: optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimiser.param_groups for p in group["params"]]


def _optimiser_tensors(optimiser: optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's tensors under the names `<parameter number>.<name>`."""
    tensors = {}
    for number, parameter in enumerate(_parameters(optimiser)):
        for name, value in optimiser.state[parameter].items():
            # SGD without momentum has an empty momentum buffer.
            if value is not None:
                tensors[f"{number}.{name}"] = torch.as_tensor(value)
    return tensors


def _load_optimiser(tensors: dict[str, Tensor], optimiser: optim.Optimizer) -> None:
    parameters = _parameters(optimiser)
    fused = any(group.get("fused") for group in optimiser.param_groups)
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        parameter = parameters[int(number)]
        # The step count (a scalar) is on the CPU unless the optimiser is fused.
        optimiser.state[parameter][name] = tensor.to(parameter.device) if tensor.ndim or fused else tensor
