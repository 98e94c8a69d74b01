"""The plain engine; `on_ray` has the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rnnsearch.bulk.shards import Job


def local(job: Job, missing: Sequence[int]) -> Iterator[int]:
    """One range after the other, in this process."""
    if not missing:
        return
    work = job.make()
    for number in missing:
        job.do(work, number)
        yield number
