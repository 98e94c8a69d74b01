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
from typing import Any, TypeVar

from rnnsearch.errors import RnnsearchError

ALONE = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""A process has one core: what it multiplies by must not start threads of its own."""
Result = TypeVar("Result")
Worker = subprocess.Popen[bytes]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Processes that wait for work; none is started before there are two tasks, nor where `processes` is 1."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._all: list[Worker] = []
        self._idle: SimpleQueue[Worker] = SimpleQueue()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for worker in self._all:
            if error is not None:
                worker.kill()
            with worker:  # which closes its pipes and waits for it
                pass

    def map(self, function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
        """`function(*task)` of each task, in order, a few ahead of the caller. The function must be one of a module.

        Errors: what the function raises; RnnsearchError where a process ends before its time.
        """
        rest = iter(tasks)
        first = list(islice(rest, 2))
        if self._processes == 1 or len(first) < 2:
            yield from (function(*task) for task in chain(first, rest))
            return
        self._start()
        with ThreadPoolExecutor(self._processes) as pool:
            waiting: deque[Future[Result]] = deque()
            try:
                for task in chain(first, rest):
                    waiting.append(pool.submit(self._call, function, task))
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

    def _call(self, function: Callable[..., Result], task: tuple[Any, ...]) -> Result:
        worker = self._idle.get()
        assert worker.stdin is not None and worker.stdout is not None
        try:
            pickle.dump((function, task), worker.stdin, pickle.HIGHEST_PROTOCOL)
            worker.stdin.flush()
            result, error = pickle.load(worker.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            told = "a process that works on the corpus has ended before its time (too little memory?)"
            raise RnnsearchError(told) from None
        finally:
            self._idle.put(worker)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]


def _work() -> None:
    """What a worker does: reads tasks from standard input until it ends, and writes results to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's, which then ends this one
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            function, task = pickle.load(source)
        except EOFError:
            return
        answer: tuple[Any, BaseException | None]
        try:
            answer = function(*task), None
        except Exception as error:
            answer = None, error
        pickle.dump(answer, sink, pickle.HIGHEST_PROTOCOL)
        sink.flush()


if __name__ == "__main__":
    _work()
