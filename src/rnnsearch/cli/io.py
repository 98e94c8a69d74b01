"""What the commands share: reading lines, writing results, messages on stderr."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, TypeVar, cast

import typer

from rnnsearch.errors import DataError
from rnnsearch.files import atomic_file

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.  [default: all cores]")]


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


MOMENT = 0.005
"""Seconds that more input may take to come before what is there is worked on."""
_BLOCK = 1 << 16


def input_portions(path: Path | None, size: int) -> Iterator[list[str]]:
    """The lines of a file, or of standard input, up to `size` of them at a time; only a line feed ends a line.

    From standard input a portion ends, too, where no more is there to be read: who writes a line and waits for its
    answer gets it. Errors: DataError for a missing file or a line that is not UTF-8.
    """
    if path is not None:
        from rnnsearch.data.corpus import read_lines

        yield from chunks(read_lines(path), size)
        return
    number, waiting = 0, list[str]()
    for lines in _standard_input():
        for line in lines or ():
            number += 1
            waiting.append(_decoded(line, number))
            if len(waiting) == size:
                yield waiting
                waiting = []
        if lines is None and waiting:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _standard_input() -> Iterator[list[bytes] | None]:
    """The lines of standard input as they come; None where the next one is not there yet."""
    stream = cast(BufferedIOBase, sys.stdin.buffer)
    begun: list[bytes] = []
    while True:
        if not _ready(stream):
            yield None
        block = stream.read1(_BLOCK)
        if not block:
            break
        first, *others = block.split(b"\n")
        begun.append(first)
        if others:
            yield [b"".join(begun), *others[:-1]]
            begun = others[-1:]
    if rest := b"".join(begun):
        yield [rest]


def _ready(stream: BufferedIOBase) -> bool:
    """Whether reading would not wait; True where that cannot be known (no pipe, no terminal)."""
    try:
        return bool(select.select([stream.fileno()], [], [], MOMENT)[0])
    except (OSError, ValueError):
        return True


def _decoded(line: bytes, number: int) -> str:
    try:
        # A byte order mark is not text.
        return line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
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


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of up to `size` items."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
