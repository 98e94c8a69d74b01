"""Preparation of a corpus in shards (`prepare`), with workers that store the results of every pass (`StoredWorkers`).

The passes are those of `data/preprocess.py`. Their tasks and results are pickled into the store and stay there until
the corpus is prepared, so that a killed run resumes. A store may be writable by others, so `from_bytes` only accepts
classes that hold data.

`cli/bulk.py` calls it for `rnnsearch prepare --engine`. The result must equal that of `data.prepare.prepare`. A new
class in the results of a pass must be a data class in one of `_DATA_MODULES`. Tests: `tests/bulk/test_corpora.py`.
"""

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
from rnnsearch.bulk.jobs import COMMON_SUFFIX, COUNT_SUFFIX, Engine, Handler, Job, digest
from rnnsearch.bulk.stores import Store
from rnnsearch.errors import ConfigError, DataError, RnnsearchError

if TYPE_CHECKING:
    from rnnsearch.config import RunConfig
    from rnnsearch.data.corpora import download
    from rnnsearch.data.prepared import Prepared

Result = TypeVar("Result")
Progress = Callable[[str, int, int], None]
"""Called with the name of a pass's function, the number of its finished shards and the number of all its shards."""


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
    """Prepare a corpus like `data.prepare.prepare`, with the same result, its passes run in shards by an engine.

    Args:
        config: Run file.
        folder: Folder of prepared data.
        store: Store of the shards, emptied at the end.
        engine: Processes the shards.
        rows: Minimum number of pairs per shard; chunks of `preprocess.CHUNK_ROWS` are never split.
        cache: Folder of downloaded corpora.
        downloading: Called during downloads, see `data.corpora.download.Progress`.
        progress: Called after each shard.

    Raises:
        DataError: The store holds another run. Exceptions of `data.prepare.prepare`, the store and the engine are
            raised, too.
    """
    from rnnsearch.data.prepare import prepare as prepare_with_workers
    from rnnsearch.data.preprocess import CHUNK_ROWS

    tasks_per_shard = max(1, -(-rows // CHUNK_ROWS))
    with StoredWorkers(store, _describe(config, cache), engine, tasks_per_shard, progress) as workers:
        return prepare_with_workers(config, folder, cache, downloading, workers=workers)


def _describe(config: RunConfig, cache: Path | None) -> dict[str, Any]:
    """Return everything that the results of the passes depend on, for the manifest (JSON).

    A listed corpus is identified by its name, since the hashes of its files are fixed.
    """
    from rnnsearch.data.corpus import check_files
    from rnnsearch.data.prepare import data_files

    files = data_files(config.data)
    check_files([config.base / name for name in files])
    about: dict[str, Any] = {
        "version": metadata.version("rnnsearch"),
        "[data]": config.data.model_dump(mode="json"),
        "[text]": config.text.model_dump(mode="json"),
        "files": {name: digest(config.base / name) for name in files},
    }
    if config.text.tokenizers is not None:
        about["tokenizers"] = digest(config.base / config.text.tokenizers)
    about["paths"] = [str(config.base), str(cache)]
    return about


class StoredWorkers:
    """Implementation of `data.workers.Workers` whose results are stored, so that a killed program resumes.

    A shard consists of some tasks. For the same `about`, the same passes must come in the same order.
    """

    def __init__(
        self,
        store: Store,
        about: Mapping[str, Any],
        engine: Engine,
        tasks_per_shard: int = 1,
        progress: Progress | None = None,
    ) -> None:
        """Create the workers.

        Args:
            store: Store of the shards.
            about: Everything that the results depend on (JSON).
            engine: Processes the shards.
            tasks_per_shard: Number of tasks per shard.
            progress: Called after each shard.
        """
        self._store = store
        self._engine = engine
        self._tasks_per_shard = tasks_per_shard
        self._about = {**about, "rows": tasks_per_shard}
        self._progress = progress
        self._pass_numbers = count()
        self._lock = ExitStack()
        self._is_started = False

    def __enter__(self) -> StoredWorkers:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the store after success, or if text or options are invalid, because such a run cannot be resumed."""
        with self._lock:
            if self._is_started and (error is None or isinstance(error, ConfigError | DataError)):
                jobs.clear_run(self._store)

    def map(
        self,
        function: Callable[..., Result],
        tasks: Iterable[tuple[Any, ...]],
        common: tuple[Any, ...] = (),
        large_tasks: bool = False,
    ) -> Iterator[Result]:
        """Yield results like `Workers.map`, once all shards of the pass are done.

        Raises:
            DataError: The store holds another run. Exceptions of the function, the store and the engine are raised,
                too.
        """
        self._start()
        key = jobs.digest_key([self._about, next(self._pass_numbers), function.__name__])
        job = Job(self._store, key, _TasksHandlerFactory(self._store, f"{key}{COMMON_SUFFIX}", function))
        num_shards = self._write_inputs(job, tasks, common, 1 if large_tasks else self._tasks_per_shard)
        names = self._store.names()
        missing = [number for number in range(num_shards) if job.output_name(number) not in names]
        num_done = num_shards - len(missing)
        self._report(function, num_done, num_shards)
        if missing:
            for _ in self._engine(job, missing):
                num_done += 1
                self._report(function, num_done, num_shards)
        self._store.remove({f"{job.key}{COMMON_SUFFIX}", *map(job.input_name, range(num_shards))})
        for number in range(num_shards):
            name = job.output_name(number)
            yield from from_bytes(self._store.read(name), f"{self._store}, {name}")

    def _start(self) -> None:
        """Lock the store and write the manifest, at the first pass."""
        if self._is_started:
            return
        self._lock.enter_context(self._store.locked())
        if jobs.read_manifest(self._store, self._about) is None:
            jobs.clear_run(self._store)
            jobs.write_manifest(self._store, self._about)
        self._is_started = True

    def _write_inputs(
        self, job: Job, tasks: Iterable[tuple[Any, ...]], common: tuple[Any, ...], tasks_per_shard: int
    ) -> int:
        """Write the inputs of all shards of a pass, unless an earlier run has, and return the number of shards."""
        count_name = f"{job.key}{COUNT_SUFFIX}"
        if count_name in self._store.names():
            return int(json.loads(self._store.read(count_name)))
        remaining = iter(tasks)
        num_shards = 0
        self._store.write(f"{job.key}{COMMON_SUFFIX}", to_bytes(common))
        while shard := list(islice(remaining, tasks_per_shard)):
            self._store.write(job.input_name(num_shards), to_bytes(shard))
            num_shards += 1
        self._store.write(count_name, jobs.to_json(num_shards))  # last: its presence means that all inputs are stored
        return num_shards

    def _report(self, function: Callable[..., Any], num_done: int, num_shards: int) -> None:
        if self._progress is not None:
            self._progress(function.__name__, num_done, num_shards)


@dataclass(frozen=True)
class _TasksHandlerFactory:
    """Makes the handler of a pass's shards; picklable, for workers."""

    store: Store
    common_name: str
    function: Callable[..., Any]

    def __call__(self) -> Handler:
        common = from_bytes(self.store.read(self.common_name), f"{self.store}, {self.common_name}")
        return partial(_run_tasks, self.function, common)


def _run_tasks(function: Callable[..., Any], common: tuple[Any, ...], content: bytes) -> bytes:
    """Return the stored results of a shard's tasks; see `StoredWorkers.map` for the arguments."""
    return to_bytes([function(*common, *task) for task in from_bytes(content, "a shard of a pass")])


# Values in the store are pickles that can only contain data.

_DATA_CLASSES = {
    "builtins": {"list", "set"},
    "collections": {"Counter", "defaultdict"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "WindowsPath"},
    "tokenizers": {"Tokenizer"},
    "tokenizers.models": {"Model"},
}
"""Names by module that stored values may refer to, in addition to data classes of this package."""
_DATA_MODULES = ("rnnsearch.align.", "rnnsearch.config.", "rnnsearch.data.", "rnnsearch.text.")


def to_bytes(value: object) -> bytes:
    """Return a value that consists of data (see `from_bytes`) as bytes."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def from_bytes(content: bytes, location: str) -> Any:
    """Return the value that `to_bytes` wrote.

    Anyone who can write to a store must not be able to run code, so only data are accepted.

    Args:
        content: Bytes in the store.
        location: Where they were read, for the message.

    Raises:
        RnnsearchError: The bytes are damaged or contain anything but data.
    """
    try:
        return _DataUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # damaged bytes can raise anything
        raise RnnsearchError(f"{location}: must be a shard stored by rnnsearch; got: {error}") from None


class _DataUnpickler(pickle.Unpickler):
    """Unpickler that only finds classes that hold data."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class, or raise UnpicklingError for anything that is not allowed."""
        if name in _DATA_CLASSES.get(module.replace("numpy.core", "numpy._core"), ()):
            return super().find_class(module, name)
        if module.startswith(_DATA_MODULES) and name.isidentifier():
            value = super().find_class(module, name)
            # Not a class that the module imports from elsewhere.
            if isinstance(value, type) and value.__module__ == module and _holds_data(value):
                return value
        raise pickle.UnpicklingError(f"{module}.{name}")


def _holds_data(cls: type) -> bool:
    """Return True if a class only holds data, so that creating an instance has no side effects."""
    from rnnsearch.config.options import Table
    from rnnsearch.data.cleaning import Tally
    from rnnsearch.text.tokenizer import Tokenizer

    is_named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return is_named_tuple or is_dataclass(cls) or issubclass(cls, Table) or cls in (Tally, Tokenizer)
