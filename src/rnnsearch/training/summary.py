"""The end of a run: the mean of the last weights, where it is better, and what the model folder says of the run."""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rnnsearch.accel.cuda_graphs import OCCURRENCES
from rnnsearch.data.batches import Batch
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ModelError
from rnnsearch.models.batch_rng import Draws
from rnnsearch.ops.device import describe, precision
from rnnsearch.systems.card import TRAINING, write_card
from rnnsearch.systems.folder import WEIGHTS
from rnnsearch.training.loop import Trainer
from rnnsearch.training.progress import minutes
from rnnsearch.training.tasks import OutputFolder
from rnnsearch.utils.distributed import Processes
from rnnsearch.utils.files import write_json
from rnnsearch.utils.weights import fill, read_weights, weights

# What a run will take on this machine, tried out before it begins.

TRIED = 4
"""Batches tried out; the first is slower than all others, and does not count."""
MOMENTS = 8
"""Bytes a parameter that an optimiser adds (Adam's two moments) once it has made an update."""


def estimate(trainer: Trainer[Any]) -> str | None:
    """Time and memory in words, by passes over the first epoch's first batches, on a GPU as often as it takes until
    they are replayed. Their gradients are thrown away: nothing that is trained or drawn changes. None where a batch
    does not fit into memory and is to be halved."""
    taken: list[float] = []
    times = OCCURRENCES + 2 if trainer.device.type == "cuda" else 1
    try:
        for batch in islice(trainer.batches.epoch(0), TRIED):
            taken.append([_seconds(trainer, batch) for _ in range(times)][-1])
    except torch.OutOfMemoryError:
        return None
    finally:
        memory = _memory(trainer)
        for parameter in trainer.gradients.parameters:
            parameter.grad = None
    counted = taken[1:] or taken
    batch_seconds, training = sum(counted) / len(counted), trainer.training
    epoch = batch_seconds * trainer.batches.count(0)
    limits = [] if training.max_epochs is None else [training.max_epochs * epoch]
    if training.max_updates is not None:
        limits.append(training.max_updates * training.batch.accumulate * batch_seconds)
    if training.max_minutes is not None:
        limits.append(60 * training.max_minutes)
    most = f", at most {minutes(min(limits))} in all" if limits else ""
    room = "" if memory is None else f"; {memory / 2**30:.1f} GiB of memory"
    return f"about {minutes(epoch)} an epoch here{most}{room}"


def _seconds(trainer: Trainer[Any], batch: Batch) -> float:
    """Of one pass and its way back."""
    begin = time.monotonic()
    own = batch.to(trainer.device)
    with precision(trainer.device, trainer.training.precision):
        loss = trainer.task.objective(trainer.model, own, Draws(trainer.training.seed, trainer.device))
    loss.total.backward()  # type: ignore[no-untyped-call]
    float(loss.nll)  # which waits for the device
    return time.monotonic() - begin


def _memory(trainer: Trainer[Any]) -> int | None:
    """Bytes that this process has needed at most so far, preparing included, and what an optimiser will add; None where
    the system does not say."""
    moments = MOMENTS * (sum(p.numel() for p in trainer.gradients.parameters) - trainer.task.tables.in_files)
    if trainer.device.type == "cuda":
        return torch.cuda.max_memory_allocated(trainer.device) + moments
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) + moments


def finish(trainer: Trainer[Any], outputs: Sequence[OutputFolder], prepared: Prepared) -> None:
    """Average the last evaluations' weights where asked, and write the cards of this process's `outputs`."""
    paths = trainer.processes.agreed(trainer.to_average())
    if trainer.training.average > 1 and len(paths) > 1 and "averaged" not in trainer.state.history[-1]:
        _average(trainer, outputs, paths)
    for output in outputs:
        if (output.folder / WEIGHTS).is_file():
            describe_run(trainer, output, prepared)


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights in several files, parameter by parameter. Errors: ModelError where they are not of one
    model."""
    total: dict[str, Tensor] = {}
    for path in paths:
        tensors = read_weights(path)
        if total and {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in total.items()}:
            raise ModelError(f"{path}: its parameters are not those of {paths[0]}; only one model's can be averaged")
        for name, tensor in tensors.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).to(torch.float32) for name, tensor in total.items()}


def _average(trainer: Trainer[Any], outputs: Sequence[OutputFolder], paths: list[Path]) -> None:
    """The mean of the last evaluated weights becomes the model if the dev set says that it beats the best of them."""
    own = {name: parameter.detach().clone() for name, parameter in weights(trainer.model).items()}
    if trainer.processes.first:
        fill(trainer.model, average(paths))
    trainer.processes.same_weights(list(weights(trainer.model).values()))
    row = trainer.score_dev()
    assert row is not None
    if row["best"]:
        for output in outputs:
            output.save(weights(trainer.model))
    fill(trainer.model, own)
    history = trainer.state.history
    history.append({**row, "train_nll": history[-1]["train_nll"], "averaged": len(paths)})
    trainer.save()
    bleu = "" if row["dev_bleu"] is None else f", BLEU {row['dev_bleu']:.1f} (greedy)"
    verdict = "kept" if row["best"] else "the best single weights are better and kept"
    trainer.reporter.message(
        f"mean of the last {len(paths)} weights: dev NLL {row['dev_nll']:.2f} a sentence{bleu}; {verdict}"
    )


def describe_run(trainer: Trainer[Any], output: OutputFolder, prepared: Prepared) -> None:
    """Write `training.json` and the model card of one model folder."""
    folder, config, state = output.folder, output.system.config, trainer.state
    facts = {
        "kind": output.system.kind,
        "pair": list(config.data.languages),
        "parameters": sum(p.numel() for p in output.own(weights(trainer.model)).values()),
        "vocabulary": [len(output.system.tokenizers[side]) for side in config.data.languages],
        "data": prepared.facts,
        "updates": state.update,
        "epochs": trainer.epochs(),
        "hours": state.seconds / 3600,
        "seconds_waiting_for_data": state.waited,
        "device": describe_all(trainer.device, trainer.processes),
        "precision": config.training.precision,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "history": state.history,
    }
    write_json(folder / TRAINING, facts)
    write_card(folder)


def describe_all(device: torch.device, processes: Processes) -> str:
    """The device, and of how many processes."""
    return describe(device) if processes.world == 1 else f"{processes.world} processes, each on {describe(device)}"


# What a run's dev scores say of it at its end, in words: whether it was trained long enough, and what went wrong.

FALLING = 0.005
"""Of the dev NLL in an epoch: what falls by less is as good as still."""
RISEN = 0.01
"""Of the dev NLL above its best: what has risen by less may be chance."""
UNKNOWN = 0.05
"""Of a side's symbols: fewer unknown ones are usual with whole words."""
LEAST = 3
"""Evaluations that anything can be told from."""
BETTER = "better (--resume with higher training limits)"


def verdicts(
    history: Sequence[Mapping[str, Any]], unknown: Mapping[str, float], text: str, early: bool = False
) -> list[str]:
    """Sentences on a run whose evaluations are `history`; `unknown`: the share of unknown symbols in a text by side;
    `text`: what that is; `early`: whether the learning rate has yet to be lowered (see `Schedule.early`)."""
    rows = [row for row in history if "averaged" not in row and math.isfinite(row["dev_nll_per_word"])]
    found = [_of_scores(rows, early)] if len(rows) >= LEAST else []
    for side, share in unknown.items():
        if share > UNKNOWN:
            found.append(f'{share:.0%} of the {text} in {side} are unknown words: use text.type = "bpe"')
    return found


def _of_scores(rows: Sequence[Mapping[str, Any]], early: bool) -> str:
    nll = [row["dev_nll_per_word"] for row in rows]
    number = nll.index(min(nll))
    best, last, since = rows[number], rows[-1], len(rows) - 1 - number
    fall = _fall(rows[: number + 1]) if number else 0.0
    if best is last and fall > FALLING:
        return f"the dev NLL was still falling at the end, by {fall:.1%} an epoch: a longer run would be {BETTER}"
    risen = last["dev_nll_per_word"] / best["dev_nll_per_word"] - 1
    if risen > RISEN and last["train_nll_per_word"] < best["train_nll_per_word"]:
        advice = "the best weights are kept; raise [model.dropout], or train on more text"
        return f"overfitted since epoch {best['epoch']:.3g}: the dev NLL has risen by {risen:.1%} since; {advice}"
    if fall > FALLING and since < LEAST:
        until = f"the dev NLL fell by {fall:.1%} an epoch until epoch {best['epoch']:.3g}, and not at {since} since"
        return f"{until}, which says little: a longer run may be {BETTER}"
    still = f"hardly falls any more ({fall:.1%} an epoch)"
    if best is not last:
        still = f"no longer falls (its best was after epoch {best['epoch']:.3g})"
    if early:
        return f"the dev NLL {still} at a learning rate that was still to be lowered: a longer run may be {BETTER}"
    return f"the dev NLL {still}: this run has converged"


def _fall(rows: Sequence[Mapping[str, Any]]) -> float:
    """The share by which the dev NLL fell in an epoch, over the last one or, where evaluations are farther apart, since
    the evaluation before the last."""
    last = rows[-1]
    before = next((row for row in reversed(rows[:-1]) if row["epoch"] <= last["epoch"] - 1), rows[0])
    share = 1 - last["dev_nll_per_word"] / before["dev_nll_per_word"]
    return float(share / max(last["epoch"] - before["epoch"], 1e-9))
