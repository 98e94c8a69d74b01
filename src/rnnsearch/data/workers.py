"""Process pool for the passes over a corpus, and a thread that prefetches batches.

`Pool.map` yields results in the order of the tasks, so the number of processes affects only the time. Processes are
started by name (`python -m rnnsearch.data.workers`): forking is unsafe next to the threads of torch and the tokenizer,
and spawning would run the caller's script again.

`bulk/prepare.py` has another implementation of `Workers`. Tasks and results are pickled, so functions must be
importable by name.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from queue import Empty, Full, Queue, SimpleQueue
from threading import Event, Thread
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from rnnsearch.errors import RnnsearchError

SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Environment of worker processes: each has one core, so numeric libraries must not start threads."""
_POLL_SECONDS = 0.05
PARENT_POLL_SECONDS = 0.5
"""Time between two checks of a worker that its parent is alive."""

Result = TypeVar("Result")
Item = TypeVar("Item")
WorkerProcess = subprocess.Popen[bytes]
SharedCall = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and the arguments that all its tasks share."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@runtime_checkable
class Workers(Protocol):
    """Anything that runs the tasks of a pass."""

    def map(
        self,
        function: Callable[..., Result],
        tasks: Iterable[tuple[Any, ...]],
        common: tuple[Any, ...] = (),
    ) -> Iterator[Result]:
        """Yield `function(*common, *task)` for each task, in order.

        Args:
            function: A function of a module.
            tasks: Arguments of each call. They must not refer to anything that only this machine has.
            common: First arguments of all calls, with the same restriction.
        """


class Pool:
    """Worker processes. None is started before `start` or two tasks, and none if the pool has one process."""

    def __init__(self, processes: int) -> None:
        self._num_processes = processes
        self._processes: list[WorkerProcess] = []
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        self._last_sent: dict[WorkerProcess, SharedCall] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, type: object, error: BaseException | None, trace: object) -> None:
        for process in self._processes:
            if error is not None:
                process.kill()
            # Closes its pipes and waits for it. A process that was killed may not have read its task.
            with suppress(BrokenPipeError), process:
                pass

    def map(
        self,
        function: Callable[..., Result],
        tasks: Iterable[tuple[Any, ...]],
        common: tuple[Any, ...] = (),
    ) -> Iterator[Result]:
        """Yield results like `Workers.map`, computed a few tasks ahead of the caller.

        `common` is sent to each process once.

        Raises:
            RnnsearchError: A process ended unexpectedly. Exceptions of the function are raised, too.
        """
        remaining = iter(tasks)
        first_two = list(islice(remaining, 2))
        if self._num_processes == 1 or len(first_two) < 2:
            yield from (function(*common, *task) for task in chain(first_two, remaining))
            return
        self.start()
        shared = (function, common)
        with ThreadPoolExecutor(self._num_processes) as threads:  # each thread waits for one process
            pending: deque[Future[Result]] = deque()
            try:
                for task in chain(first_two, remaining):
                    pending.append(threads.submit(self._call, shared, task))
                    # Enough tasks to occupy all processes, few enough to bound the memory.
                    if len(pending) > 2 * self._num_processes:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            except KeyboardInterrupt:
                # The threads, which are joined below, wait for the processes, which ignore Ctrl-C.
                for process in self._processes:
                    process.kill()
                raise
            finally:
                for future in pending:
                    future.cancel()

    def start(self) -> None:
        """Start the processes that are not running yet."""
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = os.environ | {"PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"} | SINGLE_THREADED
        command = [sys.executable, "-m", "rnnsearch.data.workers", str(os.getpid())]
        while len(self._processes) < self._num_processes:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            self._processes.append(process)
            self._idle.put(process)

    def _call(self, shared: SharedCall, task: tuple[Any, ...]) -> Any:
        """Run a task in an idle process and return its result."""
        process = self._idle.get()
        assert process.stdin is not None and process.stdout is not None
        try:
            # The function and its common arguments may be large: they are sent only when they change.
            update = None if self._last_sent.get(process) is shared else shared
            pickle.dump((update, task), process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            self._last_sent[process] = shared
            result, error = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            problem = "a worker process has ended unexpectedly (too little memory?)"
            raise RnnsearchError(problem) from None
        finally:
            self._idle.put(process)
        if error is not None:
            raise error
        return result


class Prefetcher(Generic[Item]):
    """Iterator whose items are computed by a thread, up to `depth` items ahead.

    An exception is raised in place of its item. The training loop prefetches batches. Call `close`, or the thread
    keeps running.
    """

    def __init__(self, items: Iterator[Item], depth: int = 4) -> None:
        self.waited = 0.0
        """Seconds that `next` has waited for items so far."""
        self._ready: Queue[tuple[Item | None, BaseException | None]] = Queue(depth)
        self._closed = Event()
        self._thread = Thread(target=self._compute, args=(items,), daemon=True)
        self._thread.start()

    def __iter__(self) -> Prefetcher[Item]:
        return self

    def __next__(self) -> Item:
        start = time.monotonic()
        item, error = self._ready.get()
        self.waited += time.monotonic() - start
        if error is not None:
            self._ready.put((None, error))  # later calls raise it again
            raise error
        return item  # type: ignore[return-value]

    def close(self) -> None:
        """Stop the thread and drop the items that are ready."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=_POLL_SECONDS)
            except Empty:
                self._thread.join(_POLL_SECONDS)

    def _compute(self, items: Iterator[Item]) -> None:
        try:
            for item in items:
                if not self._put((item, None)):
                    return
            self._put((None, StopIteration()))
        except BaseException as error:
            # The consumer must get every error, or it would wait forever.
            self._put((None, error))

    def _put(self, entry: tuple[Item | None, BaseException | None]) -> bool:
        """Wait until the queue accepts an entry; return False if the prefetcher is closed first."""
        while not self._closed.is_set():
            try:
                self._ready.put(entry, timeout=_POLL_SECONDS)
            except Full:
                continue
            return True
        return False


def _end_with_parent(parent: int) -> None:
    """End this process, even inside a task that takes minutes, when the process that started it has been killed."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os._exit(1)


def _serve(parent: int) -> None:
    """Run tasks of the process `parent` from standard input until it ends; write their results to standard output."""
    if sys.platform != "win32":  # where the parent may be a launcher
        Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the main process, which then ends this one
    source = sys.stdin.buffer
    sink = sys.stdout.buffer
    sys.stdout = sys.stderr  # what functions print must not get between the results
    shared: SharedCall | None = None
    while True:
        try:
            update, task = pickle.load(source)
        except EOFError:
            return
        shared = update or shared
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
    _serve(int(sys.argv[1]))
