"""A whole training run: from a config and prepared data to a model folder."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig
from rnnsearch.data.batches import Batches
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import ConfigError, TrainingError, did_you_mean
from rnnsearch.files import write_text
from rnnsearch.kernels.recorded import WIDTH_MULTIPLE
from rnnsearch.models.build import check as check_model
from rnnsearch.models.build import unfit_options
from rnnsearch.objectives.build import check as check_objective
from rnnsearch.search.ranking import check as check_search
from rnnsearch.search.unknown_words import DICTIONARY, read_dictionary
from rnnsearch.search.unknown_words import check as check_unknown
from rnnsearch.systems.card import write_card
from rnnsearch.systems.folder import CONFIG, WEIGHTS
from rnnsearch.training.averaging import average
from rnnsearch.training.device import choose_device, describe
from rnnsearch.training.distributed import Processes, restarted
from rnnsearch.training.loop import Trainer
from rnnsearch.training.optimisers import OPTIMISERS
from rnnsearch.training.progress import JsonLines, Reporter, Silent, TensorBoard, Together
from rnnsearch.training.schedules import SCHEDULES
from rnnsearch.training.systems import Direction, System, make_system, reverse_folder
from rnnsearch.weights import fill, weights

FREE = {"max_epochs", "max_updates", "max_minutes", "patience", "threads", "save_minutes", "tensorboard", "all_reduce"}
"""Options of `[training]` that a resumed run may change."""
CHECKPOINTS = "checkpoints"
TRAINING = "training.json"


def check(config: RunConfig) -> list[str]:
    """Every fault in the names and combinations of a config, each with its dotted path; empty if none."""
    return [
        *check_model(config),
        *check_objective(config),
        *_check_training(config),
        *_check_limits(config),
        *_check_dev(config),
        *check_search(config),
        *check_unknown(config),
    ]


def _check_limits(config: RunConfig) -> list[str]:
    """A schedule that ends with the run needs to know its end."""
    training = config.training
    limits = (training.max_epochs, training.max_updates, training.max_minutes)
    if training.schedule.type != "linear" or any(limit is not None for limit in limits):
        return []
    return ["training.schedule.type: linear ends with the run; give max_epochs, max_updates or max_minutes"]


def _check_dev(config: RunConfig) -> list[str]:
    """Options that need a dev set, where there is to be none."""
    data, training = config.data, config.training
    if data.corpus is not None or data.dev is not None or data.dev_size > 0:
        return []
    needing = {
        "training.patience": training.patience is not None,
        "training.average": training.average > 0,
        "training.schedule.type": training.schedule.type == "plateau",
        "training.metric": training.metric == "bleu",
    }
    return [f"{path}: needs a dev set; give data.dev or data.dev_size" for path, used in needing.items() if used]


def _check_training(config: RunConfig) -> list[str]:
    faults = []
    optimiser, schedule = config.training.optimiser, config.training.schedule
    for path, table, kinds in (
        ("training.optimiser", optimiser, OPTIMISERS),
        ("training.schedule", schedule, SCHEDULES),
    ):
        if table.type not in kinds:
            known = list(kinds)
            hint = did_you_mean(table.type, known)
            faults.append(f'{path}.type: must be one of {", ".join(known)}; got "{table.type}"{hint}')
            continue
        kind = kinds[table.type]
        given = {key for key, value in table if value is not None}
        always = {"type", *(kind.takes & given)}
        faults += unfit_options(path, table, kind.needs, always, f"{kind.name} {path.rpartition('.')[2]}")
    return faults


def train(
    config: RunConfig,
    prepared: Prepared,
    folder: Path,
    reporter: Reporter,
    resume: bool = False,
    processes: Processes | None = None,
) -> str:
    """Train `config` on prepared data into the model folder `folder`; returns why training ended.

    With `resume`, or in processes that `torchrun` started anew, it goes on from the folder's last checkpoint, if there
    is one. All `processes` call this together; the first alone writes and reports. Errors: TrainingError where the
    folder holds a run and `resume` was not asked for, or the run is another; Interrupted after saving.
    """
    processes = processes or Processes()
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    device = _device(config, processes)
    resume = resume or processes.any(restarted())
    processes.once(lambda: _open_folder(config, prepared, folder, resume))
    given = config
    config = processes.once(lambda: _with_dictionary(given, folder))
    with ExitStack() as stack:
        reporters: list[Reporter] = [Silent()]
        if processes.first:
            reporters = [reporter, stack.enter_context(closing(JsonLines(folder / "log.jsonl")))]
            if config.training.tensorboard:
                reporters.append(stack.enter_context(closing(TensorBoard(folder / "tensorboard"))))
        return _train(config, prepared, folder, device, Together(*reporters), processes)


def _device(config: RunConfig, processes: Processes) -> torch.device:
    """Errors: ConfigError for a device that is not there, and for an option of several processes where there is one."""
    many = processes.world > 1
    if config.training.all_reduce is not None and not many:
        what = "one process, which has nothing to send"
        raise ConfigError([f"training.all_reduce: has no effect with {what}; remove it, or start several by torchrun"])
    device = choose_device(config.training.device, local_rank=processes.local_rank if many else None)
    if device.index is not None:
        torch.cuda.set_device(device)
    return device


def _open_folder(config: RunConfig, prepared: Prepared, folder: Path, resume: bool) -> None:
    last = folder / CHECKPOINTS / "last"
    _refuse_other_run(config, folder, last, resume)
    _refuse_other_data(prepared, folder, last)
    if config.objective.supervision is not None and prepared.train.links is None:
        raise TrainingError(f"{prepared.folder}: has no word alignments to supervise attention with; prepare it again")
    try:
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"{folder}: must be a folder that can be written to; got: {error.strerror}") from None


def _with_dictionary(config: RunConfig, folder: Path) -> RunConfig:
    """The config with its dictionary of unknown words copied into the model folder, which holds all that it needs.

    Errors: DataError for a missing or unfit file.
    """
    if config.search.dictionary is None:
        return config
    entries = read_dictionary(config.base / config.search.dictionary)
    write_text(folder / DICTIONARY, "".join(f"{word}\t{translation}\n" for word, translation in entries.items()))
    return config.model_copy(update={"search": config.search.model_copy(update={"dictionary": DICTIONARY})})


def _train(
    config: RunConfig,
    prepared: Prepared,
    folder: Path,
    device: torch.device,
    everyone: Reporter,
    processes: Processes,
) -> str:
    system = make_system(config, prepared, folder, device, processes)
    trainer = _trainer(config, prepared, system, folder, device, everyone, processes)
    size = sum(p.numel() for p in trainer.model.parameters())
    left_out = trainer.batches.left_out
    everyone.message(
        f"{size:,} parameters; {len(prepared.train):,} training pairs"
        + (f", {left_out:,} left out as longer than training.max_length" if left_out else "")
        + f"; {config.training.precision} on {describe_all(device, processes)}"
    )
    if processes.agreed(trainer.last.is_dir()):
        trainer.resume()
        everyone.message(f"going on from update {trainer.state.update} ({trainer.last})")
    _agree(trainer, prepared, processes)
    if processes.first:
        write_text(folder / CONFIG, run_config.dump(config))
    reason = trainer.run()
    _finish(trainer, system.directions, prepared, everyone)
    everyone.message(f"training ended: {reason}")
    return reason


def _agree(trainer: Trainer[Any], prepared: Prepared, processes: Processes) -> None:
    """All processes begin from the same data, checkpoint and weights.

    Errors: TrainingError in those that see others, as machines do that have no file system in common.
    """
    mine = (prepared.facts["sha256"], trainer.state.update)
    others = processes.agreed(mine)
    if processes.any(mine != others):
        raise TrainingError(
            f"{trainer.folder.parent}: all processes must see the same prepared data and checkpoint; got different "
            "ones (put the run's folder on a file system that all machines share)"
        )
    processes.same_weights(list(weights(trainer.model).values()))


def describe_all(device: torch.device, processes: Processes) -> str:
    """The device, and of how many processes."""
    return describe(device) if processes.world == 1 else f"{processes.world} processes, each on {describe(device)}"


def _refuse_other_run(config: RunConfig, folder: Path, last: Path, resume: bool) -> None:
    if not last.is_dir():
        folders = [folder] if config.objective.symmetry is None else [folder, reverse_folder(folder)]
        for place in folders:
            if (place / WEIGHTS).exists():
                raise TrainingError(f"{place}: holds a model without a checkpoint to go on from; name another folder")
        return
    if not resume:
        raise TrainingError(f"{folder}: holds a training run already; go on with --resume, or name another folder")
    differences = same_run(run_config.load(folder / CONFIG), config)
    if differences:
        raise TrainingError(
            f"{folder}: its run differs from this config in {', '.join(differences)}; "
            "change it back, or name another folder"
        )


def _refuse_other_data(prepared: Prepared, folder: Path, last: Path) -> None:
    """A run whose corpus was prepared anew from other text must not go on: its ids would mean other words."""
    if not (last.is_dir() and (folder / TRAINING).is_file()):
        return
    before = json.loads((folder / TRAINING).read_text(encoding="utf-8"))["data"]["sha256"]
    now = prepared.facts["sha256"]
    if before != now:
        raise TrainingError(
            f"{folder}: its run was on a corpus with SHA-256 {before[:16]}...; got one with {now[:16]}... "
            f"in {prepared.folder}; name another folder"
        )


def same_run(before: RunConfig, now: RunConfig) -> list[str]:
    """The dotted paths in which two configs differ, but for `[search]` and what a resumed run may change."""

    def flat(config: RunConfig) -> dict[str, Any]:
        tables = config.model_dump(include={"data", "text", "model", "objective", "training"})
        tables["training"] = {k: v for k, v in tables["training"].items() if k not in FREE}
        return dict(_flatten(tables, ""))

    old, new = flat(before), flat(now)
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))


def _flatten(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _trainer(
    config: RunConfig,
    prepared: Prepared,
    system: System[Any],
    folder: Path,
    device: torch.device,
    reporter: Reporter,
    processes: Processes,
) -> Trainer[Any]:
    training = config.training
    rank, world = processes.rank, processes.world

    def new_best(trainer: Trainer[Any]) -> None:
        for direction in system.directions:
            direction.save(weights(trainer.model))
            describe_run(trainer, direction, prepared)

    return Trainer(
        config=config,
        model=system.model,
        optimiser=OPTIMISERS[training.optimiser.type].make(list(system.model.parameters()), training.optimiser),
        schedule=SCHEDULES[training.schedule.type](training.schedule),
        objective=system.objective,
        batches=Batches(
            prepared.train,
            training.batch,
            training.max_length,
            training.seed,
            rank=rank,
            world=world,
            multiple=WIDTH_MULTIPLE if device.type == "cuda" else 1,
        ),
        validation=system.validation,
        device=device,
        folder=folder / CHECKPOINTS,
        reporter=reporter,
        new_best=new_best,
        processes=processes,
    )


def _finish(trainer: Trainer[Any], directions: Sequence[Direction], prepared: Prepared, reporter: Reporter) -> None:
    """Average the last evaluations' weights where asked, and write the card."""
    processes, history = trainer.processes, trainer.state.history
    paths = processes.agreed(trainer.to_average())
    if trainer.config.training.average > 1 and len(paths) > 1 and "averaged" not in history[-1]:
        _average(trainer, directions, paths, reporter)
    for direction in directions:
        if processes.first and (direction.folder / WEIGHTS).is_file():
            describe_run(trainer, direction, prepared)


def _average(trainer: Trainer[Any], directions: Sequence[Direction], paths: list[Path], reporter: Reporter) -> None:
    """The mean of the last evaluated weights becomes the model if the dev set says that it beats the best of them."""
    own = {name: parameter.detach().clone() for name, parameter in weights(trainer.model).items()}
    if trainer.processes.first:
        fill(trainer.model, average(paths))
    trainer.processes.same_weights(list(weights(trainer.model).values()))
    row = trainer.score_dev()
    assert row is not None
    if row["best"] and trainer.processes.first:
        for direction in directions:
            direction.save(weights(trainer.model))
    fill(trainer.model, own)
    history = trainer.state.history
    history.append({**row, "train_nll": history[-1]["train_nll"], "averaged": len(paths)})
    trainer.save()
    bleu = "" if row["dev_bleu"] is None else f", BLEU {row['dev_bleu']:.1f} (greedy)"
    verdict = "kept" if row["best"] else "the best single weights are better and kept"
    reporter.message(f"mean of the last {len(paths)} weights: dev NLL {row['dev_nll']:.2f} a sentence{bleu}; {verdict}")


def describe_run(trainer: Trainer[Any], direction: Direction, prepared: Prepared) -> None:
    """Write `training.json` and the model card of one direction's model folder."""
    folder, config, state = direction.folder, direction.config, trainer.state
    facts = {
        "pair": [config.data.source, config.data.target],
        "parameters": sum(p.numel() for p in direction.own(weights(trainer.model)).values()),
        "vocabulary": [len(direction.source), len(direction.target)],
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
    write_text(folder / TRAINING, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    write_card(folder)
