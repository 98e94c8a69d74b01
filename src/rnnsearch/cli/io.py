"""What the commands share: reading lines, writing results, messages on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from rnnsearch.errors import DataError
from rnnsearch.utils.files import atomic_file, clash
from rnnsearch.utils.stdio import lines_of

if TYPE_CHECKING:
    from rich.console import Console


def use_threads(threads: int | None) -> None:
    """Compute on so many threads, where a number is given."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def console() -> Console:
    """The console for messages and progress: stderr."""
    from rich.console import Console

    return Console(stderr=True)


def say(text: str) -> None:
    """A message to the user, on stderr."""
    sys.stderr.write(f"{text}\n")


@contextmanager
def download_bar() -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar over the bytes of a download; silent where nothing is downloaded."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    bar = Progress(*columns, console=console())

    def show(done: int, total: int | None) -> None:
        if not bar.tasks:
            bar.start()
            bar.add_task("downloading", total=total)
        bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield show
    finally:
        if bar.tasks:
            bar.stop()


SQUARES = 1 << 31
"""Of the lengths of a portion's lines, in characters, summed, at most, before another line: what is kept of attention
grows as they do. It is 1,000 lines of 1,400 characters each."""


def input_portions(path: Path | None, size: int) -> Iterator[list[str]]:
    """The lines of a file, or of standard input, up to `size` of them at a time; only a line feed ends a line.

    From standard input a portion ends, too, where no more is there to be read: who writes a line and waits for its
    answer gets it. Lines of more than `corpus.LONGEST` bytes are cut, to more than that.
    Errors: DataError for a missing file or a line that is not UTF-8.
    """
    from rnnsearch.data.corpus import read_lines

    if path is not None:
        yield from in_portions(read_lines(path, cut=True), size)
    else:
        yield from in_portions(_of_standard_input(), size)


def _of_standard_input() -> Iterator[str | None]:
    """Its lines, and None where it would be waited for."""
    from rnnsearch.data.corpus import CUT

    number = 0
    for line in lines_of(cast(BufferedIOBase, sys.stdin.buffer), CUT):
        number += line is not None
        yield None if line is None else _decoded(line, number)


def in_portions(lines: Iterable[str | None], size: int) -> Iterator[list[str]]:
    """Up to `size` lines at a time, fewer where they are very long or before None; cut the same wherever one begins
    anew."""
    portion, squares = list[str](), 0
    for text in lines:
        if text is not None:
            portion.append(text)
            squares += len(text) ** 2
        full = len(portion) == size or squares > SQUARES
        if full or (text is None and portion):
            yield portion
            portion, squares = [], 0
    if portion:
        yield portion


def _decoded(line: bytes, number: int) -> str:
    from rnnsearch.data.corpus import decoded

    try:
        return decoded(line)
    except UnicodeDecodeError:
        raise DataError(f"<standard input>:{number}: must be text in UTF-8; got other bytes") from None


def both_lines(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """The lines of two files. Errors: DataError where they have different numbers of lines."""
    from rnnsearch.data.corpus import read_lines

    left, right = list(read_lines(source)), list(read_lines(target))
    same_lines(source, len(left), target, len(right))
    return left, right


def same_lines(one: Path, count: int, other: Path, others: int) -> None:
    """Errors: DataError where two files have different numbers of lines."""
    if count != others:
        raise DataError(f"{one} and {other} must have the same number of lines; got {count:,} and {others:,}")


def count_pairs(one: Path, other: Path) -> int:
    """How many lines two files have, of whatever length. Errors: DataError where they have different numbers."""
    from rnnsearch.data.corpus import read_lines

    left, right = (sum(1 for _ in read_lines(path, cut=True)) for path in (one, other))
    same_lines(one, left, other, right)
    return left


def line_pairs(one: Path, other: Path) -> Iterator[tuple[str, str]]:
    """The lines of two files side by side; what is too long is cut."""
    from rnnsearch.data.corpus import read_lines

    return zip(*(read_lines(path, cut=True) for path in (one, other)), strict=True)


def joined_pairs(one: Path, other: Path, size: int) -> Iterator[list[str]]:
    """The lines of two files side by side, a line feed between those of a pair, up to `size` pairs at a time."""
    return in_portions(map("\n".join, line_pairs(one, other)), size)


def require_distinct(outputs: Mapping[str, Path | None], read: Iterable[Path | None] = ()) -> None:
    """Errors: BadParameter where two options, by name, have one file to write to, or one of those that are read."""
    from typer import BadParameter

    if wrong := clash(outputs, read):
        raise BadParameter(wrong)


@contextmanager
def output(path: Path | None) -> Iterator[TextIO]:
    """Where results go: standard output, or a file that appears whole when all is written."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
        yield sys.stdout
        sys.stdout.flush()
        return
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        yield file
