"""Long output that a killed run leaves where the next one goes on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any

from rnnsearch.errors import DataError
from rnnsearch.files import atomic_file, locked, write_json

ABOUT, LINES, DONE = "run.json", "lines", "done.json"


def digest(path: Path) -> str:
    """What tells a file from others."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()[:32]


class Growing:
    """Lines in a folder, put down a portion at a time; what comes after the last whole portion does not count."""

    def __init__(self, folder: Path) -> None:
        self._lines, self._note = folder / LINES, folder / DONE
        noted = json.loads(self._note.read_text(encoding="utf-8")) if self._note.is_file() else {"lines": 0, "bytes": 0}
        self.done: int = noted["lines"]
        """Lines of whole portions."""
        self._bytes: int = noted["bytes"]
        self._lines.touch()
        os.truncate(self._lines, self._bytes)

    def add(self, lines: Sequence[str]) -> None:
        """A portion."""
        text = "".join(f"{line}\n" for line in lines).encode()
        with self._lines.open("ab") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self.done, self._bytes = self.done + len(lines), self._bytes + len(text)
        write_json(self._note, {"lines": self.done, "bytes": self._bytes})


@contextmanager
def resumed(path: Path, about: Mapping[str, Any]) -> Iterator[Growing]:
    """What becomes the file `path` when the block ends; until then it grows in the folder `path`.partial, where a run
    with the same `about` (JSON) goes on.

    Errors: DataError where a run about something else was left; RnnsearchError where another process writes.
    """
    folder = path.with_name(f"{path.name}.partial")
    with locked(folder):
        note = folder / ABOUT
        if not note.is_file():
            write_json(note, about)
        elif (other := json.loads(note.read_text(encoding="utf-8"))) != about:
            differs = next(key for key in {**about, **other} if about.get(key) != other.get(key))
            raise DataError(f"{folder}: holds a run with another {differs}; finish that one, or delete the folder")
        growing = Growing(folder)
        yield growing
        with atomic_file(path) as temporary:
            shutil.copyfile(folder / LINES, temporary)
        for name in (ABOUT, LINES, DONE):
            (folder / name).unlink(missing_ok=True)
    folder.rmdir()
