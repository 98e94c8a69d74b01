"""The queue: which sentences share a batch, in which order, and what is rejected."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from rnnsearch.serve import batching
from rnnsearch.serve.batching import Batcher, BatchReport, TranslationJob, WorkerThreads
from rnnsearch.serve.limits import ServeError, Settings
from rnnsearch.text.tokenizer import Segmented


class UppercaseModel:
    """Translates to upper case and records its batches; waits for `go` first, if there is one."""

    def __init__(self, go: threading.Event | None = None) -> None:
        self.batches: list[list[str]] = []
        self.go = go
        self.entered = threading.Event()

    def __call__(self, key: Any, jobs: list[TranslationJob], _: Any) -> list[str]:
        self.entered.set()
        if self.go is not None:
            assert self.go.wait(20)
        texts = [job.source.text for job in jobs]
        self.batches.append(texts)
        if "bad" in texts:
            raise ValueError("bad")
        return [f"{key}{text.upper()}" for text in texts]


def run(
    translate: Callable[..., Any],
    scenario: Callable[[Batcher[str]], Coroutine[Any, Any, Any]],
    on_batch: Callable[[BatchReport], None] | None = None,
    threads: int = 1,
    **settings: Any,
) -> Any:
    """Run a scenario with a new batcher and return its result."""

    async def with_batcher() -> Any:
        workers = WorkerThreads(ThreadPoolExecutor(threads, "pool"), threads, ThreadPoolExecutor(1, "low-priority"))
        batcher: Batcher[str] = Batcher(translate, Settings(**settings), on_batch, workers)
        try:
            return await scenario(batcher)
        finally:
            await batcher.close()

    return asyncio.run(with_batcher())


def job(text: str, num_tokens: int | None = None, beam: int = 1) -> TranslationJob:
    return TranslationJob(Segmented(text, [], [], []), len(text) if num_tokens is None else num_tokens, beam=beam)


def jobs(*texts: str) -> list[TranslationJob]:
    return [job(text) for text in texts]


Send = Callable[[Batcher[str]], Coroutine[Any, Any, Any]]


def send(*texts: str, key: str = "", patient: bool = False) -> Send:
    """Return a client that sends one request with these texts."""
    return lambda batcher: batcher.submit(jobs(*texts), key, patient=patient)


async def send_during_first_batch(model: UppercaseModel, batcher: Batcher[str], *clients: Send) -> list[Any]:
    """Return the results of clients that send their requests while a first batch is being translated."""
    first = asyncio.create_task(batcher.submit(jobs("first"), ""))
    await asyncio.to_thread(model.entered.wait, 20)
    tasks = [asyncio.create_task(client(batcher)) for client in clients]
    await asyncio.sleep(0)
    model.go.set()
    assert await first == ["FIRST"]
    return await asyncio.gather(*tasks, return_exceptions=True)


def crowd(model: UppercaseModel, *clients: Send, **options: Any) -> list[Any]:
    """Run `send_during_first_batch` with a new batcher, with options of `run`."""
    results: list[Any] = run(model, lambda batcher: send_during_first_batch(model, batcher, *clients), **options)
    return results


def test_waiting_sentences_share_a_batch():
    model = UppercaseModel(threading.Event())
    reports = list[BatchReport]()
    results = crowd(model, *(send(f"a{n}", f"b{n}") for n in range(5)), on_batch=reports.append)
    assert results == [[f"A{n}", f"B{n}"] for n in range(5)]
    assert [len(batch) for batch in model.batches] == [1, 10]
    assert [(r.sentences, r.requests, r.failed) for r in reports] == [(1, 1, 0), (10, 5, 0)]


def test_batches_have_one_key_and_respect_the_token_budget():
    model = UppercaseModel(threading.Event())
    requests = [("x", "aa"), ("y", "bb"), ("x", "cc"), ("x", "d" * 9), ("x", "ee")]
    results = crowd(model, *(send(text, key=key) for key, text in requests), batch_tokens=10)
    assert results == [["xAA"], ["yBB"], ["xCC"], ["x" + "D" * 9], ["xEE"]]
    assert model.batches[1:] == [["aa", "cc", "ee"], ["bb"], ["d" * 9]]


def test_batches_have_at_most_batch_sentences():
    model = UppercaseModel()
    texts = [f"t{n}" for n in range(10)]
    assert run(model, send(*texts), batch_sentences=4) == [t.upper() for t in texts]
    assert [len(batch) for batch in model.batches] == [4, 4, 2]


class PanicException(BaseException):
    """An exception like those of libraries in Rust, which is no `Exception`."""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_panic_only_fails_its_own_request(threads):
    def translate(_key: Any, jobs: list[TranslationJob], _: Any) -> list[str]:
        if jobs[0].source.text == "bad":
            raise PanicException("panicked")
        return [job.source.text for job in jobs]

    async def scenario(batcher: Batcher[str]) -> None:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="panicked"):
                await batcher.submit(jobs("bad"), "")
        assert await asyncio.wait_for(batcher.submit(jobs("good"), ""), 5) == ["good"]

    run(translate, scenario, threads=threads)


def test_a_bad_sentence_only_fails_its_own_request():
    model = UppercaseModel(threading.Event())
    good, bad, well = crowd(model, send("good"), send("fine", "bad"), send("well"))
    assert (good, well) == (["GOOD"], ["WELL"])
    assert isinstance(bad, ValueError)


def test_full_queue_rejects_requests_with_retry_after():
    model = UppercaseModel(threading.Event())
    clients = (send("a", "b"), send("c", "d"), send("no"), send("e", "f", patient=True))
    first, second, rejected, patient = crowd(model, *clients, max_queue=2)
    assert (first, second, patient) == (["A", "B"], ["C", "D"], ["E", "F"])
    assert isinstance(rejected, ServeError)
    assert rejected.status == 429
    assert rejected.retry_after >= 1


def test_cancelled_requests_are_not_translated():
    model = UppercaseModel(threading.Event())

    async def scenario(batcher: Batcher[str]) -> None:
        first = asyncio.create_task(batcher.submit(jobs("first"), ""))
        await asyncio.to_thread(model.entered.wait, 20)
        cancelled = asyncio.create_task(batcher.submit(jobs("cancelled"), ""))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
        model.go.set()
        await first
        assert await batcher.submit(jobs("next"), "") == ["NEXT"]
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    run(model, scenario)
    assert model.batches == [["first"], ["next"]]


def test_only_batches_after_several_requests_wait_for_more():
    # With a wait of an hour, a batch that waits is never translated before all expected sentences are there.
    model = UppercaseModel(threading.Event())

    async def scenario(batcher: Batcher[str]) -> None:
        assert await send_during_first_batch(model, batcher, send("a"), send("b"))
        early = asyncio.create_task(batcher.submit(jobs("c"), ""))
        await asyncio.sleep(0.05)
        assert not early.done(), "two requests shared the last batch, so this one waits for a second one"
        assert await batcher.submit(jobs("d"), "") == ["D"]
        assert await early == ["C"]

    run(model, scenario, batch_wait=3600.0)
    assert model.batches == [["first"], ["a", "b"], ["c", "d"]]


class ThreadRecorder(UppercaseModel):
    """Also records how many batches ran at the same time, and in which threads."""

    def __init__(self, go: threading.Event | None = None) -> None:
        super().__init__(go)
        self.names: list[str] = []
        self.running = 0
        self.max_running = 0
        self._lock = threading.Lock()

    def __call__(self, key: Any, jobs: list[TranslationJob], _: Any) -> list[str]:
        with self._lock:
            self.running += 1
            self.max_running = max(self.max_running, self.running)
            self.names.append(threading.current_thread().name.partition("_")[0])
        try:
            return super().__call__(key, jobs, None)
        finally:
            with self._lock:
                self.running -= 1


def test_many_sentences_are_divided_among_threads():
    # The first request uses all threads. The twelve that wait make one batch per thread, at the same time.
    both = threading.Barrier(2)
    model = ThreadRecorder(threading.Event())

    def translate(key: Any, jobs: list[TranslationJob], _: Any) -> list[str]:
        if len(jobs) > 1:
            both.wait(20)  # raises an error unless both batches run at the same time
        return model(key, jobs, None)

    clients = [send(f"t{n}") for n in range(12)]
    results = run(translate, lambda batcher: send_during_first_batch(model, batcher, *clients), threads=2)
    assert results == [[f"T{n}"] for n in range(12)]
    # The first of the two has half of all open requests.
    assert sorted(len(batch) for batch in model.batches) == [1, 5, 7]
    assert model.names == ["model", "pool", "pool"]


def test_few_sentences_use_all_threads_in_one_batch():
    model = ThreadRecorder(threading.Event())
    crowd(model, *(send(f"t{n}") for n in range(3)), threads=2)
    assert [len(batch) for batch in model.batches] == [1, 3]
    assert model.names == ["model", "model"]
    assert model.max_running == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_long_sentences_run_one_at_a_time_in_the_low_priority_thread(threads):
    started = threading.Event()
    go = threading.Event()
    model = ThreadRecorder()

    def translate(key: Any, jobs: list[TranslationJob], _: Any) -> list[str]:
        if jobs[0].source.text == "long":
            started.set()
            assert go.wait(20)
        return model(key, jobs, None)

    async def scenario(batcher: Batcher[str]) -> None:
        long = [asyncio.create_task(batcher.submit([job("long", 10**9, beam=5)], "")) for _ in range(3)]
        await asyncio.to_thread(started.wait, 20)
        for text in ("one", "two"):
            assert await batcher.submit(jobs(text), "") == [text.upper()]
        long[1].cancel()
        go.set()
        assert [await long[0], await long[2]] == [["LONG"]] * 2

    run(translate, scenario, threads=threads)
    assert model.batches == [["one"], ["two"], ["long"], ["long"]]
    assert model.names[2:] == ["low-priority"] * 2


def test_sentences_do_not_become_long_on_a_busy_machine(monkeypatch):
    monkeypatch.setattr(batching, "MAX_SENTENCE_SECONDS", 0.01)
    monkeypatch.setattr(batching, "AVERAGE_WEIGHT", 1.0)
    model = ThreadRecorder()

    def translate(key: Any, jobs: list[TranslationJob], _: Any) -> list[str]:
        time.sleep(0.05)  # other processes run meanwhile
        return model(key, jobs, None)

    async def scenario(batcher: Batcher[str]) -> None:
        for text in "abc":
            assert await batcher.submit(jobs(text), "") == [text.upper()]
        # An estimate that is too low by any cause is corrected, although no batch runs.
        batcher._cost_per_second = 1000.0
        for text in "de":
            assert await batcher.submit(jobs(text), "") == [text.upper()]

    run(translate, scenario, threads=2)
    assert model.names == ["model"] * 3 + ["low-priority", "model"]


def test_cost_includes_alignments():
    without = [job("", length, beam=20).cost for length in (15, 418)]
    aligned = [job("", length, beam=20)._replace(aligned=20).cost for length in (15, 418)]
    assert without == [600, 8660]
    assert [with_alignment - cost for with_alignment, cost in zip(aligned, without, strict=True)] == [751, 17988]


def test_batches_take_at_most_max_batch_seconds(monkeypatch):
    # The batcher assumes 10,000 units of cost per second, so a batch may cost 100, and each sentence costs 16.
    monkeypatch.setattr(batching, "MAX_BATCH_SECONDS", 0.01)
    model = UppercaseModel()
    assert len(run(model, send(*"a" * 60))) == 60
    assert len(model.batches[0]) == 6


@pytest.mark.parametrize("threads", [1, 2])
def test_function_calls_take_turns_with_batches(threads):
    model = ThreadRecorder(threading.Event())

    def function() -> str:
        model.batches.append(["function"])
        return "done"

    def fail() -> str:
        raise ValueError("its own error")

    clients = (send("a"), lambda batcher: batcher.call(function, 1), lambda batcher: batcher.call(fail, 1), send("b"))
    a, done, failed, b = crowd(model, *clients, threads=threads)
    assert (a, done, str(failed), b) == (["A"], "done", "its own error", ["B"])
    assert model.batches == [["first"], ["a", "b"], ["function"]]
    assert model.max_running == 1


def test_a_single_sentence_is_in_the_first_batch_next_to_a_large_request():
    model = UppercaseModel(threading.Event())
    many = [f"m{n}" for n in range(49)]
    crowd(model, send(*many), send("one"), send("two", "three"), batch_sentences=4)
    assert model.batches[1] == ["m0", "one", "two"], "the large request does not fill up the batch of others"
    assert model.batches[2] == ["m1", "three", "m2"]
    assert max(map(len, model.batches)) == 4, "but its own batches"
    assert sum(map(len, model.batches)) == 1 + 49 + 3


def test_turns_depend_on_the_cost_of_sentences():
    # Three clients send again after each response; one sentence costs as much as nine of theirs.
    model = UppercaseModel(threading.Event())

    async def send_wide(batcher: Batcher[str]) -> Any:
        return await batcher.submit([job("wide", 33, beam=3)], "wide")

    async def send_repeatedly(batcher: Batcher[str]) -> None:
        for _ in range(15):
            await batcher.submit([job("a", 1)], "")

    crowd(model, send_wide, send_repeatedly, send_repeatedly, send_repeatedly)
    order = [text for batch in model.batches for text in batch]
    assert 21 <= order.index("wide") <= 33
    assert len(order) == 1 + 1 + 3 * 15


def test_a_request_counts_as_at_most_a_quarter_of_the_queue():
    model = UppercaseModel(threading.Event())
    many = [f"m{n}" for n in range(100)]
    *accepted, rejected = crowd(model, *[send(*many)] * 3, send("one", "two"), send("three"), max_queue=8)
    assert [len(results) for results in accepted] == [100, 100, 100, 2]
    assert rejected.status == 429


def test_a_request_larger_than_the_queue_is_translated():
    assert len(run(UppercaseModel(), send(*map(str, range(1000))), max_queue=8)) == 1000


def test_cancelling_a_request_takes_constant_time():
    model = UppercaseModel(threading.Event())

    async def callbacks_of_cancellation(batcher: Batcher[str], count: int) -> int:
        loop = asyncio.get_running_loop()
        calls = []
        task = asyncio.create_task(batcher.submit(jobs(*["many"] * count), "other"))
        await asyncio.sleep(0)
        with pytest.MonkeyPatch.context() as patch:
            call_soon = loop.call_soon

            def recorded_call_soon(*args: Any, **kwargs: Any) -> Any:
                calls.append(args)
                return call_soon(*args, **kwargs)

            patch.setattr(loop, "call_soon", recorded_call_soon)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert batcher.waiting == 0
        return len(calls)

    async def scenario(batcher: Batcher[str]) -> list[int]:
        first = asyncio.create_task(batcher.submit(jobs("first"), ""))
        await asyncio.to_thread(model.entered.wait, 20)
        counts = [await callbacks_of_cancellation(batcher, count) for count in (1, 10_000)]
        model.go.set()
        assert await first == ["FIRST"]
        assert await batcher.submit(jobs("next"), "") == ["NEXT"]
        return counts

    one, many = run(model, scenario)
    assert one == many > 0
    assert model.batches == [["first"], ["next"]]


def test_running_search_is_cancelled_with_its_last_request():
    is_cancelled: list[bool] = []
    started = threading.Event()

    def translate(_key: Any, jobs: list[TranslationJob], cancelled: Callable[[], bool]) -> list[str]:
        is_cancelled.append(cancelled())
        started.set()
        deadline = time.monotonic() + 20
        while not cancelled() and time.monotonic() < deadline:
            time.sleep(0.002)
        is_cancelled.append(cancelled())
        return [""] * len(jobs)

    async def scenario(batcher: Batcher[str]) -> None:
        request = asyncio.create_task(batcher.submit(jobs("a"), ""))
        await asyncio.to_thread(started.wait, 20)
        request.cancel()
        while len(is_cancelled) < 2:
            await asyncio.sleep(0.002)

    run(translate, scenario)
    assert is_cancelled == [False, True]


def test_expensive_requests_of_a_client_do_not_hold_up_another_client():
    """All expensive requests have the same turn: after the first one, the others must not precede new requests."""
    model = UppercaseModel(threading.Event())

    async def scenario(batcher: Batcher[str]) -> None:
        submit = [batcher.submit([job(f"long {n}", 900)], "", client="hostile") for n in range(4)]
        tasks = [asyncio.create_task(work) for work in submit]
        await asyncio.to_thread(model.entered.wait, 20)  # the first one runs
        tasks += [asyncio.create_task(batcher.submit([job(f"short {n}", 10)], "", client="honest")) for n in range(2)]
        await asyncio.sleep(0)
        assert model.go is not None
        model.go.set()
        await asyncio.gather(*tasks)
        assert not batcher._clients

    run(model, scenario, batch_tokens=1000)
    assert model.batches == [["long 0"], ["short 0", "short 1"], ["long 1"], ["long 2"], ["long 3"]]


def test_clients_have_equal_parts_of_a_batch():
    """However many requests the other client has."""
    model = UppercaseModel(threading.Event())

    def send_many(client: str) -> Send:
        return lambda batcher: batcher.submit(jobs(*[client] * 20), "", client=client)

    crowd(model, send_many("honest"), *[send_many("hostile")] * 10, batch_sentences=16)
    batch = model.batches[1]
    # A third for the client of the first batch, which is still open.
    assert batch.count("honest") == math.ceil(16 / 3) and batch.count("hostile") == 10


def test_a_client_cannot_fill_the_queue_for_others():
    model = UppercaseModel(threading.Event())

    def send_as(client: str) -> Send:
        return lambda batcher: batcher.submit(jobs("one", "two"), "", client=client)

    *accepted, rejected, honest = crowd(model, *[send_as("hostile")] * 5, send_as("honest"), max_queue=8)
    assert accepted == [["ONE", "TWO"]] * 4 and honest == ["ONE", "TWO"]
    assert isinstance(rejected, ServeError) and rejected.status == 429
