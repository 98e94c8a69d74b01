"""Processes that measure one request after another, and can be ended at any time.

A worker runs `benchmarks.speed.worker`: one JSON object per line in, one per line out. It starts at once, so that
several start and import torch at the same time.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.speed.child import ROOT, environment

START = [sys.executable, "-m", "benchmarks.speed.worker"]


class TimeIsUp(Exception):
    """The time limit was reached during a request; the worker was ended."""


class WorkerError(RuntimeError):
    """A request failed."""


class Worker:
    """A process that answers requests.

    Attributes:
        spec: The last request.
    """

    def __init__(self, log_file: Path, threads: int) -> None:
        self.log_file = log_file
        self.spec: Row = {}
        log_file.parent.mkdir(parents=True, exist_ok=True)
        # A GPU needs no native code for the CPU, whose compilation would take time.
        variables = {"RNNSEARCH_NATIVE": "0", **environment(threads)}
        with log_file.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                START,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=variables,
                cwd=ROOT,
                encoding="utf-8",
                start_new_session=True,
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Put each line of the process into the queue, and an empty one at its end."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    @property
    def is_dead(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    def send(self, spec: Row) -> None:
        """Send a request."""
        self.spec = spec
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{json.dumps(spec)}\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):  # it has ended; `receive` reports that
            pass

    def receive(self, seconds: float | None) -> Row:
        """Return the answer to the last request.

        Args:
            seconds: Limit of the waiting time.

        Raises:
            TimeIsUp: The limit was reached.
            WorkerError: The request failed.
        """
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            self.kill()
            raise TimeIsUp from None
        if not line:
            self.kill()
            raise WorkerError(f"the process ended with status {self._process.returncode}; see {self.log_file}")
        answer: Row = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{answer['error']} (see {self.log_file})")
        return answer

    def kill(self) -> None:
        """End the process and those that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


Connect = Callable[[Path, int], Worker]
"""Starts a worker with a log file and a number of threads."""
