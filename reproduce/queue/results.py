"""States and results of the trainings of a queue, as files and tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproduce.queue.plan import Plan, Training
from rnnsearch.errors import ConfigError
from rnnsearch.systems.card import best_evaluation, load_training_facts
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown

PAGE = "table.md"
FILE = "queue.json"
CHECKPOINT = Path("checkpoints") / "last" / "state.json"
METRICS = ("BLEU", "chrF2")


@dataclass
class Progress:
    """State of a training between calls, stored as `NAME.json` in the output folder."""

    training: Training
    finished: bool = False
    """True if training ended by itself."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """Scores by test set and metric."""
    error: str = ""
    """Reason for a failure in this call."""

    @classmethod
    def load(cls, training: Training) -> Progress:
        """Load the state of earlier calls.

        Raises:
            ConfigError: The stored state is that of a training with other settings.
        """
        path = _state_file(training)
        if not path.is_file():
            return cls(training)
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["training"] == training.identity:
            return cls(training, stored["finished"], stored["scores"])
        if (training.folder / CHECKPOINT).is_file():
            raise ConfigError([f"{path}: {training.name} had other settings; choose another name or --output"])
        return cls(training)

    def save(self) -> None:
        """Store the state."""
        stored = {"training": self.training.identity, "finished": self.finished, "scores": self.scores}
        write_json(_state_file(self.training), stored)

    @property
    def missing_tests(self) -> list[str]:
        """Names of the test sets without scores."""
        return [test.name for test in self.training.tests if test.name not in self.scores]

    @property
    def is_done(self) -> bool:
        """True if nothing is left to do."""
        return self.finished and not self.missing_tests

    @property
    def state(self) -> str:
        """State in words."""
        if self.error:
            return f"failed: {self.error}"
        if not self.finished:
            return "unfinished" if (self.training.folder / CHECKPOINT).is_file() else "not started"
        return "not evaluated" if self.missing_tests else ""

    def facts(self) -> dict[str, Any]:
        """Return the facts about the training so far."""
        facts = load_training_facts(self.training.folder)
        row: dict[str, Any] = {"name": self.training.name, "state": self.state or "finished", "scores": self.scores}
        row["settings"] = list(self.training.settings)
        checkpoint = self.training.folder / CHECKPOINT
        if checkpoint.is_file():
            state = json.loads(checkpoint.read_text(encoding="utf-8"))
            row |= {"updates": state["update"], "minutes": state["seconds"] / 60}
        if facts:
            best = best_evaluation(facts)
            row |= {"parameters": facts["parameters"], "device": facts["device"], "torch": facts["torch"]}
            row |= {"best_epoch": best.get("epoch"), "dev_nll": best.get("dev_nll")}
            row["epochs"] = facts["history"][-1]["epoch"] if facts["history"] else facts["epochs"]
        return row


def _state_file(training: Training) -> Path:
    return training.folder.with_name(f"{training.folder.name}.json")


def read_scores(path: Path) -> dict[str, float]:
    """Return the scores by metric in a file of `rnnsearch evaluate --output`."""
    values = json.loads(path.read_text(encoding="utf-8"))
    return {score["name"]: score["value"] for score in values["scores"] if score["name"] in METRICS}


def write_results(plan: Plan, all_progress: Sequence[Progress], output: Path, command: str) -> None:
    """Write the table in Markdown and the facts in JSON."""
    facts = [progress.facts() for progress in all_progress]
    lines = [
        f"# {plan.title}",
        "",
        f"Command: `{command}`.",
        "",
        as_markdown(_table(plan, all_progress, facts)).rstrip(),
    ]
    devices = sorted({f"{row['device']}, torch {row['torch']}" for row in facts if "device" in row})
    if devices:
        lines += [
            "",
            f"Trained on {'; '.join(devices)}; minutes are those of trainings that may have run side by side.",
        ]
    write_text(output / PAGE, "\n".join(lines).rstrip() + "\n")
    write_json(output / FILE, facts)


def _table(plan: Plan, all_progress: Sequence[Progress], facts: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return a header and a row per training."""
    tests = list(dict.fromkeys(test.name for training in plan.trainings for test in training.tests))
    columns = [f"{metric}, {test}" for test in tests for metric in METRICS]
    rows = [["System", "Parameters", "Updates", "Epochs (best)", "Minutes", "Dev NLL", *columns, ""]]
    for progress, row in zip(all_progress, facts, strict=True):
        cells = [row["name"], _cell(row, "parameters", "{:,}"), _cell(row, "updates", "{:,}")]
        epochs = _cell(row, "epochs", "{:.0f}")
        best = _cell(row, "best_epoch", "{:.0f}")
        cells += [f"{epochs} ({best})" if best else epochs]
        cells += [_cell(row, "minutes", "{:.1f}"), _cell(row, "dev_nll", "{:.1f}")]
        cells += [_cell(progress.scores.get(test, {}), metric, "{:.1f}") for test in tests for metric in METRICS]
        rows.append([*cells, progress.state])
    return rows


def _cell(row: dict[str, Any], key: str, form: str) -> str:
    return "" if row.get(key) is None else form.format(row[key])
