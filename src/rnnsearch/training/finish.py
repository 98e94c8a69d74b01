"""The end of a run: the mean of the last weights, where it is better, and what the model folder says of the run."""

import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rnnsearch.data.prepared import Prepared
from rnnsearch.device import describe
from rnnsearch.errors import ModelError
from rnnsearch.files import write_json
from rnnsearch.processes import Processes
from rnnsearch.systems.card import TRAINING, write_card
from rnnsearch.systems.folder import WEIGHTS
from rnnsearch.training.loop import Trainer
from rnnsearch.training.tasks import OutputFolder
from rnnsearch.weights import fill, read_weights, weights


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
        "pair": list(config.data.sides),
        "parameters": sum(p.numel() for p in output.own(weights(trainer.model)).values()),
        "vocabulary": [len(output.system.tokenizers[side]) for side in config.data.sides],
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
