"""Preparation of a corpus in shards (`prepare`), with workers that store the results of every pass (`StoredWorkers`).

The passes are those of `data/preprocess.py`. The tasks and results of a pass are in the store (`encoding.py`) until the
corpus is prepared, so that a killed run resumes. The types of the stored values are those that the pass's function
declares.

`cli/bulk.py` calls `prepare` for `rnnsearch prepare --engine`. The result must equal that of `data.prepare.prepare`.
Stored passes are identified by their order and by the name of their function: renaming or reordering them makes a
killed run start again. Increase `FORMAT` whenever a pass's types change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from itertools import count, islice
from pathlib import Path
from types import GenericAlias, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_type_hints

from rnnsearch.bulk import jobs
from rnnsearch.bulk.encoding import from_bytes, from_json, to_bytes, to_json
from rnnsearch.bulk.jobs import COMMON_SUFFIX, COUNT_SUFFIX, Engine, Handler, Job, digest
from rnnsearch.bulk.stores import Store
from rnnsearch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rnnsearch.config import RunConfig
    from rnnsearch.data.prepared import Prepared
    from rnnsearch.data.progress import Progress as StageProgress

FORMAT = "safetensors-1"
"""Format of the tasks and results in a store; earlier versions stored pickles."""

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
    stages: StageProgress | None = None,
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
        stages: Called at the start of each stage, after each chunk of text, and during downloads.
        progress: Called after each shard.

    Raises:
        DataError: The store holds another run. Exceptions of `data.prepare.prepare`, the store and the engine are
            raised, too.
    """
    from rnnsearch.data.prepare import prepare as prepare_with_workers
    from rnnsearch.data.preprocess import CHUNK_ROWS
    from rnnsearch.data.progress import ignore

    tasks_per_shard = max(1, -(-rows // CHUNK_ROWS))
    with StoredWorkers(store, _describe(config, cache), engine, tasks_per_shard, progress) as workers:
        return prepare_with_workers(config, folder, cache, stages or ignore, workers=workers)


def _describe(config: RunConfig, cache: Path | None) -> dict[str, Any]:
    """Return everything that the results of the passes depend on, for the manifest (JSON).

    A listed corpus is identified by its name, since the hashes of its files are fixed.
    """
    from rnnsearch.data.corpus import check_files
    from rnnsearch.data.prepare import data_files

    files = data_files(config.data)
    check_files([config.base / name for name in files])
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": metadata.version("rnnsearch"),
        "[data]": config.data.model_dump(mode="json"),
        "[text]": config.text.model_dump(mode="json"),
        "files": {name: digest(config.base / name) for name in files},
    }
    folders = config.text.tokenizers
    if isinstance(folders, str):
        about["tokenizers"] = digest(config.base / folders)
    elif folders is not None:
        about["tokenizers"] = {language: digest(config.base / folder) for language, folder in folders.items()}
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
        # "rows", although these are tasks: the name in manifests, like that of `jobs.run`.
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
    ) -> Iterator[Result]:
        """Yield results like `Workers.map`, once all shards of the pass are done.

        Nothing is done before the first result is requested. Then all tasks are stored, unless an earlier run has
        stored them, and all shards are processed; results are read from the store shard by shard. The number of a pass
        is also given at its first request, so passes must be started in the same order in every run.

        Raises:
            DataError: The store holds another run (see `_start`). Exceptions of the function, the store and the engine
                are raised, too.
        """
        self._start()
        key = jobs.digest_key([self._about, next(self._pass_numbers), function.__name__])
        types = _PassTypes.of(function, len(common))
        make_handler = _TasksHandlerFactory(self._store, f"{key}{COMMON_SUFFIX}", function, len(common))
        job = Job(self._store, key, make_handler)
        num_shards = self._write_inputs(job, types, tasks, common, self._tasks_per_shard)
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
            yield from from_bytes(self._store.read(name), types.results, f"{self._store}/{name}")

    def _start(self) -> None:
        """Lock the store and write the manifest, at the first pass.

        Raises:
            DataError: The store has the manifest of another run. Files of a run without a manifest are removed.
        """
        if self._is_started:
            return
        self._lock.enter_context(self._store.locked())
        if jobs.read_manifest(self._store, self._about) is None:
            jobs.clear_run(self._store)
            jobs.write_manifest(self._store, self._about)
        self._is_started = True

    def _write_inputs(
        self,
        job: Job,
        types: _PassTypes,
        tasks: Iterable[tuple[Any, ...]],
        common: tuple[Any, ...],
        tasks_per_shard: int,
    ) -> int:
        """Write the inputs of all shards of a pass, unless an earlier run has, and return the number of shards."""
        count_name = f"{job.key}{COUNT_SUFFIX}"
        if count_name in self._store.names():
            return int(from_json(self._store.read(count_name), int, f"{self._store}/{count_name}"))
        remaining = iter(tasks)
        num_shards = 0
        self._store.write(f"{job.key}{COMMON_SUFFIX}", to_bytes(common, types.common))
        while shard := list(islice(remaining, tasks_per_shard)):
            self._store.write(job.input_name(num_shards), to_bytes(shard, types.tasks))
            num_shards += 1
        self._store.write(count_name, to_json(num_shards))  # last: its presence means that all inputs are stored
        return num_shards

    def _report(self, function: Callable[..., Any], num_done: int, num_shards: int) -> None:
        if self._progress is not None:
            self._progress(function.__name__, num_done, num_shards)


class _PassTypes(NamedTuple):
    """Types of the stored values of a pass."""

    common: Any
    """Type of the tuple of arguments that all tasks share."""
    tasks: Any
    """Type of the list of a shard's tasks."""
    results: Any
    """Type of the list of a shard's results."""

    @classmethod
    def of(cls, function: Callable[..., Any], num_common: int) -> _PassTypes:
        """Return the types that a function declares, the first `num_common` of whose arguments all tasks share."""
        hints = get_type_hints(function)
        arguments = [hints[name] for name in inspect.signature(function).parameters]
        task = GenericAlias(tuple, tuple(arguments[num_common:]))
        return cls(
            common=GenericAlias(tuple, tuple(arguments[:num_common])),
            tasks=GenericAlias(list, (task,)),
            results=GenericAlias(list, (hints["return"],)),
        )


@dataclass(frozen=True)
class _TasksHandlerFactory:
    """Makes the handler of a pass's shards; picklable, for workers."""

    store: Store
    common_name: str
    function: Callable[..., Any]
    num_common: int

    def __call__(self) -> Handler:
        types = _PassTypes.of(self.function, self.num_common)
        location = f"{self.store}/{self.common_name}"
        common = from_bytes(self.store.read(self.common_name), types.common, location)
        return partial(_run_tasks, self.function, types, common)


def _run_tasks(
    function: Callable[..., Any], types: _PassTypes, common: tuple[Any, ...], content: bytes, location: str
) -> bytes:
    """Return the stored results of a shard's tasks; see `StoredWorkers.map` for the arguments."""
    tasks = from_bytes(content, types.tasks, location)
    return to_bytes([function(*common, *task) for task in tasks], types.results)
