"""Progress of training: on the screen, in a JSON-lines file and in TensorBoard.

The training loop reports every update, evaluation and message to a `Reporter`; `ReporterGroup` forwards them to
several.

`cli/train.py` shows a `Screen`; `training/run.py` adds `RunLog` and `TensorBoard`. The keys of a row (`update`,
`epoch`, `nll_per_word`, `tokens_per_second`, ...) are the format of `log.jsonl`; rows of evaluations are also the
history in `training.json`.
"""

import json
import time
from abc import abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rnnsearch.errors import RnnsearchError, TrainingError
from rnnsearch.utils.files import append_line


@runtime_checkable
class Reporter(Protocol):
    """Receiver of updates, dev evaluations and messages; a subclass ignores what it does not define.

    `update` gets a row per update of the parameters and `evaluated` one per evaluation on the dev set, both made by
    `Trainer` (`training/loop.py`); `message` gets a sentence for the user.
    """

    def update(self, row: dict[str, Any]) -> None: ...

    def evaluated(self, row: dict[str, Any]) -> None: ...

    def message(self, text: str) -> None: ...


class PeriodicReporter(Reporter):
    """A reporter that summarises several updates in one line."""

    def __init__(self) -> None:
        self._pending: list[dict[str, Any]] = []

    def update(self, row: dict[str, Any]) -> None:
        self._pending.append(row)
        if self.due(row["update"]):
            self.line(_summarise(self._pending))
            self._pending = []

    def due(self, update: int) -> bool:
        """Return True if a line is due after this update."""
        return update % 20 == 0

    @abstractmethod
    def line(self, row: dict[str, Any]) -> None:
        """Report the updates since the last line."""


REWARD_KEYS = ("reward", "reward_variance", "quality", "lagging", "proportion")
"""Values of sequence objectives, which vary more than those of a single update show."""


def _summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last row, with the NLL per word, speed, waiting time and rewards averaged over all rows."""
    tokens = sum(row["tokens"] for row in rows)
    seconds = [row["tokens"] / row["tokens_per_second"] for row in rows]
    rewards = {}
    for name in REWARD_KEYS:
        if name in rows[-1]:
            rewards[name] = sum(row[name] for row in rows) / len(rows)
    return rows[-1] | {
        **rewards,
        "tokens": tokens,
        # Weighted by tokens: the mean over words, not over updates.
        "nll_per_word": sum(row["nll_per_word"] * row["tokens"] for row in rows) / tokens,
        "tokens_per_second": tokens / sum(seconds),
        "waiting": sum(row["waiting"] * duration for row, duration in zip(rows, seconds, strict=True)) / sum(seconds),
    }


NOTABLE_WAITING = 0.05
"""Fraction of the time from which waiting for data is shown."""
LOG_FILE = "log.jsonl"
"""File name of the log in a run's folder."""


class RunLog(PeriodicReporter):
    """The log file: one JSON object per line, with `kind` update, dev or message; a resumed run appends."""

    def __init__(self, path: Path) -> None:
        """Open the file; here and later, TrainingError is raised if it cannot be written."""
        super().__init__()
        self.path = path
        try:
            path.open("a").close()
        except OSError as error:
            raise TrainingError(f"{path}: cannot be written: {error.strerror or error}") from None

    def _write(self, kind: str, row: dict[str, Any]) -> None:
        try:
            append_line(self.path, json.dumps({"kind": kind, **row}, ensure_ascii=False))
        except RnnsearchError as error:
            raise TrainingError(str(error)) from None

    def line(self, row: dict[str, Any]) -> None:
        self._write("update", row)

    def evaluated(self, row: dict[str, Any]) -> None:
        self._write("dev", row)

    def message(self, text: str) -> None:
        self._write("message", {"text": text})


class TensorBoard(PeriodicReporter):
    """Scalars for TensorBoard (the package `tensorboard`)."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise TrainingError("training.tensorboard: needs another package: pip install tensorboard") from None
        self.writer = SummaryWriter(str(folder))  # type: ignore[no-untyped-call]

    def _scalars(self, group: str, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, int | float) and name != "update":
                self.writer.add_scalar(f"{group}/{name}", value, row["update"])  # type: ignore[no-untyped-call]

    def line(self, row: dict[str, Any]) -> None:
        self._scalars("train", row)

    def evaluated(self, row: dict[str, Any]) -> None:
        self._scalars("dev", row)
        self.writer.flush()  # type: ignore[no-untyped-call]

    def message(self, text: str) -> None:
        """Ignore messages: TensorBoard stores only scalars."""

    def close(self) -> None:
        """Close the event file."""
        self.writer.close()  # type: ignore[no-untyped-call]


class Screen(PeriodicReporter):
    """A live line on a terminal, updated every second; a line every `every_seconds` elsewhere."""

    def __init__(self, console: Console, every_seconds: float = 30.0) -> None:
        """Initialise the screen; `every_seconds` applies if the console is not a terminal."""
        super().__init__()
        self.console = console
        self.live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self.interval_seconds = 1.0 if self.live else every_seconds
        self.next_due = time.monotonic() + (0.0 if self.live else self.interval_seconds)

    def __enter__(self) -> "Screen":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def due(self, update: int) -> bool:
        now = time.monotonic()
        if now < self.next_due:
            return False
        self.next_due = now + self.interval_seconds
        return True

    def line(self, row: dict[str, Any]) -> None:
        if self.live:
            self.live.update(Text(_update_line(row)))
        else:
            self.message(_update_line(row))

    def evaluated(self, row: dict[str, Any]) -> None:
        self.message(_dev_line(row))

    def message(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


# Lines fit 80 columns; the log file has all values.


def _update_line(row: dict[str, Any]) -> str:
    left = f"  {format_duration(row['seconds_left'])} left" if row.get("seconds_left") is not None else ""
    waiting = f"  waiting for data {row['waiting']:.0%}" if row["waiting"] >= NOTABLE_WAITING else ""
    reward = f"reward {row['reward']:.3f}  " if "reward" in row else ""
    return (
        f"epoch {row['epoch']:.2f}  NLL {row['nll_per_word']:.2f} per word  {reward}"
        f"{row['tokens_per_second']:,.0f} tokens/s  lr {row['learning_rate']:.2g}{left}{waiting}"
    )


def _dev_line(row: dict[str, Any]) -> str:
    bleu = f"  BLEU {row['dev_bleu']:.1f}" if row.get("dev_bleu") is not None else ""
    aer = f"  AER {row['dev_aer']:.3f}" if row.get("dev_aer") is not None else ""
    reward = f"  reward {row['dev_reward']:.3f}  lagging {row['dev_lagging']:.1f}" if "dev_reward" in row else ""
    best = "  best so far" if row["best"] else ""
    return (
        f"dev, epoch {row['epoch']:.2f}: NLL {row['dev_nll']:.2f} per sentence  "
        f"perplexity {row['dev_perplexity']:.2f}{bleu}{aer}{reward}{best}{_direction_scores(row)}"
    )


def _direction_scores(row: dict[str, Any]) -> str:
    """Return a line with the scores of each direction and task of a multi-way model; empty for other models."""
    scores = []
    for prefix in ("dev_nll ", "dev_task_nll "):
        for direction in [key.removeprefix(prefix) for key in row if key.startswith(prefix)]:
            bleu = row.get(f"dev_bleu {direction}")
            score = f"NLL {row[prefix + direction]:.2f}" if bleu is None else f"BLEU {bleu:.1f}"
            scores.append(f"{direction} {score}")
    return f"\n  {', '.join(scores)}" if scores else ""


def format_duration(seconds: float) -> str:
    """Return a duration in words, such as `4 min 05 s` or `1 h 12 min`."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s"


class ReporterGroup(Reporter):
    """Several reporters as one."""

    def __init__(self, *reporters: Reporter) -> None:
        self.reporters = reporters

    def update(self, row: dict[str, Any]) -> None:
        for reporter in self.reporters:
            reporter.update(row)

    def evaluated(self, row: dict[str, Any]) -> None:
        for reporter in self.reporters:
            reporter.evaluated(row)

    def message(self, text: str) -> None:
        for reporter in self.reporters:
            reporter.message(text)
