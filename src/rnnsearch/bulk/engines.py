"""Engines, which process the missing shards of a job: in this process, on the cores of this machine, or on Ray.

An engine is a function of a job and the numbers of the missing shards (see `jobs.Engine`).

`cli/bulk.py` chooses one by `--engine`. Shards may be processed twice or in any order; an error of the user
(`RnnsearchError`) must reach the caller unchanged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from rnnsearch.bulk.jobs import Job, JobWorker
from rnnsearch.data.workers import Pool, cores
from rnnsearch.errors import DataError, RnnsearchError

MAX_BLOCKS = 1000
"""Blocks in which shards are handed to Ray: many more than actors, so that none is idle at the end, but not too many
for Ray's scheduler."""


def local(job: Job, missing: Sequence[int]) -> Iterator[int]:
    """Process one shard after the other in this process."""
    yield from map(JobWorker(job).do, missing)


class OnCores:
    """Engine on the cores of this machine; its processes serve several jobs until the context ends."""

    def __init__(self, processes: int | None = None) -> None:
        """Create the engine with a number of processes, by default one per core."""
        self._pool = Pool(processes or cores())

    def __enter__(self) -> OnCores:
        return self

    def __exit__(
        self, type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.__exit__(type, error, trace)

    def __call__(self, job: Job, missing: Sequence[int]) -> Iterator[int]:
        """Process the missing shards.

        Raises:
            RnnsearchError: A process ended unexpectedly. Exceptions of the work are raised, too.
        """
        return self._pool.map(JobWorker.do, ((number,) for number in missing), (JobWorker(job),))


class OnRay:
    """Engine on a Ray cluster: Ray Data with an autoscaling pool of actors.

    The cluster is found in Ray's usual ways (`RAY_ADDRESS`, or a cluster that this machine belongs to). If there is
    none, Ray is started on this machine and stopped after the job or, if the engine is used as a context, at the end of
    the context.
    """

    def __init__(self, actors: int | None = None, cpus: int = 1, gpus: int = 0) -> None:
        """Create the engine.

        Args:
            actors: Maximum number of actors; by default as many as the cluster has capacity for.
            cpus: CPUs per actor.
            gpus: GPUs per actor.

        Raises:
            RnnsearchError: Ray is not installed.
        """
        try:
            import ray.data  # noqa: F401
        except ImportError as error:
            raise RnnsearchError(f'the engine "ray" needs a library: pip install "ray[data]"; got: {error}') from None
        self._actors = actors
        self._cpus = cpus
        self._gpus = gpus
        self._context: ExitStack | None = None

    def __enter__(self) -> OnRay:
        self._context = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None

    def __call__(self, job: Job, missing: Sequence[int]) -> Iterator[int]:
        """Process the missing shards.

        Raises:
            RnnsearchError: The work raised it, in any process, or Ray fails.
        """
        if not missing:
            return
        from ray import data

        with ExitStack() as call_context, _translate_ray_errors():
            (self._context or call_context).enter_context(_cluster())
            items: list[Any] = [{"number": number} for number in missing]
            rows = data.from_items(items, override_num_blocks=min(len(items), MAX_BLOCKS)).map(
                RayActor,  # type: ignore[arg-type]
                fn_constructor_args=[job],
                compute=data.ActorPoolStrategy(min_size=1, max_size=self._actors),
                num_cpus=self._cpus,
                num_gpus=self._gpus,
            )
            for row in rows.iter_rows():
                if row["error"]:
                    raise (DataError if row["is_data_error"] else RnnsearchError)(row["error"])
                yield int(row["number"])


class RayActor:
    """A process of the pool. It writes outputs to the store; only numbers go through Ray.

    If it is restarted, or gets a shard again, it skips shards whose output is in the store.
    """

    def __init__(self, job: Job) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not respect an actor's CPUs
        self._worker = JobWorker(job)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Process the shard of a row; a user error is returned as text, because Ray would retry after an exception."""
        try:
            self._worker.do(int(row["number"]))
        except RnnsearchError as error:
            return {**row, "error": str(error), "is_data_error": isinstance(error, DataError)}
        return {**row, "error": "", "is_data_error": False}


@contextmanager
def _cluster() -> Iterator[None]:
    """Connect to a cluster, or start Ray on this machine, unless that has been done already."""
    import ray
    from ray.data import DataContext

    is_new = not ray.is_initialized()
    try:
        if is_new:
            ray.init(logging_level=logging.ERROR, log_to_driver=False)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        yield
    finally:
        if is_new:
            ray.shutdown()


@contextmanager
def _translate_ray_errors() -> Iterator[None]:
    """Raise RnnsearchError for exceptions of Ray."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except (RayError, ConnectionError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[-1] if isinstance(error, RayTaskError) else lines[0]  # the last line of a traceback
        advice = "finished shards are kept; run the same command again to resume"
        raise RnnsearchError(f"Ray failed: {reason}; {advice}") from error
