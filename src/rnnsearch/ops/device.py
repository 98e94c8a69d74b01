"""Choice of device and precision, and what the machine has.

Names of devices are values of `[training] device` and of command-line options; messages name the option. Tests:
tests/properties/test_cuda.py, tests/training/test_cuda.py.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from threading import Lock

import torch

from rnnsearch.errors import ConfigError
from rnnsearch.ops.autotune import processor_name
from rnnsearch.ops.native.library import status


def choose_device(name: str, option: str = "training.device", local_rank: int | None = None) -> torch.device:
    """Return a device by name; `auto` is the GPU if there is one.

    Args:
        option: Name of the option, for error messages.
        local_rank: Number of this process on its machine, if several processes train together; each gets the GPU with
            its number.

    Raises:
        ConfigError: This machine has no such device, or several processes would share it.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if local_rank is not None and name.startswith("cuda"):
        if name != "cuda":
            must = "must be auto, cpu or cuda if several processes train, each of which has its own GPU"
            raise ConfigError([f'{option}: {must}; got "{name}"'])
        name = f"cuda:{local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError([f'{option}: must be auto, cpu, cuda or cuda:N; got "{name}"'])
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            [f'{option}: must be a device of this machine; got "{name}", and torch finds {count} CUDA devices']
        )
    return device


def precision(device: torch.device, name: str) -> AbstractContextManager[object]:
    """Return a context for matrix products: bf16 over fp32 master weights, or fp32 everywhere."""
    return torch.autocast(device.type, torch.bfloat16, enabled=name == "bf16")


class Tf32Products:
    """A context in which a GPU rounds the operands of fp32 matrix products to 10 bits of mantissa (TF32).

    PyTorch's setting is that of the process. It is restored when the last of several threads has left the context.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._before = False

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = torch.backends.cuda.matmul.allow_tf32
                torch.backends.cuda.matmul.allow_tf32 = True
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                torch.backends.cuda.matmul.allow_tf32 = self._before


TF32_PRODUCTS = Tf32Products()
"""The only instance, since the setting is that of the process."""


def describe_device(device: torch.device) -> str:
    """Return the name of a GPU; for a CPU the number of threads, the processor and the native code in use."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"{threads} thread{'' if threads == 1 else 's'} of {processor_name()}, {status()}"


def total_memory() -> int | None:
    """Return the memory of this machine in bytes, or None if it is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Windows has no sysconf, and some systems do not know these names.
    except (AttributeError, OSError, ValueError):
        return None
