"""A GPU that several processes share: NVIDIA's multi-process service, and its free memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DAEMON = "nvidia-cuda-mps-control"
PROBE = (
    "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); context = ctypes.c_void_p(); "
    "raise SystemExit(cuda.cuInit(0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))"
)
"""A program that creates a context on the GPU and fails if that is impossible."""
SECONDS = 30.0


def free_mib() -> float | None:
    """Return the free memory of the first GPU in MiB, or None without NVIDIA's tools."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, check=True, encoding="utf-8", timeout=SECONDS).stdout
        return float(output.splitlines()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


@contextmanager
def shared_gpu(is_used: bool, message: list[str]) -> Iterator[dict[str, str]]:
    """Start the multi-process service and yield the variables of its clients; end it afterwards.

    Without the service, or if a process cannot use the GPU through it, yield no variables: the processes then take
    turns on the GPU.

    Args:
        is_used: False if no training uses a GPU.
        message: Receives a sentence about the service.
    """
    if not is_used:
        yield {}
        return
    if shutil.which(DAEMON) is None:
        message.append(f"{DAEMON} is not installed: the trainings take turns on the GPU")
        yield {}
        return
    # A short path, because the service creates Unix sockets there.
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": str(Path(folder, "log"))}
        Path(folder, "log").mkdir()
        started = _succeeds([DAEMON, "-d"], variables)
        try:
            if started and _succeeds([sys.executable, "-c", PROBE], variables):
                message.append("the trainings share the GPU by NVIDIA's multi-process service")
                yield variables
                return
        finally:
            if started:
                _succeeds([DAEMON], variables, "quit\n")
    message.append(f"{DAEMON} does not work here: the trainings take turns on the GPU")
    yield {}


def _succeeds(command: list[str], variables: dict[str, str], text: str = "") -> bool:
    """Return True if a command succeeds within `SECONDS`."""
    try:
        completed = subprocess.run(
            command,
            check=False,
            input=text,
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            timeout=SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return completed.returncode == 0
