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
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, runtime_checkable

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
        """`function(*common, *task)` of each task, in order. The function must be one of a module, and nothing that it
        is given may name what this machine alone has. `alone`: a task is much work, and is not put together with
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
        """As `Workers.map`, a few ahead of the caller; here every task is alone. What is common is sent to each process
        once.

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
