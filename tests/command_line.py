"""The command line in this process."""

import io
import json
import sys
from typing import Any, NamedTuple


class Result(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of standard output; only a line feed ends one."""
        assert self.out.endswith("\n") or not self.out
        return self.out.split("\n")[:-1]

    @property
    def rows(self) -> list[Any]:
        """What the lines of `--format json` hold."""
        return [json.loads(line) for line in self.lines]


class Memory(io.BytesIO):
    """A stream of bytes with the attributes that real ones have and beartype asks for."""

    name = "<memory>"


def run(*arguments: object, stdin: bytes | str = b"", stdout: str = "utf-8") -> Result:
    """`rnnsearch ARGUMENTS`, as its entry point runs it."""
    from rnnsearch.cli import main

    given = stdin.encode() if isinstance(stdin, str) else stdin
    streams = {
        "stdin": io.TextIOWrapper(Memory(given)),
        "stdout": io.TextIOWrapper(Memory(), encoding=stdout),
        "stderr": io.TextIOWrapper(Memory(), encoding="utf-8"),
    }
    for name, stream in streams.items():
        stream.mode = "r" if name == "stdin" else "w"
    before = {name: getattr(sys, name) for name in (*streams, "argv")}
    code = 0
    try:
        for name, stream in streams.items():
            setattr(sys, name, stream)
        sys.argv = ["rnnsearch", *map(str, arguments)]
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    finally:
        for name, value in before.items():
            setattr(sys, name, value)
    texts = []
    for name in ("stdout", "stderr"):
        streams[name].flush()
        texts.append(streams[name].buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Result(code, *texts)
