"""Start and end of the processes that work on text of users (`text.processes`)."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

from rnnsearch.data.workers import SINGLE_THREADED, WorkerProcess
from rnnsearch.serve.limits import ServeError


def start_process(module: str, *arguments: object) -> WorkerProcess:
    """Start a module as a process that reads requests from standard input and writes responses to standard output.

    Raises:
        ServeError: With status 503 if the system cannot start one.
    """
    # -P: the working folder is not a place of modules.
    command = [sys.executable, "-P", "-m", module, *map(str, arguments)]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"} | SINGLE_THREADED
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
    except OSError:
        raise ServeError(503, "the server has too few resources to read a text now; try again later", 60) from None


def end_process(process: WorkerProcess) -> None:
    """Kill a process, close its pipes, and wait for its end."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):  # the rest of a request, which the process cannot receive
            pipe.close()
    process.wait()
