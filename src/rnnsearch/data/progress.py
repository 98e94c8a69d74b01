"""Progress of the preparation of a corpus: stages with counts.

`data/prepare.py` reports to a `Progress`, at the start of each stage and after each chunk of text, never per row.
`cli/io.py` shows a live line on a terminal; `stage_lines` writes one line per stage, for log files and for `adapt`.
Before changing it: lines must fit 80 columns. Tests: tests/commands/test_prepare.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Progress = Callable[[str, int, int | None, str], None]
"""Called with the name of a stage, how much of it is done, the total if it is known, and the unit, such as "pairs"."""
Result = TypeVar("Result")


def ignore(stage: str, done: int, total: int | None, unit: str) -> None:
    """Show nothing."""


def amount(done: int, total: int | None, unit: str) -> str:
    """Return how much of a stage is done, for example "45% of 120,000 pairs"; "" if nothing is known."""
    if unit == "bytes":
        return f"{done / 1e6:.1f} MB" if total is None else f"{done / 1e6:.1f} of {total / 1e6:.1f} MB"
    if total is None:
        return f"{done:,} {unit}" if done else ""
    if unit == "shards":
        return f"{done:,} of {total:,} {unit}"
    return f"{done / max(total, 1):.0%} of {total:,} {unit}"


def stage_lines(write: Callable[[str], None]) -> Progress:
    """Return a progress that writes a line at the start of each stage, with the total if it is known."""
    stages: set[str] = set()

    def show(stage: str, _done: int, total: int | None, unit: str) -> None:
        if stage not in stages:
            stages.add(stage)
            write(stage if total is None or unit == "bytes" else f"{stage}: {total:,} {unit}")

    return show


def with_progress(results: Iterable[Result], sizes: Sequence[int], stage: str, progress: Progress) -> Iterator[Result]:
    """Yield results, and report after each of them how many pairs are done.

    Args:
        results: Results of chunks of the corpus.
        sizes: Number of pairs of each chunk.
        stage: Name of the stage.
        progress: Receiver of the reports.
    """
    total = sum(sizes)
    done = 0
    progress(stage, 0, total, "pairs")
    for result, size in zip(results, sizes, strict=True):
        yield result
        done += size
        progress(stage, done, total, "pairs")
