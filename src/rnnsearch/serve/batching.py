"""Sentences of many requests, translated together: the queue of a model, and the places where batches are worked on.

A batch is what waits when a place becomes free, so batches grow with the load by themselves. Few sentences have all the
processor's threads to themselves; where more wait, each thread takes a batch of its own, so that none waits for another
and the event loop is served while they compute. After a batch of several requests their senders are likely to send more
at once: the next batch then waits a little for its share of them, because large batches cost less a sentence. A lone
request never waits.

Requests share the model fairly, by what their sentences cost (self-clocked fair queueing: Golestani 1994): the clock is
at the turn of what was begun last, and a request's next turn is so far ahead as its next sentence costs. One of
thousands of sentences is in nobody's way. Nor is one with the longest sentence and the widest beam: no batch takes more
than a quarter of a second, and a sentence that would is worked on behind the others, by a thread that stands back.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from rnnsearch.search.workers import FEWEST
from rnnsearch.serve.limits import ServeError, Settings

BESIDES = 15
"""Symbols that cost as much as a sentence does whatever its length (of one, 10 and 49 symbols: 3.5, 4.5 and 13 ms)."""
MOST_SECONDS = 0.25
"""Of a batch."""
SHARES = 4
"""Requests of any size that fill the queue."""
Result = TypeVar("Result")
Other = TypeVar("Other")


class Job(NamedTuple):
    """One sentence to be worked on."""

    text: str
    symbols: int
    """Its length, for the token budget."""
    prefix: str = ""
    """What its translation must begin with."""
    beam: int = 1
    terms: tuple[str, ...] = ()
    """What it must hold."""

    @property
    def cost(self) -> int:
        """Of its search, in symbols of a greedy one."""
        return (self.symbols + BESIDES) * self.beam


class BatchReport(NamedTuple):
    """What became of a batch."""

    sentences: int
    requests: int
    seconds: float
    failed: int


class Workers(NamedTuple):
    """Threads that work on batches at the same time, each on its own; and one of low priority for long sentences."""

    pool: ThreadPoolExecutor
    threads: int
    back: ThreadPoolExecutor


@dataclass(eq=False)
class _Request:
    """Sentences that were sent together, how many of them count as waiting, and when it is the next one's turn."""

    jobs: Sequence[Job]
    key: Hashable
    share: int
    turn: int
    answer: asyncio.Future[list[Any]]
    """A result or an exception a job. One future, for a sender who leaves gives up all of them at once."""
    function: Callable[[], Any] | None
    """What is done instead of a job: see `aside`."""
    begun: int = 0

    def __post_init__(self) -> None:
        self.outcomes: list[Any] = [None] * len(self.jobs)
        self.missing = len(self.jobs)

    @property
    def next(self) -> Job:
        """The first job that is not begun."""
        return self.jobs[self.begun]

    @property
    def counted(self) -> int:
        """Of what waits, if its sender does."""
        return 0 if self.answer.done() else min(len(self.jobs) - self.begun, self.share)

    def settle(self, number: int, outcome: Any) -> None:
        """Keep what became of a job; the last one ends the request."""
        self.outcomes[number] = outcome
        self.missing -= 1
        if not self.missing and not self.answer.done():
            self.answer.set_result(self.outcomes)


class _Item(NamedTuple):
    """A job that is begun: the one of this number in its request."""

    request: _Request
    number: int

    @property
    def job(self) -> Job:
        return self.request.jobs[self.number]


class Batcher(Generic[Result]):
    """The queue of one model. `work(key, jobs)` returns a result a job, in a thread of its own; where it raises, the
    jobs are tried one by one, so that a fault is its own request's alone. With `workers`, it is also called in several
    of those threads at once."""

    def __init__(
        self,
        work: Callable[[Any, list[Job]], Sequence[Result]],
        settings: Settings,
        on_batch: Callable[[BatchReport], None] | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._work = work
        self._settings = settings
        self._on_batch = on_batch
        self._queue: list[_Request] = []
        """Those of which something waits, the next in turn first."""
        self._clock = 0
        """The latest turn that has begun."""
        self._changed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._beside, self._threads = (workers.pool, workers.threads) if workers else (self._thread, 1)
        self._back = workers.back if workers else None
        self._running = 0
        """Batches that are worked on."""
        self._long = False
        """Whether a long sentence is, behind them."""
        self._alone = False
        """Whether the one that is has all threads."""
        self._closed = False
        self._pace = 0.05
        """Seconds a sentence, lately: what Retry-After is made of."""
        self._speed = 10_000.0
        """What a batch does in a second, lately, as `Job.cost` counts it."""
        self._open = 0
        """Requests that wait for their results."""
        self._expected, self._patience = 1, 0.0
        """Sentences that the next batch waits for, and seconds that it does."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(run()) for run in (self._run, self._run_long)]

    @property
    def waiting(self) -> int:
        """Sentences in the queue. Of a request larger than its share no more than that is counted, for no more is in
        the way of others."""
        return sum(request.counted for request in self._queue)

    async def submit(self, jobs: Sequence[Job], key: Hashable, patient: bool = False) -> list[Result]:
        """The jobs' results. Jobs of equal `key` may share a batch. `patient` work is not refused for the
        queue's length.

        Errors: ServeError 429 where too much is waiting, 503 after `close`; what `work` raised for the first job that
        failed.
        """
        if not jobs:
            return []
        request = self._put(jobs, key, patient)
        self._open += 1
        try:
            return _results(await request.answer)
        finally:
            self._open -= 1

    async def aside(self, function: Callable[[], Other], symbols: int) -> Other:
        """Do something else in a batch's place, which costs as much as a search of so many symbols.

        Errors: ServeError as in `submit`; what `function` raises.
        """
        [result] = _results(await self._put([Job("", symbols)], object(), function=function).answer)
        found: Other = result
        return found

    def _put(
        self, jobs: Sequence[Job], key: Hashable, patient: bool = False, function: Callable[[], Any] | None = None
    ) -> _Request:
        """A request, in the queue. Errors: ServeError 429 or 503."""
        if self._closed:
            raise ServeError(503, "the server is shutting down", 1)
        share = max(1, self._settings.max_queue // SHARES)
        count, room = min(len(jobs), share), self._settings.max_queue - self.waiting
        if not patient and count > room:
            wait = max(1, round(self.waiting * self._pace))
            raise ServeError(429, f"the queue must have room for {count} sentences; it has for {max(room, 0)}", wait)
        request = _Request(jobs, key, share, self._clock, asyncio.get_running_loop().create_future(), function)
        self._wait(request)
        self._changed.set()
        return request

    def _wait(self, request: _Request) -> None:
        """Until the turn of its first sentence."""
        request.turn += request.next.cost
        insort(self._queue, request, key=lambda waiting: waiting.turn)

    async def close(self) -> None:
        """Begin no more batches. What waits is cancelled."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for request in self._queue:
            request.answer.cancel()
        for pool in (self._thread, self._beside, self._back):
            if pool is not None:
                pool.shutdown(wait=False)

    async def _run(self) -> None:
        while True:
            await self._until(lambda: self._free > 0 and not all(map(self._is_long, self._queue)))
            # As many sentences as are likely to come are waited for, but not for long.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await self._until(self._full)
            self._start()

    async def _run_long(self) -> None:
        while True:
            await self._until(lambda: not self._long and any(map(self._is_due, self._queue)))
            request = next(filter(self._is_due, self._queue))
            self._queue.remove(request)
            if not request.answer.done():
                self._long = True
                self._begin([self._next(request)], self._back, self._long_finished)

    async def _until(self, fits: Callable[[], bool]) -> None:
        while not fits():
            self._changed.clear()
            await self._changed.wait()

    @property
    def _free(self) -> int:
        """How many batches can begin now."""
        return 0 if self._alone else self._threads - self._running

    @property
    def _most_cost(self) -> float:
        """Of a batch of several."""
        return MOST_SECONDS * self._speed

    def _is_long(self, request: _Request) -> bool:
        """Whether its next sentence is worked on behind the others."""
        return self._back is not None and request.next.cost > self._most_cost

    def _is_due(self, request: _Request) -> bool:
        """Whether a long sentence may begin: in its turn, or where nobody is in its way."""
        return self._is_long(request) and (request.turn <= self._clock or not self._running)

    def _full(self) -> bool:
        """Whether what waits is worth a batch. While all threads are idle, less is: they must not begin and end
        together, or all would be idle again while the event loop answers everybody."""
        idle = self._threads > 1 and not self._running
        return self.waiting >= (-(-self._expected // 4) if idle else self._expected)

    def _start(self) -> None:
        """Begin a batch of what waits: of all, or of the share of one of the free threads."""
        waiting, free = self.waiting, self._free
        most = self._settings.batch_sentences
        alone = self._threads == 1 or (not self._running and max(waiting, self._open) < 2 * FEWEST)
        if not alone:
            most = min(most, max(FEWEST, self._expected, -(-waiting // free)))
        items = self._take(most)
        if items:
            self._running, self._alone = self._running + 1, alone
            self._begin(items, self._thread if alone else self._beside, self._finished)

    def _begin(self, items: list[_Item], pool: ThreadPoolExecutor | None, finished: Callable[..., None]) -> None:
        done = asyncio.get_running_loop().run_in_executor(pool, self._outcomes, items)
        done.add_done_callback(partial(self._settle, items, time.monotonic(), finished))

    def _settle(
        self, items: list[_Item], begin: float, finished: Callable[..., None], done: asyncio.Future[list[Any]]
    ) -> None:
        """Give everybody his result."""
        seconds, outcomes = time.monotonic() - begin, done.result()
        requests = len({item.request for item in items})
        finished(items, requests, seconds)
        self._changed.set()
        for item, outcome in zip(items, outcomes, strict=True):
            item.request.settle(item.number, outcome)
        if self._on_batch is not None and items[0].request.function is None:
            failed = sum(isinstance(outcome, Exception) for outcome in outcomes)
            self._on_batch(BatchReport(len(items), requests, seconds, failed))

    def _long_finished(self, *_: Any) -> None:
        self._long = False

    def _finished(self, items: list[_Item], requests: int, seconds: float) -> None:
        self._pace = 0.8 * self._pace + 0.2 * seconds / (len(items) * self._running)
        self._running, self._alone = self._running - 1, False
        if items[0].request.function is not None:
            return
        self._speed = 0.8 * self._speed + 0.2 * sum(item.job.cost for item in items) / max(seconds, 1e-6)
        # Where one batch is worked on at a time, those who wait are served next; else all share the places.
        coming = requests if self._threads == 1 else -(-self._open // self._threads)
        self._expected = min(coming, self._settings.batch_sentences)
        self._patience = max(self._settings.window, seconds / 3)

    def _take(self, most: int) -> list[_Item]:
        """Sentences that may share a batch, at most so many, in their turns. Of one request no more than its share of
        those that are open: a batch filled up with its sentences would keep all the others waiting."""
        share = -(-most // max(1, self._open))
        count = Counter[_Request]()
        taken: list[_Item] = []
        others: list[_Request] = []
        longest = cost = 0
        while self._queue and len(taken) < most:
            request = self._queue.pop(0)
            if request.answer.done():  # its sender has left
                continue
            job = request.next
            width = max(longest, job.symbols)
            full = width * (len(taken) + 1) > self._settings.batch_tokens or cost + job.cost > self._most_cost
            apart = bool(taken) and (full or count[request] == share or request.key != taken[0].request.key)
            if apart or self._is_long(request):
                others.append(request)
                continue
            count[request] += 1
            longest, cost, self._clock = width, cost + job.cost, max(self._clock, request.turn)
            taken.append(self._next(request))
        self._queue[:0] = others
        return taken

    def _next(self, request: _Request) -> _Item:
        """Its next sentence; what is left of it waits."""
        item = _Item(request, request.begun)
        request.begun += 1
        if request.begun < len(request.jobs):
            self._wait(request)
        return item

    def _outcomes(self, items: list[_Item]) -> list[Result | Exception]:
        """In a thread of its own: a result or an exception an item."""
        request = items[0].request
        try:
            if request.function is not None:
                return [request.function()]
            return list(self._work(request.key, [item.job for item in items]))
        except Exception as error:
            if len(items) == 1:
                return [error]
        return [outcome for item in items for outcome in self._outcomes([item])]


def _results(outcomes: list[Any]) -> list[Any]:
    """The outcomes, none of which is an exception. Errors: the first that is one."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes
