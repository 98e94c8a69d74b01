"""The end of a run: the mean of the last weights, where it is better, and what the model folder says of the run."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rnnsearch.data.prepared import Prepared
from rnnsearch.device import describe
from rnnsearch.files import write_text
from rnnsearch.processes import Processes
from rnnsearch.systems.card import TRAINING, write_card
from rnnsearch.systems.folder import WEIGHTS
from rnnsearch.training.averaging import average
from rnnsearch.training.loop import Trainer
from rnnsearch.training.tasks import Output
from rnnsearch.weights import fill, weights


def finish(trainer: Trainer[Any], outputs: Sequence[Output], prepared: Prepared) -> None:
    """Average the last evaluations' weights where asked, and write the card."""
    processes, history = trainer.processes, trainer.state.history
    paths = processes.agreed(trainer.to_average())
    if trainer.training.average > 1 and len(paths) > 1 and "averaged" not in history[-1]:
        _average(trainer, outputs, paths)
    for output in outputs:
        if processes.first and (output.folder / WEIGHTS).is_file():
            describe_run(trainer, output, prepared)


def _average(trainer: Trainer[Any], outputs: Sequence[Output], paths: list[Path]) -> None:
    """The mean of the last evaluated weights becomes the model if the dev set says that it beats the best of them."""
    own = {name: parameter.detach().clone() for name, parameter in weights(trainer.model).items()}
    if trainer.processes.first:
        fill(trainer.model, average(paths))
    trainer.processes.same_weights(list(weights(trainer.model).values()))
    row = trainer.score_dev()
    assert row is not None
    if row["best"] and trainer.processes.first:
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


def describe_run(trainer: Trainer[Any], output: Output, prepared: Prepared) -> None:
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
    write_text(folder / TRAINING, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    write_card(folder)


def describe_all(device: torch.device, processes: Processes) -> str:
    """The device, and of how many processes."""
    return describe(device) if processes.world == 1 else f"{processes.world} processes, each on {describe(device)}"
