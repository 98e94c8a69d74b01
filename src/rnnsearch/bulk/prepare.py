"""The passes over a corpus by any engine, what comes of each task kept in a store until all passes are through."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, is_dataclass
from functools import partial
from importlib import metadata
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from rnnsearch.bulk import jobs
from rnnsearch.bulk.jobs import Engine, Handler, Job, digest
from rnnsearch.bulk.stores import Store
from rnnsearch.errors import ConfigError, DataError, RnnsearchError

if TYPE_CHECKING:
    from rnnsearch.config import RunConfig
    from rnnsearch.data.corpora import download
    from rnnsearch.data.prepared import Prepared


# Values of a pass over a corpus as bytes in a store: pickles of which nothing but data is believed.

_OTHERS = {
    "builtins": {"list", "set"},
    "collections": {"Counter", "defaultdict"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "WindowsPath"},
    "tokenizers": {"Tokenizer"},
    "tokenizers.models": {"Model"},
}
"""What values are made of, besides our own."""
_OUR_MODULES = ("rnnsearch.align.", "rnnsearch.config.", "rnnsearch.data.", "rnnsearch.text.")


def to_bytes(value: object) -> bytes:
    """A value made of plain data."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def from_bytes(content: bytes, where: str) -> Any:
    """The value again. Errors: RnnsearchError, which names the place, for bytes that are damaged or make anything else:
    who can write to a store must not be able to run code."""
    try:
        return _Reader(io.BytesIO(content)).load()
    except Exception as error:  # of damaged bytes comes what may
        raise RnnsearchError(f"{where}: must be a piece of a run that rnnsearch has kept; got: {error}") from None


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Only what holds data, found by its own name."""
        if name in _OTHERS.get(module.replace("numpy.core", "numpy._core"), ()):
            return super().find_class(module, name)
        if module.startswith(_OUR_MODULES) and name.isidentifier():
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module and _holds_data(found):
                return found
        raise pickle.UnpicklingError(f"{module}.{name}")


def _holds_data(kind: type) -> bool:
    from rnnsearch.config.options import Table
    from rnnsearch.data.cleaning import Tally
    from rnnsearch.text.tokenizer import Tokenizer

    named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return named_tuple or is_dataclass(kind) or issubclass(kind, Table) or kind in (Tally, Tokenizer)


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

    def __call__(self) -> Handler:
        common = from_bytes(self.store.read(self.common), f"{self.store}, {self.common}")
        return partial(_done, self.function, common)


def _done(function: Callable[..., Any], common: tuple[Any, ...], given: bytes) -> bytes:
    return to_bytes([function(*common, *task) for task in from_bytes(given, "a piece of a pass")])


# A corpus prepared by any engine, so that a killed run goes on: `data.prepare` with `Kept` workers.


def prepare(
    config: RunConfig,
    folder: Path,
    store: Store,
    engine: Engine,
    rows: int = 1,
    cache: Path | None = None,
    downloading: download.Progress | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """What `data.prepare.prepare` makes, to the byte, its passes done by an engine and kept in a store until the end.

    `rows`: pairs a shard, at least; chunks of `passes.CHUNK` are never cut.
    Errors: those of `data.prepare.prepare`, of store and engine; DataError where the store holds another run.
    """
    from rnnsearch.data.prepare import prepare as prepared
    from rnnsearch.data.preprocess import CHUNK

    with Kept(store, _about(config, cache), engine, max(1, -(-rows // CHUNK)), progress) as workers:
        return prepared(config, folder, cache, downloading, workers=workers)


def _about(config: RunConfig, cache: Path | None) -> dict[str, Any]:
    """What the passes hang on. A listed corpus is known by its name, since its files have known hashes."""
    from rnnsearch.data.corpus import check_files
    from rnnsearch.data.prepare import files_of

    files = files_of(config.data)
    check_files([config.base / name for name in files])
    tables = {"data": config.data, "text": config.text}
    about: dict[str, Any] = {f"[{name}]": table.model_dump(mode="json") for name, table in tables.items()}
    about["files"] = {name: digest(config.base / name) for name in files}
    if config.text.tokenizers is not None:
        about["tokenizers"] = digest(config.base / config.text.tokenizers)
    return {"version": metadata.version("rnnsearch"), **about, "paths": [str(config.base), str(cache)]}
