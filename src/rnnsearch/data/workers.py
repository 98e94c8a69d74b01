"""Functions called in other processes, their results in the order of the tasks, so that the number of processes
changes nothing but the time.

The processes are started by name (`python -m rnnsearch.data.workers`), neither forked, which is unsafe beside the
threads of torch and of the tokenizer, nor spawned, which would run a caller's script again.
"""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from queue import Empty, Full, Queue, SimpleQueue
from threading import Event, Thread
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from rnnsearch.errors import RnnsearchError

ALONE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""A process has one core: what it multiplies by must not start threads of its own."""
Result = TypeVar("Result")
Worker = subprocess.Popen[bytes]
Shared = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and what it is given of every task."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@runtime_checkable
class Workers(Protocol):
    """Whatever does the tasks of a pass."""

    def map(
        self,
        function: Callable[..., Result],
        tasks: Iterable[tuple[Any, ...]],
        common: tuple[Any, ...] = (),
        alone: bool = False,
    ) -> Iterator[Result]:
        """`function(*common, *task)` of each task, in order. The function must be one of a module, and nothing that
        it is given may name what this machine alone has. `alone`: a task is much work, and is not put together with
        others.
        """


class Pool:
    """Processes that wait for work; none is started before there are two tasks, nor where `processes` is 1."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._all: list[Worker] = []
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self._shared: dict[Worker, Shared] = {}
        """What each has been sent last."""

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for worker in self._all:
            if error is not None:
                worker.kill()
            with worker:  # which closes its pipes and waits for it
                pass

    def map(
        self,
        function: Callable[..., Result],
        tasks: Iterable[tuple[Any, ...]],
        common: tuple[Any, ...] = (),
        alone: bool = False,
    ) -> Iterator[Result]:
        """As `Workers.map`, a few ahead of the caller; here every task is alone. What is common is sent to each
        process once.

        Errors: what the function raises; RnnsearchError where a process ends before its time.
        """
        rest = iter(tasks)
        first = list(islice(rest, 2))
        if self._processes == 1 or len(first) < 2:
            yield from (function(*common, *task) for task in chain(first, rest))
            return
        self._start()
        shared = (function, common)
        with ThreadPoolExecutor(self._processes) as pool:
            waiting: deque[Future[Result]] = deque()
            try:
                for task in chain(first, rest):
                    waiting.append(pool.submit(self._call, shared, task))
                    if len(waiting) > 2 * self._processes:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _start(self) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = os.environ | {"PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"} | ALONE
        while len(self._all) < self._processes:
            command = [sys.executable, "-m", "rnnsearch.data.workers"]
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            self._all.append(worker)
            self._idle.put(worker)

    def _call(self, shared: Shared, task: tuple[Any, ...]) -> Any:
        worker = self._idle.get()
        assert worker.stdin is not None and worker.stdout is not None
        try:
            news = None if self._shared.get(worker) is shared else shared
            pickle.dump((news, task), worker.stdin, pickle.HIGHEST_PROTOCOL)
            worker.stdin.flush()
            self._shared[worker] = shared
            result, error = pickle.load(worker.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            told = "a process that works on the corpus has ended before its time (too little memory?)"
            raise RnnsearchError(told) from None
        finally:
            self._idle.put(worker)
        if error is not None:
            raise error
        return result


def _work() -> None:
    """What a worker does: reads tasks from standard input until it ends, and writes results to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's, which then ends this one
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    shared: Shared | None = None
    while True:
        try:
            news, task = pickle.load(source)
        except EOFError:
            return
        shared = news or shared
        assert shared is not None
        function, common = shared
        answer: tuple[Any, BaseException | None]
        try:
            answer = function(*common, *task), None
        except Exception as error:
            answer = None, error
        pickle.dump(answer, sink, pickle.HIGHEST_PROTOCOL)
        sink.flush()


if __name__ == "__main__":
    _work()


# Making the next items while the last one is worked on.

Item = TypeVar("Item")
_LOOK = 0.05
"""Seconds between two looks whether anyone still wants items."""


class Prefetcher(Generic[Item]):
    """An iterator's items in order, made by a thread up to `depth` of them ahead; an exception comes in its place.

    `waited`: seconds that `next` has spent waiting for items so far. Close it, or the thread goes on.
    """

    def __init__(self, items: Iterator[Item], depth: int = 4) -> None:
        self.waited = 0.0
        self._ready: Queue[tuple[Item | None, BaseException | None]] = Queue(depth)
        self._closed = Event()
        self._thread = Thread(target=self._make, args=(items,), daemon=True)
        self._thread.start()

    def _make(self, items: Iterator[Item]) -> None:
        try:
            for item in items:
                if not self._put((item, None)):
                    return
            self._put((None, StopIteration()))
        except BaseException as error:
            self._put((None, error))

    def _put(self, made: tuple[Item | None, BaseException | None]) -> bool:
        while not self._closed.is_set():
            try:
                self._ready.put(made, timeout=_LOOK)
            except Full:
                continue
            return True
        return False

    def __iter__(self) -> "Prefetcher[Item]":
        return self

    def __next__(self) -> Item:
        begin = time.monotonic()
        item, error = self._ready.get()
        self.waited += time.monotonic() - begin
        if error is not None:
            self._ready.put((None, error))  # there is nothing after it
            raise error
        return item  # type: ignore[return-value]

    def close(self) -> None:
        """Make no more items; what was made is dropped."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=_LOOK)
            except Empty:
                self._thread.join(_LOOK)
