"""What training tells while it runs: a live line or log lines on stderr, a JSON-lines file, TensorBoard."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rnnsearch.errors import TrainingError


@runtime_checkable
class Reporter(Protocol):
    """Is told of every update, every dev evaluation, and what else a user should know; one derived from it leaves out
    what it does not define."""

    def update(self, row: dict[str, Any]) -> None: ...

    def evaluated(self, row: dict[str, Any]) -> None: ...

    def message(self, text: str) -> None: ...


class RunLog(Reporter):
    """`log.jsonl`: one JSON object a line, `kind` = update, dev or message; a resumed run appends."""

    def __init__(self, path: Path, every: int = 20) -> None:
        """Errors: TrainingError where the file cannot be written, here and later."""
        self.path = path
        self.every = every
        try:
            self.file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> TrainingError:
        return TrainingError(f"{self.path}: cannot be written: {error.strerror or error}")

    def _write(self, kind: str, row: dict[str, Any]) -> None:
        try:
            self.file.write(json.dumps({"kind": kind, **row}, ensure_ascii=False) + "\n")
            self.file.flush()
        except OSError as error:
            raise self._refused(error) from None

    def close(self) -> None:
        """Nothing is told afterwards. What a full disk kept from being written is given up."""
        with suppress(OSError):
            self.file.close()

    def update(self, row: dict[str, Any]) -> None:
        if row["update"] % self.every == 0:
            self._write("update", row)

    def evaluated(self, row: dict[str, Any]) -> None:
        self._write("dev", row)

    def message(self, text: str) -> None:
        self._write("message", {"text": text})


class TensorBoard(Reporter):
    """Scalars for TensorBoard (extra `[track]`)."""

    def __init__(self, folder: Path, every: int = 20) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise TrainingError(
                "training.tensorboard: needs the package tensorboard: pip install 'rnnsearch[track]'"
            ) from None
        self.writer = SummaryWriter(str(folder))  # type: ignore[no-untyped-call]
        self.every = every

    def _scalars(self, group: str, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, int | float) and name != "update":
                self.writer.add_scalar(f"{group}/{name}", value, row["update"])  # type: ignore[no-untyped-call]

    def update(self, row: dict[str, Any]) -> None:
        if row["update"] % self.every == 0:
            self._scalars("train", row)

    def evaluated(self, row: dict[str, Any]) -> None:
        self._scalars("dev", row)
        self.writer.flush()  # type: ignore[no-untyped-call]

    def message(self, text: str) -> None:
        """Scalars alone are kept."""

    def close(self) -> None:
        """Nothing is told afterwards."""
        self.writer.close()  # type: ignore[no-untyped-call]


class Screen(Reporter):
    """A live line on a terminal; elsewhere a line now and then. Everything goes to the console (stderr)."""

    def __init__(self, console: Console, every_seconds: float = 30.0) -> None:
        self.console = console
        self.every = every_seconds
        self.live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self.last = time.monotonic()

    def __enter__(self) -> Screen:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def update(self, row: dict[str, Any]) -> None:
        now = time.monotonic()
        if self.live:
            self.live.update(Text(_update_line(row)))
        elif now - self.last >= self.every:
            self.last = now
            self.message(_update_line(row))

    def evaluated(self, row: dict[str, Any]) -> None:
        self.message(_dev_line(row))

    def message(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _update_line(row: dict[str, Any]) -> str:
    left = f", {minutes(row['seconds_left'])} left" if row.get("seconds_left") is not None else ""
    return (
        f"epoch {row['epoch']:.2f}  update {row['update']}  train NLL {row['nll_per_word']:.3f} a word  "
        f"{row['tokens_per_second']:,.0f} target tokens/s  waiting for data {row['waiting']:.1%}  "
        f"padding {row['padding']:.0%}  "
        f"learning rate {row['learning_rate']:.2g}{left}"
    )


def _dev_line(row: dict[str, Any]) -> str:
    bleu = f"  BLEU {row['dev_bleu']:.1f} (greedy)" if row.get("dev_bleu") is not None else ""
    aer = f"  AER {row['dev_aer']:.3f}" if row.get("dev_aer") is not None else ""
    best = "  best so far" if row["best"] else ""
    return (
        f"dev after epoch {row['epoch']:.2f}, update {row['update']}, {minutes(row['seconds'])}: NLL "
        f"{row['dev_nll']:.2f} a sentence, perplexity {row['dev_perplexity']:.2f} a symbol{bleu}{aer}{best}"
    )


def minutes(seconds: float) -> str:
    """`4 min 05 s`, `1 h 12 min`."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s"


class Together(Reporter):
    """Several reporters as one; without any, nothing is told."""

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
