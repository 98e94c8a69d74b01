"""Work in numbered pieces: what each is given and what comes of it are files in a store, there whole or not at all.

This is all that an engine knows of: who is killed, worker or program, loses no piece that was finished.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from rnnsearch.bulk.stores import Store
from rnnsearch.errors import DataError

MANIFEST = "run.json"
"""What the work of a store hangs on, written when what it is to do is there."""
_OURS = re.compile(r"[0-9a-f]{16}(-\d{7,}\.(given|done)|\.(common|cut))")

Work = Callable[[bytes], bytes]
"""Makes of what a piece is given what comes of it."""


@dataclass(frozen=True)
class Job:
    """What does a piece, wherever it runs: it can be sent to other processes."""

    store: Store
    key: str
    make: Callable[[], Work]
    """Makes a `Work`, which may be heavy (a model) and stays where it was made."""

    def given(self, number: int) -> str:
        """The name of what a piece is given."""
        return f"{self.key}-{number:07}.given"

    def result(self, number: int) -> str:
        """The name of what came of it."""
        return f"{self.key}-{number:07}.done"

    def do(self, work: Work, number: int) -> None:
        """Do a piece, unless it has been done. Errors: those of the store and of the work."""
        if not self.store.has(self.result(number)):
            self.store.write(self.result(number), work(self.store.read(self.given(number))))


Engine = Callable[[Job, Sequence[int]], Iterator[int]]
"""Does the pieces with these numbers, in any order, and yields the number of each when it is done."""


class Worker:
    """What one process does of a job; its `Work` is made at the first piece."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._work: Work | None = None

    def do(self, number: int) -> int:
        """A piece; returns its number. Errors: as `Job.do`."""
        self._work = self._work or self._job.make()
        self._job.do(self._work, number)
        return number


def key_of(about: Any) -> str:
    """16 hexadecimal digits of what work hangs on (JSON)."""
    return sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def manifest_of(store: Store, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest, where the store holds a run about this. Errors: DataError where it holds one about another."""
    if MANIFEST not in store.names():
        return None
    manifest: dict[str, Any] = json.loads(store.read(MANIFEST))
    other = manifest["about"]
    if other != about:
        differs = next(key for key in {**about, **other} if about.get(key) != other.get(key))
        raise DataError(f"{store}: holds a run with other {differs}; finish that one, or delete it")
    return manifest


def write_manifest(store: Store, about: Mapping[str, Any], ends: Sequence[int] | None = None) -> None:
    """The store holds a run about this from now on; `ends`: where its ranges of lines do, if it has such."""
    store.write(MANIFEST, json_bytes({"about": about} if ends is None else {"about": about, "ends": ends}))


def forget(store: Store) -> None:
    """Nothing of a run is kept; what others keep there stays."""
    store.remove({MANIFEST, *(name for name in store.names() if _OURS.fullmatch(name))})


def json_bytes(value: object) -> bytes:
    """As JSON."""
    return json.dumps(value, ensure_ascii=False).encode()
