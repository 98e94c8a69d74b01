"""The process pool: order of results, exceptions, and when processes are started."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rnnsearch.data.workers import Pool, cores
from rnnsearch.errors import RnnsearchError


def test_results_are_in_order_for_any_number_of_processes():
    expected = [math.factorial(n) for n in range(40)]
    for processes in (1, 3):
        with Pool(processes) as workers:
            assert list(workers.map(math.factorial, ((n,) for n in range(40)))) == expected
            assert list(workers.map(math.factorial, [])) == []
            assert list(workers.map(math.factorial, [(3,)])) == [6]


class Counted:
    """Something that counts how often it has been sent."""

    sent = 0

    def __reduce__(self):
        Counted.sent += 1
        return str, ("common",)


@pytest.mark.parametrize("processes", [1, 2])
def test_common_arguments_are_sent_once_per_process(processes):
    with Pool(processes) as workers:
        for name in ("one", "two"):
            Counted.sent = 0
            common = (Counted() if processes > 1 else "common", name)
            found = list(workers.map("{} {} {}".format, ((n,) for n in range(9)), common))
            assert found == [f"common {name} {n}" for n in range(9)]
            assert Counted.sent <= processes


def test_only_a_single_task_runs_in_this_process():
    with Pool(2) as workers:
        assert list(workers.map(os.getpid, [()])) == [os.getpid()]
        found = set(workers.map(os.getpid, [()] * 20))
        assert os.getpid() not in found
        assert 1 <= len(found) <= 2
    for process in found:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_tasks_are_consumed_only_a_few_ahead():
    made: list[int] = []

    def tasks() -> Iterator[tuple[int]]:
        for n in range(100):
            made.append(n)
            yield (n,)

    with Pool(2) as workers:
        results = workers.map(math.factorial, tasks())
        assert next(results) == 1
        assert len(made) <= 6
        results.close()


def test_exceptions_of_tasks_are_raised():
    with Pool(2) as workers, pytest.raises(ValueError, match="negative"):
        list(workers.map(math.factorial, [(1,), (-1,), (2,)]))


def test_process_that_ends_unexpectedly_is_reported():
    with (
        Pool(2) as workers,
        pytest.raises(RnnsearchError, match="a worker process has ended unexpectedly"),
    ):
        list(workers.map(os._exit, [(1,), (1,)]))


def test_there_is_at_least_one_core():
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_passes_over_a_corpus_start_without_torch():
    code = "import sys, rnnsearch.data.preprocess, rnnsearch.data.workers; assert 'torch' not in sys.modules"
    paths = os.pathsep.join(path for path in sys.path if path)
    assert (
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}, check=False).returncode
        == 0
    )


def test_interrupt_does_not_wait_for_tasks(request):
    # SIGINT is ignored in processes that a shell starts in the background.
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    interrupt = partial(signal.pthread_kill, threading.main_thread().ident, signal.SIGINT)
    timer = threading.Timer(0.3, interrupt)
    with Pool(2) as workers, pytest.raises(KeyboardInterrupt):
        timer.start()
        list(workers.map(time.sleep, [(60,), (60,)]))
    assert time.monotonic() - start < 30


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_of_a_killed_process_end_within_a_task():
    """A process that is killed with SIGKILL cannot end its workers, whose tasks may take minutes."""
    program = (
        "import time\n"
        "from rnnsearch.data.workers import Pool\n"
        "with Pool(2) as pool:\n"
        "    pool._start()\n"
        "    print(*(process.pid for process in pool._processes), flush=True)\n"
        "    list(pool.map(time.sleep, [(60,), (60,)]))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        workers = [int(pid) for pid in process.stdout.readline().split()]
        time.sleep(0.3)  # they have started their tasks
        process.kill()
    end = time.monotonic() + 30
    while any(map(is_running, workers)):
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return True if there is such a process that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
