"""The queue: what shares a batch, what fails alone, what is refused."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from rnnsearch.serve import batching
from rnnsearch.serve.batching import Batcher, BatchReport, Job, Workers
from rnnsearch.serve.limits import ServeError, Settings


class Worker:
    """Upper-cases, in batches that it remembers; waits for `go` if it is given one."""

    def __init__(self, go: threading.Event | None = None) -> None:
        self.batches: list[list[str]] = []
        self.go = go
        self.entered = threading.Event()

    def __call__(self, key: Any, jobs: list[Job]) -> list[str]:
        self.entered.set()
        if self.go is not None:
            assert self.go.wait(20)
        texts = [job.text for job in jobs]
        self.batches.append(texts)
        if "bad" in texts:
            raise ValueError("bad")
        return [f"{key}{text.upper()}" for text in texts]


def run(
    work: Callable[..., Any],
    conversation: Callable[[Batcher[str]], Coroutine[Any, Any, Any]],
    on_batch: Callable[[BatchReport], None] | None = None,
    threads: int = 1,
    **settings: Any,
) -> Any:
    async def held() -> Any:
        beside = Workers(ThreadPoolExecutor(threads, "beside"), threads, ThreadPoolExecutor(1, "back"))
        batcher: Batcher[str] = Batcher(work, Settings(**settings), on_batch, beside)
        try:
            return await conversation(batcher)
        finally:
            await batcher.close()

    return asyncio.run(held())


def jobs(*texts: str) -> list[Job]:
    return [Job(text, len(text)) for text in texts]


Ask = Callable[[Batcher[str]], Coroutine[Any, Any, Any]]


def ask(*texts: str, key: str = "", patient: bool = False) -> Ask:
    """Asks for these texts."""
    return lambda batcher: batcher.submit(jobs(*texts), key, patient=patient)


async def meanwhile(worker: Worker, batcher: Batcher[str], *asks: Ask) -> list[Any]:
    """What is answered to those who ask while the worker is at a first batch."""
    first = asyncio.create_task(batcher.submit(jobs("first"), ""))
    await asyncio.to_thread(worker.entered.wait, 20)
    tasks = [asyncio.create_task(asked(batcher)) for asked in asks]
    await asyncio.sleep(0)
    worker.go.set()
    assert await first == ["FIRST"]
    return await asyncio.gather(*tasks, return_exceptions=True)


def crowd(worker: Worker, *asks: Ask, **options: Any) -> list[Any]:
    """The same, from a batcher of its own, with options of `run`."""
    found: list[Any] = run(worker, lambda batcher: meanwhile(worker, batcher, *asks), **options)
    return found


def test_what_waits_shares_a_batch():
    worker, formed = Worker(threading.Event()), list[BatchReport]()
    results = crowd(worker, *(ask(f"a{n}", f"b{n}") for n in range(5)), on_batch=formed.append)
    assert results == [[f"A{n}", f"B{n}"] for n in range(5)]
    assert [len(batch) for batch in worker.batches] == [1, 10]
    assert [(f.sentences, f.requests, f.failed) for f in formed] == [(1, 1, 0), (10, 5, 0)]


def test_other_keys_and_budgets_make_other_batches():
    worker = Worker(threading.Event())
    asks = [("x", "aa"), ("y", "bb"), ("x", "cc"), ("x", "d" * 9), ("x", "ee")]
    results = crowd(worker, *(ask(text, key=key) for key, text in asks), batch_tokens=10)
    assert results == [["xAA"], ["yBB"], ["xCC"], ["x" + "D" * 9], ["xEE"]]
    assert worker.batches[1:] == [["aa", "cc", "ee"], ["bb"], ["d" * 9]]


def test_a_batch_has_at_most_so_many_sentences():
    worker = Worker()
    texts = [f"t{n}" for n in range(10)]
    assert run(worker, ask(*texts), batch_sentences=4) == [t.upper() for t in texts]
    assert [len(batch) for batch in worker.batches] == [4, 4, 2]


def test_a_fault_is_its_own_requests_alone():
    worker = Worker(threading.Event())
    good, bad, well = crowd(worker, ask("good"), ask("fine", "bad"), ask("well"))
    assert (good, well) == (["GOOD"], ["WELL"])
    assert isinstance(bad, ValueError)


def test_too_much_is_refused_with_a_time_to_come_back():
    worker = Worker(threading.Event())
    asks = (ask("a", "b"), ask("c", "d"), ask("no"), ask("e", "f", patient=True))
    first, second, refused, patient = crowd(worker, *asks, max_queue=2)
    assert (first, second, patient) == (["A", "B"], ["C", "D"], ["E", "F"])
    assert isinstance(refused, ServeError)
    assert refused.status == 429
    assert refused.retry_after >= 1


def test_what_is_given_up_is_not_worked_on():
    worker = Worker(threading.Event())

    async def conversation(batcher: Batcher[str]) -> None:
        first = asyncio.create_task(batcher.submit(jobs("first"), ""))
        await asyncio.to_thread(worker.entered.wait, 20)
        gone = asyncio.create_task(batcher.submit(jobs("gone"), ""))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        worker.go.set()
        await first
        assert await batcher.submit(jobs("next"), "") == ["NEXT"]
        with pytest.raises(asyncio.CancelledError):
            await gone

    run(worker, conversation)
    assert worker.batches == [["first"], ["next"]]


def test_after_a_crowd_a_batch_waits_for_more_and_a_lone_request_does_not():
    """With a window of an hour, only what need not wait is ever answered."""
    worker = Worker(threading.Event())

    async def conversation(batcher: Batcher[str]) -> None:
        assert await meanwhile(worker, batcher, ask("a"), ask("b"))
        early = asyncio.create_task(batcher.submit(jobs("c"), ""))
        await asyncio.sleep(0.05)
        assert not early.done(), "two requests shared the last batch: one waits for the other"
        assert await batcher.submit(jobs("d"), "") == ["D"]
        assert await early == ["C"]

    run(worker, conversation, window=3600.0)
    assert worker.batches == [["first"], ["a", "b"], ["c", "d"]]


class Threads(Worker):
    """Remembers which batches were worked on at the same time, and in which kind of thread."""

    def __init__(self, go: threading.Event | None = None) -> None:
        super().__init__(go)
        self.names: list[str] = []
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, key: Any, jobs: list[Job]) -> list[str]:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            self.names.append(threading.current_thread().name.partition("_")[0])
        try:
            return super().__call__(key, jobs)
        finally:
            with self._lock:
                self.at_once -= 1


def test_many_sentences_are_shared_out_among_threads():
    """The first request has all threads to itself; the twelve that then wait make a batch a thread, both at
    once, the first of half of all that were about."""
    both = threading.Barrier(2)
    worker = Threads(threading.Event())

    def work(key: Any, jobs: list[Job]) -> list[str]:
        if len(jobs) > 1:
            both.wait(20)  # in vain, and an error, where they come one after the other
        return worker(key, jobs)

    asks = [ask(f"t{n}") for n in range(12)]
    assert run(work, lambda b: meanwhile(worker, b, *asks), threads=2) == [[f"T{n}"] for n in range(12)]
    assert sorted(len(batch) for batch in worker.batches) == [1, 5, 7]
    assert worker.names == ["model", "beside", "beside"]


def test_few_sentences_have_all_threads_and_no_neighbours():
    worker = Threads(threading.Event())
    crowd(worker, *(ask(f"t{n}") for n in range(3)), threads=2)
    assert [len(batch) for batch in worker.batches] == [1, 3]
    assert (worker.names, worker.most) == (["model", "model"], 1)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_sentences_are_worked_on_behind_the_others(threads):
    """One at a time, and in nobody's place."""
    begun, go, worker = threading.Event(), threading.Event(), Threads()

    def work(key: Any, jobs: list[Job]) -> list[str]:
        if jobs[0].text == "long":
            begun.set()
            assert go.wait(20)
        return worker(key, jobs)

    async def conversation(batcher: Batcher[str]) -> None:
        long = [asyncio.create_task(batcher.submit([Job("long", 10**9, beam=5)], "")) for _ in range(3)]
        await asyncio.to_thread(begun.wait, 20)
        for text in ("one", "two"):
            assert await batcher.submit(jobs(text), "") == [text.upper()]
        long[1].cancel()
        go.set()
        assert [await long[0], await long[2]] == [["LONG"]] * 2

    run(work, conversation, threads=threads)
    assert worker.batches == [["one"], ["two"], ["long"], ["long"]]
    assert worker.names[2:] == ["back", "back"]


def test_a_batch_takes_no_longer_than_it_may(monkeypatch):
    """By what sentences cost and how fast they were: 100 of 10,000 a second, and each of these costs 16."""
    monkeypatch.setattr(batching, "MOST_SECONDS", 0.01)
    worker = Worker()
    assert len(run(worker, ask(*"a" * 60))) == 60
    assert len(worker.batches[0]) == 6


@pytest.mark.parametrize("threads", [1, 2])
def test_something_else_takes_its_turn_alone(threads):
    worker = Threads(threading.Event())

    def other() -> str:
        worker.batches.append(["other"])
        return "done"

    def fails() -> str:
        raise ValueError("of its own")

    asks = (ask("a"), lambda batcher: batcher.aside(other, 1), lambda batcher: batcher.aside(fails, 1), ask("b"))
    a, done, failed, b = crowd(worker, *asks, threads=threads)
    assert (a, done, str(failed), b) == (["A"], "done", "of its own", ["B"])
    assert worker.batches == [["first"], ["a", "b"], ["other"]]
    assert worker.most == 1


def test_requests_take_turns():
    """A single sentence is in the first batch behind any neighbour's thousands."""
    worker, many = Worker(threading.Event()), [f"m{n}" for n in range(49)]
    crowd(worker, ask(*many), ask("one"), ask("two", "three"), batch_sentences=4)
    assert worker.batches[1] == ["m0", "one", "two"], "not filled up with the many: the others would wait"
    assert worker.batches[2] == ["m1", "three", "m2"]
    assert max(map(len, worker.batches)) == 4, "alone again, they fill their batches"
    assert sum(map(len, worker.batches)) == 1 + 49 + 3


def test_a_turn_is_as_far_ahead_as_a_sentence_costs():
    """Three who ask again as soon as they are answered, and one whose sentence costs as much as nine of theirs."""
    worker = Worker(threading.Event())

    async def wide(batcher: Batcher[str]) -> Any:
        return await batcher.submit([Job("wide", 33, beam=3)], "wide")

    async def again(batcher: Batcher[str]) -> None:
        for _ in range(15):
            await batcher.submit([Job("a", 1)], "")

    crowd(worker, wide, again, again, again)
    begun = [text for batch in worker.batches for text in batch]
    assert 21 <= begun.index("wide") <= 33
    assert len(begun) == 1 + 1 + 3 * 15


def test_one_request_fills_a_quarter_of_the_queue():
    worker, many = Worker(threading.Event()), [f"m{n}" for n in range(100)]
    *answered, refused = crowd(worker, *[ask(*many)] * 3, ask("one", "two"), ask("three"), max_queue=8)
    assert [len(found) for found in answered] == [100, 100, 100, 2]
    assert refused.status == 429


def test_a_request_larger_than_the_queue_is_taken_and_done():
    assert len(run(Worker(), ask(*map(str, range(1000))), max_queue=8)) == 1000


def test_a_sender_who_leaves_gives_up_all_his_sentences_at_once():
    """The event loop is called as often for one sentence as for ten thousand."""
    worker = Worker(threading.Event())

    async def calls_of_giving_up(batcher: Batcher[str], count: int) -> int:
        loop, calls = asyncio.get_running_loop(), []
        task = asyncio.create_task(batcher.submit(jobs(*["many"] * count), "other"))
        await asyncio.sleep(0)
        with pytest.MonkeyPatch.context() as patch:
            call_soon = loop.call_soon
            patch.setattr(loop, "call_soon", lambda *given, **how: calls.append(given) or call_soon(*given, **how))
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert batcher.waiting == 0
        return len(calls)

    async def conversation(batcher: Batcher[str]) -> list[int]:
        first = asyncio.create_task(batcher.submit(jobs("first"), ""))
        await asyncio.to_thread(worker.entered.wait, 20)
        counts = [await calls_of_giving_up(batcher, count) for count in (1, 10_000)]
        worker.go.set()
        assert await first == ["FIRST"]
        assert await batcher.submit(jobs("next"), "") == ["NEXT"]
        return counts

    one, many = run(worker, conversation)
    assert one == many > 0
    assert worker.batches == [["first"], ["next"]], "none of what was given up is worked on"
