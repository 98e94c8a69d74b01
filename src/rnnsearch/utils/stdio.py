"""A command's streams: lines as they come, standard ones that are closed, and the end where one fails."""

from __future__ import annotations

import os
import select
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedIOBase
from pathlib import Path
from typing import NoReturn

MOMENT = 0.005
"""Seconds that more input may take to come before what is there is worked on."""
_BLOCK = 1 << 16


def unless_stream(path: Path | str | None) -> Path | None:
    """A file that an option names; None for `-`, which is standard input or output."""
    return None if path is None or str(path) == "-" else Path(path)


def lines_of(stream: BufferedIOBase, cut: int) -> Iterator[bytes | None]:
    """The lines of a stream without their ends, nor a byte order mark at its beginning, and None where more would be
    waited for. Only a line feed ends a line; a carriage return before it goes with it. One of more than `cut` bytes is
    cut there."""
    begun, held, first, block = list[bytes](), 0, True, b"more"
    while block:
        if not _ready(stream):
            yield None
        block = stream.read1(_BLOCK)
        if held < cut or b"\n" in block:
            begun.append(block)
            held += len(block)
        if block and b"\n" not in block:
            continue
        *whole, rest = b"".join(begun).split(b"\n")
        begun, held = [rest], len(rest)
        for line in whole if block or not rest else [*whole, rest]:
            yield line[:cut].removeprefix(BOM_UTF8 if first else b"").removesuffix(b"\r")
            first = False


def _ready(stream: BufferedIOBase) -> bool:
    """Whether reading would not wait; True where that cannot be known (no pipe, no terminal)."""
    try:
        return bool(select.select([stream.fileno()], [], [], MOMENT)[0])
    except (OSError, ValueError):
        return True


def open_streams() -> None:
    """Standard streams that are closed become such as hold nothing and take nothing: no file that is opened later may
    get their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            while os.open(os.devnull, os.O_RDWR if name == "stderr" else os.O_RDONLY) < number:
                pass
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def give_up(command: str, error: OSError) -> NoReturn:
    """End with status 1 and a sentence, as what a file or standard output is written to has failed."""
    if not isinstance(error, BrokenPipeError):  # the reader of our output has gone (`| head`): not a word then
        sys.stderr.write(f"{command}: {error.filename or 'standard output'}: {error.strerror or error}\n")
    with suppress(OSError):  # what is left of the output is given up
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
