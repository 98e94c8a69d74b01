"""Loading the C++ of this folder, one library for each instruction set, picked by what the processor has: the wheel's
own, else what the machine's compiler made of it at first use (`building.py`)."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rnnsearch.errors import RnnsearchError
from rnnsearch.ops.native.building import (
    SWITCH,
    VARIANTS,
    Variant,
    best_first,
    built,
    compiler,
    processor,
    shipped,
    what_went_wrong,
)

log = logging.getLogger(__name__)

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@cache
def runnable() -> list[Variant]:
    """The variants that this processor can run, the best first; those that a wheel has before those that it lacks."""
    known = getattr(torch.cpu, "get_capabilities", None)  # an older PyTorch knows nothing of the processor
    has = {} if known is None else known()
    able = [variant for variant in VARIANTS.get(processor(), ()) if all(has.get(need) for need in variant.needs)]
    can_run = [variant for variant in able if not variant.tiles or tiles_are_allowed()]
    return best_first(can_run)


ARCH_PRCTL, ASK_FOR, TILE_DATA = 158, 0x1023, 18
"""Linux on x86-64: the system call, its ARCH_REQ_XCOMP_PERM, and the state that AMX tiles are."""


@cache
def tiles_are_allowed() -> bool:
    """Ask the system for AMX tiles, which it keeps from a process that has not: for all its threads, for good."""
    if platform.system() != "Linux":
        return False
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, ASK_FOR, TILE_DATA) == 0)


def chosen() -> Variant | None:
    """The variant that runs here: the best, or the one that RNNSEARCH_NATIVE names; None where there is none."""
    wanted, can_run = os.environ.get(SWITCH), runnable()
    if wanted == "0" or not can_run:
        return None
    if not wanted or wanted == "1":
        return can_run[0]
    named = next((variant for variant in can_run if variant.name == wanted), None)
    if named is None:
        can = " or ".join(["0", *(variant.name for variant in can_run)])
        raise RnnsearchError(f'{SWITCH}: must be {can} on this processor; got "{wanted}"')
    return named


def library() -> ctypes.CDLL | None:
    """The library of the variant that runs here; None where it can neither be found nor built, or is switched off.

    What went wrong is logged, once. Errors: RnnsearchError (the switch names what cannot run).
    """
    variant = chosen()
    return None if variant is None else _library(variant)


@cache
def _library(variant: Variant) -> ctypes.CDLL | None:
    path, command = shipped(variant), compiler()
    if command is None and not path.is_file():
        log.info(why_not())
        return None
    try:
        return load(path if path.is_file() else built(variant, command or ()))
    except (subprocess.SubprocessError, OSError, RnnsearchError) as error:
        log.warning("native code could not be built, so PyTorch does its work: %s", what_went_wrong(error))
        return None


def load(path: Path) -> ctypes.CDLL:
    """A library that works with PyTorch's threads: a second pool would wait, spinning, on the cores of the first."""
    found = ctypes.CDLL(str(path))
    try:
        everything = ctypes.CDLL(None)
        pool = (everything.GOMP_parallel, everything.omp_get_thread_num, everything.omp_get_num_threads)
    except (AttributeError, OSError, TypeError):  # another system's OpenMP: one thread
        return found
    found.set_openmp(*(ctypes.cast(entry, ctypes.c_void_p) for entry in pool))
    return found


def why_not() -> str:
    """Why there can be no native code; empty where nothing is known to stand against it."""
    if os.environ.get(SWITCH) == "0":
        return f"no native code ({SWITCH}=0)"
    variant = chosen()
    if variant is None:
        return "no native code (none for this processor)"
    found = shipped(variant).is_file() or compiler() is not None
    return "" if found else "no native code (no C++ compiler was found)"


def status() -> str:
    """What a user should know: which native code is in use, or that there is none."""
    if why_not():
        return why_not()
    variant = chosen()
    assert variant is not None
    return f"native code for {variant.name}" if library() is not None else "no native code (it could not be built)"


def function(name: str, kind: torch.dtype) -> Callable[..., None] | None:
    """A function of the library for numbers of a type, or None where it cannot be had here.

    It takes tensors (contiguous, on the CPU), integers, floats and structures in the order of its C++ declaration, runs
    on as many threads as PyTorch does (its first argument), and gives nothing back.
    """
    found = library() if kind in TYPES else None
    entry = None if found is None else getattr(found, f"{name}_{TYPES[kind]}")
    return None if entry is None else lambda *given: entry(*map(_argument, (torch.get_num_threads(), *given)))


def _argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        assert value.is_contiguous() and value.device.type == "cpu"
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int64(value)
