"""The queue of a model: makes batches from the sentences of many requests and translates them in worker threads.

`ServedModel` (`registry.py`) has one `Batcher` per model; `observability.py` counts its `BatchReport`s.
`Batcher.submit` queues the sentences of a request, `_start_batch` and `_take_batch` form a batch from the queue, and
`_run_batch` translates it in a thread.

- A batch consists of whatever waits when a thread becomes free, so batches grow with the load.
- A few sentences use all threads of the processor. If more wait, each thread translates a batch of its own, so that no
  thread waits for another and the event loop is served while they compute.
- After a batch of several requests, their clients are likely to send more at once. The next batch waits for these for a
  few milliseconds, because large batches cost less per sentence. A single client never waits.
- Clients share the model by the cost of their sentences, and so do the requests of a client (self-clocked fair
  queueing, Golestani 1994). A virtual clock shows the turn of the sentence that was started last, and the next turn of
  a client or request is later by the cost of its next sentence. So no request with thousands of sentences, or with long
  sentences and wide beams, holds others up, and many such requests at once do not hold up other clients.
- No batch takes more than `MAX_BATCH_SECONDS` of processor time. A sentence that would take more than
  `MAX_SENTENCE_SECONDS` by itself is translated by a thread of low priority. Estimates are by processor time where
  threads compute: by the clock, a busy machine would make all sentences seem long, and it hardly runs the thread of low
  priority.

All state is changed in the event loop's thread only, so there are no locks; only `_run_batch` and the functions of
`call` run in worker threads, and they must not touch the queue.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, Generic, NamedTuple, TypeVar

from rnnsearch.search.workers import MIN_SENTENCES_PER_THREAD
from rnnsearch.serve.limits import ServeError, Settings
from rnnsearch.text.terms import Forms, TermMatch
from rnnsearch.text.tokenizer import Segmented

SENTENCE_OVERHEAD_TOKENS = 15  # measured: sentences of 1, 10 and 49 tokens take 3.5, 4.5 and 13 ms
# Measured in the same unit: the aligner takes 35, 64, 95, 230, 880 and 5,300 for 15, 66, 121, 224, 418 and 811 tokens.
ALIGNMENT_OVERHEAD_TOKENS = 30
ALIGNMENT_TOKENS = 48
MAX_BATCH_SECONDS = 0.25
MAX_SENTENCE_SECONDS = 0.1  # longer ones are translated in a thread of low priority
MAX_QUEUE_FRACTION_PER_REQUEST = 1 / 4
AVERAGE_WEIGHT = 0.2  # weight of the latest batch in moving averages

Result = TypeVar("Result")
Other = TypeVar("Other")


class TranslationJob(NamedTuple):
    """One sentence to translate."""

    source: Segmented
    """The sentence and its tokens."""
    num_tokens: int
    """Length for the token budget: source tokens, plus tokens that the terms may have."""
    prefix: str = ""
    """Text that the translation must begin with."""
    beam: int = 1
    """Beam size."""
    aligned: int = 0
    """Number of translations that the aligner aligns."""
    terms: tuple[TermMatch[Forms], ...] = ()
    """Terms of a glossary, to be placed in the translation."""

    @property
    def cost(self) -> int:
        """The estimated cost of the search and of alignments, in tokens of a greedy search."""
        search = (self.num_tokens + SENTENCE_OVERHEAD_TOKENS) * self.beam
        # The aligner's forward-backward algorithm takes cubic time.
        alignment = ALIGNMENT_OVERHEAD_TOKENS + self.num_tokens / 2 + (self.num_tokens / ALIGNMENT_TOKENS) ** 3
        return search + round(self.aligned * alignment)


NO_SOURCE = Segmented("", [], [], [])


class BatchReport(NamedTuple):
    """Statistics of a finished batch."""

    sentences: int
    requests: int
    """Number of requests with sentences in the batch."""
    seconds: float
    """Time of the batch."""
    failed: int
    """Number of sentences whose translation raised an exception."""


class WorkerThreads(NamedTuple):
    """Threads that translate batches at the same time."""

    pool: ThreadPoolExecutor
    """Threads with one batch each."""
    threads: int
    """Number of threads of the pool."""
    low_priority: ThreadPoolExecutor
    """The thread for sentences that take long."""


@dataclass(eq=False)
class _Request:
    """The sentences of one request, in the queue until the last one has started."""

    jobs: Sequence[TranslationJob]
    key: Hashable
    max_waiting: int
    """Maximum number of sentences that count as waiting."""
    client: _Client
    """The client that sent it."""
    turn: int
    """Virtual time of the client at which the next sentence may start."""
    response: asyncio.Future[list[Any]]
    """A result or an exception per job. One future for all, because a client that disconnects abandons all at once."""
    function: Callable[[], Any] | None
    """Function to call instead of translating the only job (see `Batcher.call`)."""
    started: int = 0
    """Number of jobs that have started."""

    def __post_init__(self) -> None:
        self.outcomes: list[Any] = [None] * len(self.jobs)
        self.unfinished = len(self.jobs)

    @property
    def next_job(self) -> TranslationJob:
        """The first job that has not started."""
        return self.jobs[self.started]

    @property
    def waiting(self) -> int:
        """Number of sentences that count as waiting; none if the client has disconnected."""
        if self.response.done():
            return 0
        return min(len(self.jobs) - self.started, self.max_waiting)

    def finish(self, position: int, outcome: Any) -> None:
        """Store the outcome of a job; the last one completes the response."""
        self.outcomes[position] = outcome
        self.unfinished -= 1
        if not self.unfinished and not self.response.done():
            self.response.set_result(self.outcomes)


@dataclass(eq=False)
class _Client:
    """The requests of a client that wait."""

    name: Hashable
    turn: int
    """Virtual time of the batcher at which its last sentence ended, or at which it came back."""
    queue: list[_Request] = field(default_factory=list)
    """Requests with waiting sentences, by their turns."""
    clock: int = 0
    """Virtual time of the client: latest turn of its requests that has started."""

    @property
    def waiting(self) -> int:
        """Number of its sentences in the queue."""
        return sum(request.waiting for request in self.queue)

    def next_turn(self, request: _Request) -> int:
        """Return the turn of the client if the next sentence of a request is started next."""
        return self.turn + request.next_job.cost


class _StartedJob(NamedTuple):
    """A job that has started: the one at this position in its request."""

    request: _Request
    position: int

    @property
    def job(self) -> TranslationJob:
        return self.request.jobs[self.position]


class Batcher(Generic[Result]):
    """The queue of one model."""

    def __init__(
        self,
        translate: Callable[[Any, list[TranslationJob], Callable[[], bool]], Sequence[Result]],
        settings: Settings,
        on_batch: Callable[[BatchReport], None] | None = None,
        workers: WorkerThreads | None = None,
    ) -> None:
        """Start to wait for jobs.

        Args:
            translate: Called in a thread with a key, the jobs of a batch, and a function that returns True when no
                client waits for them any more; returns one result per job. If it raises an exception, the jobs are
                tried one by one, so that a bad job only fails its own request.
            settings: Limits of the queue and of batches.
            on_batch: Called after each batch.
            workers: Threads for batches at the same time; by default, one thread translates all batches.
        """
        self._translate = translate
        self._settings = settings
        self._on_batch = on_batch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")  # its batches use all threads of torch
        self._pool = workers.pool if workers else self._thread
        self._pool_threads = workers.threads if workers else 1
        self._low_priority = workers.low_priority if workers else None

        self._clients: dict[Hashable, _Client] = {}  # those with waiting requests, or ahead of the clock
        self._clock = 0  # latest turn of a client that has started
        self._changed = asyncio.Event()
        self._open_requests = Counter[Hashable]()  # requests of `submit` without a response, by client
        self._closed = False

        self._running_batches = 0
        self._uses_all_threads = False  # True while the only running batch uses all threads
        self._low_priority_runs = False

        self._seconds_per_sentence = 0.05  # moving average, for Retry-After
        self._cost_per_second = 10_000.0  # moving average of a batch, in units of `TranslationJob.cost`
        self._expected = 1  # sentences that the next batch waits for ...
        self._max_wait = 0.0  # ... for at most this many seconds
        loop = asyncio.get_running_loop()
        # The loop keeps only weak references to tasks, so they are stored.
        self._tasks = [loop.create_task(run()) for run in (self._start_batches, self._start_long_jobs)]

    @property
    def waiting(self) -> int:
        """Number of sentences in the queue; large requests count only up to their maximum fraction of it."""
        return sum(client.waiting for client in self._clients.values())

    async def submit(
        self, jobs: Sequence[TranslationJob], key: Hashable, patient: bool = False, client: Hashable = ""
    ) -> list[Result]:
        """Return the results of jobs.

        Args:
            jobs: Sentences of one request.
            key: Jobs with equal keys may share a batch.
            patient: True if the jobs are accepted even if the queue is full.
            client: Identity of the client, whose requests share its turns.

        Raises:
            ServeError: With status 429 if the queue is full, 503 after `close`.
            Exception: The exception of the first job that failed.
        """
        if not jobs:
            return []
        request = self._enqueue(jobs, key, patient, client)
        self._open_requests[client] += 1
        try:
            return _raise_first_error(await request.response)
        finally:
            self._open_requests -= Counter({client: 1})  # drops clients without requests

    async def call(self, function: Callable[[], Other], num_tokens: int, client: Hashable = "") -> Other:
        """Call a function in a model thread in place of a batch, and return its result.

        Args:
            function: The function.
            num_tokens: Its cost, as that of a greedy search for a sentence of this length.
            client: Identity of the client, as in `submit`.

        Raises:
            ServeError: As in `submit`.
            Exception: The exception of the function.
        """
        # A unique key, so that the function shares no batch.
        jobs = [TranslationJob(NO_SOURCE, num_tokens)]
        request = self._enqueue(jobs, object(), client=client, function=function)
        [outcome] = _raise_first_error(await request.response)
        result: Other = outcome
        return result

    def tokens_in(self, seconds: float) -> int:
        """Return the length of a sentence whose greedy search takes this time, for `call`."""
        return max(0, round(seconds * self._cost_per_second) - SENTENCE_OVERHEAD_TOKENS)

    def require_capacity(self, num_sentences: int, client: Hashable = "") -> None:
        """Raise ServeError with status 429 if the queue is too full for the sentences of a request.

        Each other client counts with at most half of the queue, so that a single one cannot fill it.
        """
        count = min(num_sentences, self._max_waiting_per_request)
        free = self._settings.max_queue
        for name, other in self._clients.items():
            free -= other.waiting if name == client else min(other.waiting, self._settings.max_queue // 2)
        if count > free:
            retry_after = max(1, round(self.waiting * self._seconds_per_sentence))
            message = f"the queue has {max(free, 0)} free slots, but {count} sentences were sent; try again later"
            raise ServeError(429, message, retry_after)

    @property
    def _max_waiting_per_request(self) -> int:
        """Maximum number of sentences of a request that count as waiting."""
        return max(1, int(self._settings.max_queue * MAX_QUEUE_FRACTION_PER_REQUEST))

    async def close(self) -> None:
        """Start no more batches, and cancel what waits and what is being translated."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for request in self._waiting_requests():
            request.response.cancel()
        for pool in (self._thread, self._pool, self._low_priority):
            if pool is not None:
                # Threads cannot be interrupted; running batches notice that they are cancelled.
                pool.shutdown(wait=False)

    def _enqueue(
        self,
        jobs: Sequence[TranslationJob],
        key: Hashable,
        patient: bool = False,
        client: Hashable = "",
        function: Callable[[], Any] | None = None,
    ) -> _Request:
        """Add a request to the queue.

        Raises:
            ServeError: With status 429 if the queue is full, 503 after `close`.
        """
        if self._closed:
            raise ServeError(503, "the server is shutting down", 1)
        if not patient:
            self.require_capacity(len(jobs), client)
        response = asyncio.get_running_loop().create_future()
        sender = self._clients.setdefault(client, _Client(client, self._clock))
        if not sender.queue:
            # An idle client gains no advantage.
            sender.turn = max(sender.turn, self._clock)
        request = _Request(jobs, key, self._max_waiting_per_request, sender, sender.clock, response, function)
        self._insert(request)
        self._changed.set()
        return request

    def _insert(self, request: _Request) -> None:
        """Insert a request in the queue of its client at the turn of its next sentence."""
        request.turn += request.next_job.cost
        # Among equal turns, after those that came before (`insort` inserts to the right).
        insort(request.client.queue, request, key=lambda waiting: waiting.turn)

    def _waiting_requests(self) -> Iterator[_Request]:
        """Yield all requests with waiting sentences."""
        for client in self._clients.values():
            yield from client.queue

    def _drop_idle_clients(self) -> None:
        """Drop the clients without waiting requests that are not ahead of the clock."""
        is_idle = not self._running_batches and not self._low_priority_runs and not any(self._waiting_requests())
        for name, client in [*self._clients.items()]:
            if not client.queue and (is_idle or client.turn <= self._clock):
                del self._clients[name]

    # From the queue to batches.

    async def _start_batches(self) -> None:
        """Start batches as threads become free, until cancelled."""
        while True:
            await self._wait_until(lambda: self._free_threads > 0 and self._has_short_job())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._max_wait):
                    await self._wait_until(self._has_enough)
            self._start_batch()

    async def _start_long_jobs(self) -> None:
        """Start long sentences in the thread of low priority, one at a time, until cancelled."""
        while True:
            await self._wait_until(
                lambda: not self._low_priority_runs and any(map(self._is_due, self._waiting_requests()))
            )
            due = filter(self._is_due, self._waiting_requests())
            request = min(due, key=lambda request: (request.client.turn, request.turn))
            request.client.queue.remove(request)
            if not request.response.done():
                self._low_priority_runs = True
                self._submit_to(self._low_priority, [self._start_next(request)], self._long_job_finished)
            self._drop_idle_clients()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            # Everything here runs in the event loop, so nothing can change between the check and the wait.
            self._changed.clear()
            await self._changed.wait()

    @property
    def _free_threads(self) -> int:
        """Number of batches that can start now."""
        return 0 if self._uses_all_threads else self._pool_threads - self._running_batches

    @property
    def _max_batch_cost(self) -> float:
        return MAX_BATCH_SECONDS * self._cost_per_second

    def _is_long(self, request: _Request) -> bool:
        """Return True if the next sentence is too expensive for a batch and has a thread of low priority."""
        max_cost = MAX_SENTENCE_SECONDS * self._cost_per_second
        return self._low_priority is not None and request.next_job.cost > max_cost

    def _has_short_job(self) -> bool:
        return not all(map(self._is_long, self._waiting_requests()))

    def _is_due(self, request: _Request) -> bool:
        """Return True if the next sentence is long and may start.

        That is at its turn among the client's requests, at the client's turn, or if no batch is running.
        """
        if not self._is_long(request):
            return False
        client = request.client
        is_clients_turn = request is client.queue[0] and client.next_turn(request) <= self._clock
        return request.turn <= client.clock or is_clients_turn or not self._running_batches

    def _has_enough(self) -> bool:
        """Return True if the waiting sentences are worth a batch."""
        # While all threads are idle, a fourth is enough. Otherwise all batches would start and end together, and all
        # threads would be idle again while the event loop sends the responses.
        all_idle = self._pool_threads > 1 and not self._running_batches
        return self.waiting >= (math.ceil(self._expected / 4) if all_idle else self._expected)

    def _start_batch(self) -> None:
        """Start a batch that uses all threads if few sentences wait, or else one of the pool's threads."""
        waiting = self.waiting
        max_sentences = self._settings.batch_sentences
        is_alone = (
            not self._running_batches and max(waiting, self._open_requests.total()) < 2 * MIN_SENTENCES_PER_THREAD
        )
        use_all_threads = self._pool_threads == 1 or is_alone
        if not use_all_threads:
            # Leave sentences for the other free threads.
            max_sentences = min(
                max_sentences, max(MIN_SENTENCES_PER_THREAD, self._expected, math.ceil(waiting / self._free_threads))
            )
        batch = self._take_batch(max_sentences)
        if batch:
            self._running_batches += 1
            self._uses_all_threads = use_all_threads
            self._submit_to(self._thread if use_all_threads else self._pool, batch, self._batch_finished)

    def _take_batch(self, max_sentences: int) -> list[_StartedJob]:
        """Return sentences for one batch, in the order of their turns, and remove them from the queue."""
        count_by_request = Counter[_Request]()
        batch: list[_StartedJob] = []
        max_tokens = 0
        total_cost = 0
        # The next turn of each client, its order of arrival, and the position of the request in its queue.
        turns: list[tuple[int, int, int, _Client]] = []
        for order, client in enumerate(self._clients.values()):
            if client.queue:
                turns.append((client.next_turn(client.queue[0]), order, 0, client))
        heapify(turns)
        while turns and len(batch) < max_sentences:
            _, order, position, client = heappop(turns)
            request = client.queue[position]
            job = request.next_job
            new_max_tokens = max(max_tokens, job.num_tokens)
            exceeds_budget = (
                new_max_tokens * (len(batch) + 1) > self._settings.batch_tokens
                or total_cost + job.cost > self._max_batch_cost
            )
            # The first sentence always fits, so that every sentence is translated at some time.
            is_full = count_by_request[request] == self._max_per_request(client, max_sentences)
            does_not_fit = bool(batch) and (exceeds_budget or is_full or request.key != batch[0].request.key)
            if request.response.done():  # the client has disconnected
                del client.queue[position]
            elif does_not_fit or self._is_long(request):
                position += 1  # it stays in the queue
            else:
                del client.queue[position]
                count_by_request[request] += 1
                max_tokens = new_max_tokens
                total_cost += job.cost
                client.clock = max(client.clock, request.turn)
                # If the request has more sentences, it is inserted at this position or behind it.
                batch.append(self._start_next(request))
                self._clock = max(self._clock, client.turn)
            if position < len(client.queue):
                heappush(turns, (client.next_turn(client.queue[position]), order, position, client))
        self._drop_idle_clients()
        return batch

    def _max_per_request(self, client: _Client, max_sentences: int) -> int:
        """Return the maximum number of sentences of a request of a client in a batch.

        It is an equal part for each client, and for each of its requests: filled up with the sentences of one request,
        the batch would keep all others waiting.
        """
        num_parts = len(self._open_requests) * self._open_requests[client.name]
        return math.ceil(max_sentences / max(1, num_parts))

    def _start_next(self, request: _Request) -> _StartedJob:
        """Return the next sentence of a request that is not in the queue; insert the request again if it has more."""
        started = _StartedJob(request, request.started)
        request.client.turn = request.client.next_turn(request)
        request.started += 1
        if request.started < len(request.jobs):
            self._insert(request)
        return started

    # From batches to results.

    def _submit_to(
        self, pool: ThreadPoolExecutor | None, batch: list[_StartedJob], on_finished: Callable[..., None]
    ) -> None:
        """Translate a batch in a thread of a pool."""
        outcomes = asyncio.get_running_loop().run_in_executor(pool, self._run_and_time, batch)
        outcomes.add_done_callback(partial(self._finish, batch, time.monotonic(), on_finished))

    def _run_and_time(self, batch: list[_StartedJob]) -> tuple[list[Result | Exception], float]:
        """Return the results of `_run_batch` and the processor time of its thread."""
        start_time = time.thread_time()
        return self._run_batch(batch), time.thread_time() - start_time

    def _run_batch(self, batch: list[_StartedJob]) -> list[Result | Exception]:
        """Return a result or an exception per job; runs in a worker thread."""
        request = batch[0].request
        try:
            if request.function is not None:
                return [request.function()]
            jobs = [started.job for started in batch]
            return list(self._translate(request.key, jobs, partial(self._is_cancelled, batch)))
        # Of any type: a bug in the model must fail this request only, not the worker. Panics of libraries in Rust are
        # not of the type `Exception`; no signal is handled in this thread.
        except BaseException as error:
            if len(batch) == 1:
                return [error if isinstance(error, Exception) else RuntimeError(repr(error))]
        outcomes: list[Result | Exception] = []
        for started in batch:
            # One by one, so that only the job that caused the exception fails.
            outcomes += self._run_batch([started])
        return outcomes

    def _is_cancelled(self, batch: list[_StartedJob]) -> bool:
        """Return True if no client waits for a batch any more; called in worker threads."""
        return self._closed or all(started.request.response.done() for started in batch)

    def _finish(
        self,
        batch: list[_StartedJob],
        start_time: float,
        on_finished: Callable[..., None],
        done: asyncio.Future[tuple[list[Any], float]],
    ) -> None:
        """Give the outcomes of a batch to its requests."""
        seconds = time.monotonic() - start_time
        requests = len({started.request for started in batch})
        # Before the responses, whose clients may send their next requests at once, and before anything that may raise
        # an exception: a batch that was counted as running forever would block all later ones.
        has_result = not done.cancelled() and done.exception() is None
        # On a GPU the thread may sleep while its work is done.
        compute_seconds = done.result()[1] if has_result and self._low_priority is not None else seconds
        on_finished(batch, requests, seconds, compute_seconds)
        self._changed.set()
        outcomes, _ = done.result()
        for started, outcome in zip(batch, outcomes, strict=True):
            started.request.finish(started.position, outcome)
        if self._on_batch is not None and batch[0].request.function is None:
            failed = sum(isinstance(outcome, Exception) for outcome in outcomes)
            self._on_batch(BatchReport(len(batch), requests, seconds, failed))

    def _batch_finished(self, batch: list[_StartedJob], requests: int, seconds: float, compute_seconds: float) -> None:
        """Update the state and the estimates after a batch."""
        # Other batches ran at the same time and share the processor.
        new = seconds / (len(batch) * self._running_batches)
        self._seconds_per_sentence = (1 - AVERAGE_WEIGHT) * self._seconds_per_sentence + AVERAGE_WEIGHT * new
        self._running_batches -= 1
        self._uses_all_threads = False
        # Calls of functions are not measured, because their cost is only an estimate of the caller; neither are
        # cancelled batches.
        if batch[0].request.function is not None or self._is_cancelled(batch):
            return
        self._update_speed(_speed(batch, compute_seconds))
        # The clients of one batch are likely to send again; with several threads, each takes an equal part of all.
        expected = requests if self._pool_threads == 1 else math.ceil(self._open_requests.total() / self._pool_threads)
        self._expected = min(expected, self._settings.batch_sentences)
        self._max_wait = max(self._settings.batch_wait, seconds / 3)

    def _long_job_finished(
        self, batch: list[_StartedJob], requests: int, seconds: float, compute_seconds: float
    ) -> None:
        """Update the state after a long sentence, and the estimate if that was too low."""
        self._low_priority_runs = False
        # If all sentences seem long, no batch corrects the estimate. A batch is at least as fast as a single sentence.
        # Step by step, because a call of a function has only an estimate of its cost.
        speed = min(_speed(batch, compute_seconds), 2 * self._cost_per_second)
        if speed > self._cost_per_second and not self._is_cancelled(batch):
            self._update_speed(speed)

    def _update_speed(self, cost_per_second: float) -> None:
        self._cost_per_second = (1 - AVERAGE_WEIGHT) * self._cost_per_second + AVERAGE_WEIGHT * cost_per_second


def _speed(batch: list[_StartedJob], seconds: float) -> float:
    """Return the cost of a batch per second."""
    return sum(started.job.cost for started in batch) / max(seconds, 1e-6)


def _raise_first_error(outcomes: list[Any]) -> list[Any]:
    """Return the outcomes, or raise the first one that is an exception."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes
