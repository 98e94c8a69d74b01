"""Run the command line in this process."""

import io
import json
import sys
from functools import cache
from typing import Any, NamedTuple

import typer.main

# Typer builds all commands for each run, which takes 40 ms.
typer.main.get_command = cache(typer.main.get_command)


class Result(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Return the lines of standard output, separated only by line feeds."""
        assert self.out.endswith("\n") or not self.out
        return self.out.split("\n")[:-1]

    @property
    def rows(self) -> list[Any]:
        """Return the values in the lines of `--format json`."""
        return [json.loads(line) for line in self.lines]


class NamedBytesIO(io.BytesIO):
    """A stream of bytes in memory with the attributes of a file, which beartype checks."""

    name = "<memory>"


def run(*arguments: object, stdin: bytes | str = b"", stdout: str = "utf-8") -> Result:
    """Run `rnnsearch ARGUMENTS` like the entry point."""
    from rnnsearch.cli import main

    input_bytes = stdin.encode() if isinstance(stdin, str) else stdin
    streams = {
        "stdin": io.TextIOWrapper(NamedBytesIO(input_bytes)),
        "stdout": io.TextIOWrapper(NamedBytesIO(), encoding=stdout),
        "stderr": io.TextIOWrapper(NamedBytesIO(), encoding="utf-8"),
    }
    for name, stream in streams.items():
        stream.mode = "r" if name == "stdin" else "w"
    original = {name: getattr(sys, name) for name in (*streams, "argv")}
    code = 0
    try:
        for name, stream in streams.items():
            setattr(sys, name, stream)
        sys.argv = ["rnnsearch", *map(str, arguments)]
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    finally:
        for name, value in original.items():
            setattr(sys, name, value)
    texts = []
    for name in ("stdout", "stderr"):
        streams[name].flush()
        texts.append(streams[name].buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Result(code, *texts)
