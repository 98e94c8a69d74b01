"""Sentences of many requests, translated together: a queue, a batch at a time, one worker thread a model.

A batch is what waits when the worker becomes free, so batches grow with the load by themselves. After a batch of
several requests their senders are likely to send more at once: the next batch then waits up to a few milliseconds
for them. A lone request never waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from rnnsearch.serve.limits import ServeError, Settings

Result = TypeVar("Result")
Other = TypeVar("Other")


class Job(NamedTuple):
    """One sentence to be worked on."""

    text: str
    symbols: int
    """Its length, for the token budget."""
    prefix: str | None = None
    """What its translation must begin with."""


class Formed(NamedTuple):
    """What is told of a batch that was worked on."""

    sentences: int
    requests: int
    seconds: float
    failed: int


@dataclass(eq=False)
class _Item(Generic[Result]):
    job: Job
    key: Hashable
    request: int
    future: asyncio.Future[Result]
    since: float = field(default_factory=time.monotonic)


class Batcher(Generic[Result]):
    """The queue of one model. `work(key, jobs)` runs in the worker thread and returns a result a job; where it
    raises, the jobs are tried one by one, so that a fault is its own request's alone."""

    def __init__(
        self,
        work: Callable[[Any, list[Job]], Sequence[Result]],
        settings: Settings,
        told: Callable[[Formed], None] | None = None,
    ) -> None:
        self._work = work
        self._settings = settings
        self._told = told
        self._queue: deque[_Item[Result]] = deque()
        self._changed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._requests = self._asides = 0
        self._pace = 0.05
        """Seconds a sentence, lately: what Retry-After is made of."""
        self._crowd = 1
        """Requests in the batch before."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def waiting(self) -> int:
        """Sentences in the queue."""
        return len(self._queue) + self._asides

    async def submit(self, jobs: Sequence[Job], key: Hashable, patient: bool = False) -> list[Result]:
        """The jobs' results. Jobs of equal `key` may share a batch. `patient` work is not refused for the
        queue's length.

        Errors: ServeError 429 where too much is waiting; what `work` raised for the first job that failed.
        """
        if not patient:
            self._require_room(len(jobs))
        self._requests += 1
        loop = asyncio.get_running_loop()
        items = [_Item(job, key, self._requests, loop.create_future()) for job in jobs]
        self._queue.extend(items)
        self._changed.set()
        try:
            # All of them, before the first fault is raised: none is left behind unseen.
            done = await asyncio.gather(*(item.future for item in items), return_exceptions=True)
        except asyncio.CancelledError:
            for item in items:
                item.future.cancel()
            raise
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
        return done  # type: ignore[return-value]  # none is an exception

    async def aside(self, function: Callable[[], Other]) -> Other:
        """Run something else in the worker thread, between batches. Errors: ServeError 429 as in `submit`."""
        self._require_room(1)
        self._asides += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        finally:
            self._asides -= 1

    def _require_room(self, count: int) -> None:
        room = self._settings.max_queue - self.waiting
        if count > room and self.waiting:
            wait = max(1, round(self.waiting * self._pace))
            raise ServeError(429, f"the queue must have room for {count} sentences; it has for {max(room, 0)}", wait)

    async def close(self) -> None:
        """Stop the worker. What waits is cancelled."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for item in self._queue:
            item.future.cancel()
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._fill(1)
            if self._crowd > 1:
                await self._gather()
            items = self._take()
            if not items:
                continue
            begin = time.monotonic()
            outcomes = await loop.run_in_executor(self._thread, self._outcomes, items)
            seconds = time.monotonic() - begin
            self._pace = 0.8 * self._pace + 0.2 * seconds / len(items)
            self._crowd = len({item.request for item in items})
            for item, outcome in zip(items, outcomes, strict=True):
                if item.future.done():
                    continue
                if isinstance(outcome, Exception):
                    item.future.set_exception(outcome)
                else:
                    item.future.set_result(outcome)
            if self._told is not None:
                failed = sum(isinstance(outcome, Exception) for outcome in outcomes)
                self._told(Formed(len(items), self._crowd, seconds, failed))

    async def _fill(self, count: int) -> None:
        """Wait until so many sentences are in the queue."""
        while len(self._queue) < count:
            self._changed.clear()
            await self._changed.wait()

    async def _gather(self) -> None:
        """Wait for as many sentences as there were requests lately, but no longer than the window."""
        try:
            await asyncio.wait_for(self._fill(min(self._crowd, self._settings.batch_sentences)), self._settings.window)
        except TimeoutError:
            return

    def _take(self) -> list[_Item[Result]]:
        """The first sentence that waits and, in order, those that may share its batch."""
        taken: list[_Item[Result]] = []
        left: deque[_Item[Result]] = deque()
        longest = 0
        while self._queue and len(taken) < self._settings.batch_sentences:
            item = self._queue.popleft()
            if item.future.done():  # given up meanwhile
                continue
            width = max(longest, item.job.symbols)
            if taken and (item.key != taken[0].key or width * (len(taken) + 1) > self._settings.batch_tokens):
                left.append(item)
                continue
            longest = width
            taken.append(item)
        left.extend(self._queue)
        self._queue = left
        return taken

    def _outcomes(self, items: list[_Item[Result]]) -> list[Result | Exception]:
        """In the worker thread: a result or an exception an item."""
        try:
            return list(self._work(items[0].key, [item.job for item in items]))
        except Exception as error:
            if len(items) == 1:
                return [error]
        return [outcome for item in items for outcome in self._outcomes([item])]
