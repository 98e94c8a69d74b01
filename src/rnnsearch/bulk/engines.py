"""Pieces on the machines of a Ray cluster, or the cores of this one: Ray Data over an autoscaling pool of actors."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from rnnsearch.bulk.jobs import Job, Worker
from rnnsearch.data.workers import Pool, cores
from rnnsearch.errors import DataError, RnnsearchError

# The engines of one machine; `on_ray` has the other.


def local(job: Job, missing: Sequence[int]) -> Iterator[int]:
    """One piece after the other, in this process."""
    yield from map(Worker(job).do, missing)


class OnCores:
    """The cores of this machine: processes that serve one job after the other until the context ends."""

    def __init__(self, processes: int | None = None) -> None:
        """`processes`: how many, else as many as there are cores."""
        self._pool = Pool(processes or cores())

    def __enter__(self) -> OnCores:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.__exit__(kind, error, at)

    def __call__(self, job: Job, missing: Sequence[int]) -> Iterator[int]:
        """Errors: those of the work; RnnsearchError where a process ends before its time."""
        return self._pool.map(Worker.do, ((number,) for number in missing), (Worker(job),))


BLOCKS = 1000
"""Blocks that the pieces are handed out in, at most: many more than actors, so that none is idle at the end, and few
enough for Ray's books."""


class Actor:
    """One process of the pool. It writes what it does to the store itself; through Ray go numbers alone. Started again,
    or given a piece once more, it does none that is in the store."""

    def __init__(self, job: Job) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # whose threads know nothing of an actor's CPUs
        self._worker = Worker(job)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """A piece, by its number; what is the user's fault comes back as text, since Ray would only try again."""
        try:
            self._worker.do(int(row["number"]))
        except RnnsearchError as error:
            return {**row, "fault": str(error), "of_data": isinstance(error, DataError)}
        return {**row, "fault": "", "of_data": False}


class OnRay:
    """The engine. A cluster is found as Ray finds it (`RAY_ADDRESS`, or one that this machine is of); where there is
    none, one of this machine alone is begun, and ends with the work; as a context, with that, for several jobs."""

    def __init__(self, actors: int | None = None, cpus: int = 1, gpus: int = 0) -> None:
        """`actors`: how many at most, else as many as there is room for; each takes so many CPUs and GPUs.

        Errors: RnnsearchError where Ray is not installed.
        """
        try:
            import ray.data  # noqa: F401
        except ImportError as error:
            raise RnnsearchError(f'the engine "ray" needs a library: pip install "ray[data]"; got: {error}') from None
        self._actors, self._cpus, self._gpus = actors, cpus, gpus
        self._held: ExitStack | None = None

    def __enter__(self) -> OnRay:
        self._held = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def __call__(self, job: Job, missing: Sequence[int]) -> Iterator[int]:
        """Errors: RnnsearchError for what is the user's fault, in whatever process, and where Ray fails."""
        if not missing:
            return
        from ray import data

        with ExitStack() as own, _told():
            (self._held or own).enter_context(_cluster())
            items: list[Any] = [{"number": number} for number in missing]
            done = data.from_items(items, override_num_blocks=min(len(items), BLOCKS)).map(
                Actor,  # type: ignore[arg-type]
                fn_constructor_args=[job],
                compute=data.ActorPoolStrategy(min_size=1, max_size=self._actors),
                num_cpus=self._cpus,
                num_gpus=self._gpus,
            )
            for row in done.iter_rows():
                if row["fault"]:
                    raise (DataError if row["of_data"] else RnnsearchError)(row["fault"])
                yield int(row["number"])


@contextmanager
def _cluster() -> Iterator[None]:
    import ray
    from ray.data import DataContext

    own = not ray.is_initialized()
    try:
        if own:
            ray.init(logging_level=logging.ERROR, log_to_driver=False)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        yield
    finally:
        if own:
            ray.shutdown()


@contextmanager
def _told() -> Iterator[None]:
    """Errors: RnnsearchError for what Ray raises."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except (RayError, ConnectionError, RuntimeError) as error:
        why = str(error).strip().splitlines() or [type(error).__name__]
        first = why[-1 if isinstance(error, RayTaskError) else 0]  # of a traceback, the end
        raise RnnsearchError(
            f"Ray could not go on: {first}; what was finished is kept: the same command goes on"
        ) from error
