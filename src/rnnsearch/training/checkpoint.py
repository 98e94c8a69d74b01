"""Where training stands: everything besides the weights and the optimiser that a resumed run needs."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn, optim

from rnnsearch.errors import TrainingError
from rnnsearch.utils.files import atomic_folder, write_text
from rnnsearch.utils.weights import load_weights, read_weights, save_weights, weights

# Ctrl-C and SIGTERM ask training to save and stop; a second Ctrl-C stops at once.


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """While the block runs, a signal sets a flag, which the yielded function reads.

    Outside the main thread (where Python allows no handlers) nothing is caught.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: FrameType | None) -> None:
        asked.set()
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


MODEL, OPTIMISER, STATE = "model.safetensors", "optimiser.safetensors", "state.json"


@dataclass
class State:
    """Counters and scores so far.

    epoch: whole passes done; batch: batches done of this one; update: parameter updates done.
    seconds: spent training, evaluation not counted; waited: of them, waiting for batches.
    best: the best dev score (in the run's metric); worse: evaluations in a row without a better one.
    nll, sentences, tokens: sums over the training batches since the last evaluation.
    history: one row a dev evaluation. schedule, norms: the schedule's own state, and that of `UsualNorms`.
    evaluated: update of the last evaluation; pending: whether one was due when the state was saved.
    corpus: the SHA-256 of the prepared corpus; None in checkpoints of versions that did not keep it.
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


def save_state(folder: Path, state: State, model: nn.Module, optimiser: optim.Optimizer) -> None:
    """A checkpoint folder, written whole or not at all."""
    with atomic_folder(folder) as temporary:
        save_weights(temporary / MODEL, weights(model))
        save_weights(temporary / OPTIMISER, _optimiser_tensors(optimiser))
        write_text(temporary / STATE, json.dumps(asdict(state), indent=1))


def load_state(folder: Path, model: nn.Module, optimiser: optim.Optimizer) -> State:
    """Fill model and optimiser from a checkpoint folder and return the state.

    Errors: TrainingError or ModelError where the folder is damaged or of another run.
    """
    try:
        state = State(**json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise TrainingError(f"{folder / STATE}: is damaged ({error}); remove {folder} to start anew") from None
    load_weights(folder / MODEL, model)
    _load_optimiser(read_weights(folder / OPTIMISER), optimiser)
    return state


def corpus_of(folder: Path) -> str | None:
    """The SHA-256 of the corpus of a checkpoint; None where it does not say, or is damaged (`load_state` says so)."""
    try:
        found = json.loads((folder / STATE).read_text(encoding="utf-8")).get("corpus")
    except (OSError, ValueError, AttributeError):
        return None
    return None if found is None else str(found)


def _parameters(optimiser: optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimiser.param_groups for p in group["params"]]


def _optimiser_tensors(optimiser: optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's tensors as `<parameter number>.<name>`."""
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, parameter in enumerate(_parameters(optimiser))
        for name, value in optimiser.state[parameter].items()
        if value is not None
    }


def _load_optimiser(tensors: dict[str, Tensor], optimiser: optim.Optimizer) -> None:
    parameters = _parameters(optimiser)
    fused = any(group.get("fused") for group in optimiser.param_groups)
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        parameter = parameters[int(number)]
        # a step count lives where the optimiser put it: on the CPU unless fused
        optimiser.state[parameter][name] = tensor.to(parameter.device) if tensor.ndim or fused else tensor
