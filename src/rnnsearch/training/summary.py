"""Estimates before a run; averaging, cards and verdicts after it.

`training/run.py` reports an `estimate` of time and memory before the first update. In the end, `finish` averages
weights and writes the model card, and `verdicts` tells whether the run was long enough.

`describe_run` writes `training.json`, whose keys `systems/card.py` and `evaluation/report.py` read.
"""

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

from rnnsearch.accel.cuda_graphs import MIN_OCCURRENCES
from rnnsearch.data.batches import Batch
from rnnsearch.data.prepared import Prepared
from rnnsearch.data.tasks import task_ratios
from rnnsearch.errors import ModelError
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.ops.device import describe_device, precision
from rnnsearch.systems.card import TRAINING_FILE, direction_history, write_card
from rnnsearch.systems.folder import WEIGHTS
from rnnsearch.systems.system import System
from rnnsearch.training.loop import Trainer
from rnnsearch.training.progress import format_duration
from rnnsearch.training.tasks import OutputFolder
from rnnsearch.utils.distributed import Processes
from rnnsearch.utils.files import write_json
from rnnsearch.utils.weights import copy_weights, named_weights, read_weights

NUM_TRIAL_BATCHES = 4
"""Batches run for the estimate; the first is slower than the others and does not count."""
MAX_TRIAL_SECONDS = 1.0
"""Duration of the batches that count, after which no further one is run."""
MOMENT_BYTES = 8
"""Bytes per parameter that an optimiser adds (Adam's two moments) at the first update."""
NOTABLE_FALL = 0.005
"""Relative fall of the dev NLL per epoch below which it counts as constant."""
NOTABLE_RISE = 0.01
"""Relative rise of the dev NLL above its best below which it may be chance."""
NOTABLE_UNKNOWN = 0.05
"""Fraction of unknown tokens above which whole words are a poor choice."""
MIN_EVALUATIONS = 3
"""Evaluations needed for a verdict."""
LONGER_RUN = "better (--resume with higher training limits)"
"""Advice in verdicts on runs that were too short."""


def estimate(trainer: Trainer[Any]) -> str | None:
    """Return the expected time and memory of a run in words; None if it ends before they are measured.

    It is also None if a batch does not fit into memory.

    Runs forward and backward passes over the first batches (on a GPU repeatedly, until CUDA graphs are replayed) and
    discards the gradients: neither weights nor random numbers of the run change.
    """
    training = trainer.training
    if training.max_updates is not None and training.max_updates * training.batch.accumulate <= NUM_TRIAL_BATCHES:
        return None
    batch_durations: list[float] = []
    repetitions = MIN_OCCURRENCES + 2 if trainer.device.type == "cuda" else 1
    try:
        for batch in islice(trainer.batches.epoch(0), NUM_TRIAL_BATCHES):
            for _ in range(repetitions):
                duration = _time_pass(trainer, batch)
            batch_durations.append(duration)
            if sum(batch_durations[1:]) > MAX_TRIAL_SECONDS:
                break
    except torch.OutOfMemoryError:
        return None
    finally:
        memory = _peak_memory(trainer)
        for parameter in trainer.updater.gradients.parameters:
            parameter.grad = None
    counted = batch_durations[1:] or batch_durations
    batch_seconds = sum(counted) / len(counted)
    epoch_seconds = batch_seconds * trainer.batches.count(0)
    limits = [] if training.max_epochs is None else [training.max_epochs * epoch_seconds]
    if training.max_updates is not None:
        limits.append(training.max_updates * training.batch.accumulate * batch_seconds)
    if training.max_minutes is not None:
        limits.append(60 * training.max_minutes)
    total = f", at most {format_duration(min(limits))} in all" if limits else ""
    gib = "" if memory is None else f"; {memory / 2**30:.1f} GiB of memory"
    return f"about {format_duration(epoch_seconds)} per epoch on this machine{total}{gib}"


def _time_pass(trainer: Trainer[Any], batch: Batch) -> float:
    """Return the seconds of a forward and backward pass."""
    start = time.monotonic()
    rng = BatchRng(trainer.training.seed, trainer.device)
    with precision(trainer.device, trainer.training.precision):
        loss = trainer.task.loss(batch.to(trainer.device), rng)
    loss.total.backward()  # type: ignore[no-untyped-call]
    float(loss.nll)  # waits for the device
    return time.monotonic() - start


def _peak_memory(trainer: Trainer[Any]) -> int | None:
    """Return the peak memory of this process so far plus the optimiser's moments in bytes, or None if unknown."""
    moments = MOMENT_BYTES * (
        sum(p.numel() for p in trainer.updater.gradients.parameters) - trainer.task.tables.num_mapped
    )
    if trainer.device.type == "cuda":
        return torch.cuda.max_memory_allocated(trainer.device) + moments
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # ru_maxrss is in bytes on macOS and in KiB elsewhere.
    return peak * (1 if sys.platform == "darwin" else 1024) + moments


def finish(trainer: Trainer[Any], outputs: Sequence[OutputFolder], prepared: Prepared) -> None:
    """Average the weights of the last evaluations if configured, and write the cards of this process's `outputs`."""
    paths = trainer.processes.broadcast(trainer.evaluated_weights())
    if trainer.training.average > 1 and len(paths) > 1 and "averaged" not in trainer.state.history[-1]:
        _average(trainer, outputs, paths)
    for output in outputs:
        if (output.folder / WEIGHTS).is_file():
            describe_run(trainer, output, prepared)


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights in several files; raise ModelError if they have different parameters."""
    total: dict[str, Tensor] = {}
    for path in paths:
        tensors = read_weights(path)
        if total and {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in total.items()}:
            raise ModelError(f"{path}: its parameters are not those of {paths[0]}; only one model's can be averaged")
        for name, tensor in tensors.items():
            # In fp64, so that rounding errors of the sum do not reach the fp32 mean.
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).to(torch.float32) for name, tensor in total.items()}


def _average(trainer: Trainer[Any], outputs: Sequence[OutputFolder], paths: list[Path]) -> None:
    """Save the mean of the last evaluated weights as the model if its dev score is the best."""
    # Copies, because `copy_weights` overwrites the parameters in place.
    current = {name: parameter.detach().clone() for name, parameter in named_weights(trainer.model).items()}
    if trainer.processes.is_first:
        copy_weights(trainer.model, average_weights(paths))
    trainer.processes.broadcast_weights(list(named_weights(trainer.model).values()))
    row = trainer.evaluate_dev()
    assert row is not None
    if row["best"]:
        for output in outputs:
            output.save(named_weights(trainer.model))
    # The checkpoint continues from the last weights, not from their mean.
    copy_weights(trainer.model, current)
    history = trainer.state.history
    history.append({**row, "train_nll": history[-1]["train_nll"], "averaged": len(paths)})
    trainer.save()
    bleu = "" if row["dev_bleu"] is None else f", BLEU {row['dev_bleu']:.1f} (greedy)"
    verdict = "saved as the model" if row["best"] else "the best single weights are better and stay the model"
    trainer.reporter.message(
        f"mean of the last {len(paths)} weights: dev NLL {row['dev_nll']:.2f} per sentence{bleu}; {verdict}"
    )


def describe_run(trainer: Trainer[Any], output: OutputFolder, prepared: Prepared, direction: str | None = None) -> None:
    """Write `training.json` and the model card of one model folder.

    Args:
        trainer: The run.
        output: The model folder.
        prepared: The corpus.
        direction: Name of the direction that the folder has the model of, if the run trains a multi-way model.
    """
    config = output.system.config
    state = trainer.state
    facts = {
        "kind": output.system.kind,
        "pair": list(config.data.languages),
        **_direction_facts(output.system),
        "parameters": sum(p.numel() for p in output.select_weights(named_weights(trainer.model)).values()),
        "vocabulary": [len(output.system.tokenizers[language]) for language in config.data.text_languages],
        "data": prepared.facts,
        "updates": state.update,
        "epochs": trainer.epochs(),
        "hours": state.seconds / 3600,
        "seconds_waiting_for_data": state.waited,
        "device": describe_devices(trainer.device, trainer.processes),
        "precision": config.training.precision,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "history": state.history if direction is None else direction_history(state.history, direction),
    }
    write_json(output.folder / TRAINING_FILE, facts)
    write_card(output.folder)


def _direction_facts(system: System[Any]) -> dict[str, Any]:
    """Return the names of the directions of a multi-way model, and the mixing ratios of its tasks if it has any."""
    if system.kind != "multiway":
        return {}
    ratios = {task.name: ratio for task, ratio in task_ratios(system.config.data.tasks).items()}
    return {"directions": [direction.name for direction in system.directions], **({"tasks": ratios} if ratios else {})}


def describe_devices(device: torch.device, processes: Processes) -> str:
    """Return the device in words, and the number of processes if there are several."""
    if processes.world_size == 1:
        return describe_device(device)
    return f"{processes.world_size} processes, each on {describe_device(device)}"


def verdicts(
    history: Sequence[Mapping[str, Any]], unknown: Mapping[str, float], text: str, early: bool = False
) -> list[str]:
    """Return sentences on how a run went: trained long enough, overfitted, too many unknown words.

    Args:
        history: One row per dev evaluation.
        unknown: Fraction of unknown tokens per language in `text`.
        text: Name of the text whose unknown tokens were counted.
        early: True if the learning rate has yet to be lowered (see `Schedule.awaits_decay`).
    """
    rows = [row for row in history if "averaged" not in row and math.isfinite(row["dev_nll_per_word"])]
    # With a reward, only an agent is trained, and the NLL is that of a frozen model.
    has_verdict = len(rows) >= MIN_EVALUATIONS and "dev_reward" not in rows[-1]
    sentences = [_dev_score_verdict(rows, early)] if has_verdict else []
    for language, fraction in unknown.items():
        if fraction > NOTABLE_UNKNOWN:
            sentences.append(f'{fraction:.0%} of the {text} in {language} are unknown words: use text.type = "bpe"')
    return sentences


def _dev_score_verdict(rows: Sequence[Mapping[str, Any]], early: bool) -> str:
    nll = [row["dev_nll_per_word"] for row in rows]
    index = nll.index(min(nll))
    best = rows[index]
    last = rows[-1]
    num_since_best = len(rows) - 1 - index
    fall = _fall_per_epoch(rows[: index + 1]) if index else 0.0
    if best is last and fall > NOTABLE_FALL:
        return f"the dev NLL was still falling at the end, by {fall:.1%} per epoch: a longer run would be {LONGER_RUN}"
    rise = last["dev_nll_per_word"] / best["dev_nll_per_word"] - 1
    if rise > NOTABLE_RISE and last["train_nll_per_word"] < best["train_nll_per_word"]:
        advice = "the model has the best weights; raise [model.dropout] or train on more text"
        return f"overfitted since epoch {best['epoch']:.3g}: the dev NLL has risen by {rise:.1%} since; {advice}"
    if fall > NOTABLE_FALL and num_since_best < MIN_EVALUATIONS:
        return (
            f"the dev NLL fell by {fall:.1%} per epoch until epoch {best['epoch']:.3g}, but not in the "
            f"{num_since_best} evaluation{'s' if num_since_best > 1 else ''} since: a longer run may be {LONGER_RUN}"
        )
    trend = f"hardly falls any more ({fall:.1%} per epoch)"
    if best is not last:
        trend = f"no longer falls (its best was after epoch {best['epoch']:.3g})"
    if early:
        return f"the dev NLL {trend} at a learning rate that was still to be lowered: a longer run may be {LONGER_RUN}"
    return f"the dev NLL {trend}: this run has converged"


def _fall_per_epoch(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the relative fall of the dev NLL per epoch, over the last epoch or the last evaluation interval."""
    last = rows[-1]
    earlier = next((row for row in reversed(rows[:-1]) if row["epoch"] <= last["epoch"] - 1), rows[0])
    fall = 1 - last["dev_nll_per_word"] / earlier["dev_nll_per_word"]
    return float(fall / max(last["epoch"] - earlier["epoch"], 1e-9))
