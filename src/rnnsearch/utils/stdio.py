"""Standard input and output of the commands: line-by-line reading, closed streams, failing output.

The commands (`cli`, `runtime.command_line`) read lines as they arrive, so that a program that writes a line and waits
for the translation gets it.

Tests: tests/commands/test_usage.py, tests/runtime/test_command_line.py. This module must not import torch.
"""

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

INPUT_WAIT_SECONDS = 0.005  # time to wait for more input before the lines so far are processed
_BLOCK_BYTES = 1 << 16


def path_unless_dash(path: Path | str | None) -> Path | None:
    """Return the path of an option, or None for `-`, which means standard input or output."""
    return None if path is None or str(path) == "-" else Path(path)


def read_lines(stream: BufferedIOBase, max_bytes: int) -> Iterator[bytes | None]:
    """Yield the lines of a stream without line ends, and None before each read that would block.

    Lines end at a line feed; a carriage return before it is removed, and so is a byte order mark at the start of the
    stream. Longer lines are cut to `max_bytes`; the rest of such a line is not held in memory.
    """
    line_blocks: list[bytes] = []  # blocks of the line that has not ended yet
    held_bytes = 0
    is_first = True
    at_end = False
    while not at_end:
        if not _has_input(stream):
            yield None
        block = stream.read1(_BLOCK_BYTES)
        at_end = not block
        if held_bytes < max_bytes or b"\n" in block:
            line_blocks.append(block)
            held_bytes += len(block)
        if block and b"\n" not in block:
            continue
        *lines, incomplete = b"".join(line_blocks).split(b"\n")
        if at_end and incomplete:
            lines.append(incomplete)
        line_blocks = [incomplete]
        held_bytes = len(incomplete)
        for line in lines:
            yield line[:max_bytes].removeprefix(BOM_UTF8 if is_first else b"").removesuffix(b"\r")
            is_first = False


def _has_input(stream: BufferedIOBase) -> bool:
    """Return True if reading will not block, or if that cannot be known (neither a pipe nor a terminal)."""
    try:
        return bool(select.select([stream.fileno()], [], [], INPUT_WAIT_SECONDS)[0])
    except (OSError, ValueError):
        return True


def replace_closed_streams() -> None:
    """Replace closed standard streams: stdin is then empty, stdout fails on writing, stderr discards its text.

    Otherwise a file that is opened later would get the number of a standard stream.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            while os.open(os.devnull, os.O_RDWR if name == "stderr" else os.O_RDONLY) < number:
                pass
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def exit_on_io_error(command: str, error: OSError) -> NoReturn:
    """Exit with status 1 and a message after a failed write to a file or to standard output.

    No message is printed if the reader of the output has gone, as in `command | head`.
    """
    if not isinstance(error, BrokenPipeError):
        sys.stderr.write(f"{command}: {error.filename or 'standard output'}: {error.strerror or error}\n")
    with suppress(OSError):  # discard buffered output, so that the interpreter does not fail on flushing it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
