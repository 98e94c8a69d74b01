"""Where and in which precision models run."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import torch

from rnnsearch.errors import ConfigError
from rnnsearch.ops.autotune import processor_name
from rnnsearch.ops.native.library import status


def choose_device(name: str, option: str = "training.device", local_rank: int | None = None) -> torch.device:
    """`auto` is the GPU where there is one. Where several processes of a machine train together, each has the GPU of
    its own number there, `local_rank`.

    Errors: ConfigError, naming `option`, for a device that this machine has not, or that all processes would share.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if local_rank is not None and name.startswith("cuda"):
        if name != "cuda":
            wanted = "must be auto, cpu or cuda where several processes train, which have a GPU each"
            raise ConfigError([f'{option}: {wanted}; got "{name}"'])
        name = f"cuda:{local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError([f'{option}: must be auto, cpu, cuda or cuda:N; got "{name}"'])
    here = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= here:
        raise ConfigError(
            [f'{option}: must be a device of this machine; got "{name}", and torch finds {here} CUDA devices']
        )
    return device


def precision(device: torch.device, name: str) -> AbstractContextManager[object]:
    """bf16: matrix products in bfloat16 over fp32 master weights; fp32: everything as it is."""
    return torch.autocast(device.type, torch.bfloat16, enabled=name == "bf16")


def describe(device: torch.device) -> str:
    """The device as the learning-statistics table names it; of a CPU, also whether native code runs there."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"{threads} thread{'' if threads == 1 else 's'} of {processor_name()}, {status()}"


def machine_memory() -> int | None:
    """Bytes of this machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
