"""What the commands share: reading lines, writing results, messages on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from rnnsearch.errors import DataError
from rnnsearch.files import atomic_file

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")


def console() -> Console:
    """The console for messages and progress: stderr."""
    from rich.console import Console

    return Console(stderr=True)


def say(text: str) -> None:
    """A message to the user, on stderr."""
    sys.stderr.write(f"{text}\n")


def input_lines(path: Path | None) -> Iterator[str]:
    """The lines of a file, or of standard input; only a line feed ends a line.

    Errors: DataError for a missing file or a line that is not UTF-8.
    """
    if path is not None:
        from rnnsearch.data.corpus import read_lines

        yield from read_lines(path)
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")  # a byte order mark is not text
            yield text.removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise DataError(f"<standard input>:{number}: must be text in UTF-8; got other bytes") from None


def both_lines(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """The lines of two files. Errors: DataError where they have different numbers of lines."""
    left, right = list(input_lines(source)), list(input_lines(target))
    if len(left) != len(right):
        raise DataError(
            f"{source} and {target} must have the same number of lines; got {len(left):,} and {len(right):,}"
        )
    return left, right


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
