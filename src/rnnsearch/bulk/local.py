"""The engines of one machine; `on_ray` has the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType

from rnnsearch.bulk.jobs import Job, Worker
from rnnsearch.data.workers import Pool, cores


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
