"""The passes over a corpus by any engine, what comes of each task kept in a store until all passes are through."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from types import TracebackType
from typing import Any, TypeVar

from rnnsearch.bulk import jobs
from rnnsearch.bulk.jobs import Engine, Job, Work
from rnnsearch.bulk.stores import Store
from rnnsearch.bulk.values import from_bytes, to_bytes
from rnnsearch.errors import ConfigError, DataError

Result = TypeVar("Result")
Progress = Callable[[str, int, int], None]
"""Told of a pass's function, how many of its pieces are done, and of how many."""
COMMON, CUT = ".common", ".cut"
"""Ends of the names of what all tasks of a pass are given, and of how many pieces it has."""


class Kept:
    """`data.workers.Workers` of which a killed program loses nothing that was finished: a piece is some tasks, and what
    came of it stays in the store. The same passes must come in the same order for the same `about`."""

    def __init__(
        self,
        store: Store,
        about: Mapping[str, Any],
        engine: Engine,
        together: int = 1,
        progress: Progress | None = None,
    ) -> None:
        """`about`: what all tasks hang on (JSON). `together`: how many tasks are a piece."""
        self._store, self._engine, self._together = store, engine, together
        self._about = {**about, "rows": together}
        self._progress = progress
        self._numbers = count()
        self._held = ExitStack()
        self._begun = False

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """At the end, and where text or options are at fault, so that there can be none, nothing is kept."""
        with self._held:
            if self._begun and (error is None or isinstance(error, ConfigError | DataError)):
                jobs.forget(self._store)

    def map(
        self,
        function: Callable[..., Result],
        tasks: Iterable[tuple[Any, ...]],
        common: tuple[Any, ...] = (),
        alone: bool = False,
    ) -> Iterator[Result]:
        """As `Workers.map`; results come when all are there.

        Errors: those of the function, the store and the engine; DataError where the store holds a run about something
        else.
        """
        self._begin()
        key = jobs.key_of([self._about, next(self._numbers), function.__name__])
        job = Job(self._store, key, _OfTasks(self._store, f"{key}{COMMON}", function))
        pieces = self._cut(job, tasks, common, 1 if alone else self._together)
        there = self._store.names()
        missing = [number for number in range(pieces) if job.result(number) not in there]
        self._tell(function, pieces - len(missing), pieces)
        if missing:
            for done, _ in enumerate(self._engine(job, missing), pieces - len(missing) + 1):
                self._tell(function, done, pieces)
        self._store.remove({f"{job.key}{COMMON}", *map(job.given, range(pieces))})
        for number in range(pieces):
            name = job.result(number)
            yield from from_bytes(self._store.read(name), f"{self._store}, {name}")

    def _begin(self) -> None:
        """The store is this run's from now on."""
        if self._begun:
            return
        self._held.enter_context(self._store.locked())
        if jobs.manifest_of(self._store, self._about) is None:
            jobs.forget(self._store)
            jobs.write_manifest(self._store, self._about)
        self._begun = True

    def _cut(self, job: Job, tasks: Iterable[tuple[Any, ...]], common: tuple[Any, ...], together: int) -> int:
        """How many pieces a pass has, which are in the store then."""
        cut = f"{job.key}{CUT}"
        if cut in self._store.names():
            return int(json.loads(self._store.read(cut)))
        rest, pieces = iter(tasks), 0
        self._store.write(f"{job.key}{COMMON}", to_bytes(common))
        while piece := list(islice(rest, together)):
            self._store.write(job.given(pieces), to_bytes(piece))
            pieces += 1
        self._store.write(cut, jobs.json_bytes(pieces))
        return pieces

    def _tell(self, function: Callable[..., Any], done: int, pieces: int) -> None:
        if self._progress is not None:
            self._progress(function.__name__, done, pieces)


@dataclass(frozen=True)
class _OfTasks:
    """Makes the `Work` of a pass; it can be sent to other processes."""

    store: Store
    common: str
    function: Callable[..., Any]

    def __call__(self) -> Work:
        common = from_bytes(self.store.read(self.common), f"{self.store}, {self.common}")
        return partial(_done, self.function, common)


def _done(function: Callable[..., Any], common: tuple[Any, ...], given: bytes) -> bytes:
    return to_bytes([function(*common, *task) for task in from_bytes(given, "a piece of a pass")])
