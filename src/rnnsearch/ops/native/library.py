"""Loading of the C++ library that is best for this processor: a wheel's, or one that is built at first use.

Everything that calls native code with PyTorch gets it from here; `rnnsearch inspect --machine` shows `status`.

Problems must never raise: without a library, `library()` is None and PyTorch computes everything. The runtime, which
has no PyTorch, uses `building.py` directly. Tests: tests/native/test_variants.py, tests/models/test_native.py.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rnnsearch.errors import RnnsearchError
from rnnsearch.ops.native.building import (
    SWITCH,
    VARIANTS,
    NativeVariant,
    best_first,
    build_if_missing,
    bundled_library,
    error_summary,
    find_compiler,
    processor_family,
    start_building,
)

log = logging.getLogger(__name__)

DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
"""Types of native functions for training, with the suffix of their names."""

# Linux on x86-64: the system call arch_prctl with ARCH_REQ_XCOMP_PERM, and the state component of AMX tiles.
ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
AMX_TILE_DATA = 18


def library() -> ctypes.CDLL | None:
    """Return the library for this processor, or None if there is none; problems are logged once.

    Raises:
        RnnsearchError: SWITCH names a variant that cannot run.
    """
    variant = chosen_variant()
    return None if variant is None else _library(variant)


@cache
def _library(variant: NativeVariant) -> ctypes.CDLL | None:
    path = bundled_library(variant)
    command = find_compiler()
    if command is None and not path.is_file():
        log.info(unavailable_reason())
        return None
    try:
        return ctypes.CDLL(str(path if path.is_file() else build_if_missing(variant, command or ())))
    except (subprocess.SubprocessError, OSError, RnnsearchError) as error:
        log.warning("native code could not be built, so PyTorch is used instead: %s", error_summary(error))
        return None


@cache
def build_in_background() -> subprocess.Popen[bytes] | None:
    """Start to build the library in another process, if it is missing; `library()` then waits for less time.

    Returns:
        The process, if one was started; the cache keeps it, because Python warns of running processes that are deleted.

    Raises:
        RnnsearchError: SWITCH names a variant that cannot run.
    """
    variant = chosen_variant()
    return None if variant is None else start_building(variant)


def native_function(name: str, dtype: torch.dtype) -> Callable[..., None] | None:
    """Return a function of the library for a type, or None if it is not available.

    It takes contiguous CPU tensors, integers, floats and structures in the order of the C++ declaration. The first
    argument there, the number of threads, is added.
    """
    native = library() if dtype in DTYPE_NAMES else None
    entry = None if native is None else getattr(native, f"{name}_{DTYPE_NAMES[dtype]}")
    # The number of threads is read at each call, because it may change.
    return None if entry is None else lambda *args: entry(*map(_argument, (torch.get_num_threads(), *args)))


def _argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        assert value.is_contiguous() and value.device.type == "cpu"
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    # In the C++ declarations, every integer and flag is an int64_t, and every number a float.
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int64(value)


@cache
def runnable_variants() -> list[NativeVariant]:
    """Return the variants that this processor can run, the best first; bundled ones come before others."""
    get_capabilities = getattr(torch.cpu, "get_capabilities", None)  # missing in older PyTorch versions
    available: dict[str, Any] = {} if get_capabilities is None else get_capabilities()
    variants = []
    for variant in VARIANTS.get(processor_family(), ()):
        has_instructions = all(available.get(capability) for capability in variant.capabilities)
        if has_instructions and (not variant.uses_amx_tiles or request_amx_tiles()):
            variants.append(variant)
    return best_first(variants)


@cache
def request_amx_tiles() -> bool:
    """Return True if the operating system lets this process use AMX tiles, which it must request once."""
    if platform.system() != "Linux":
        return False
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, AMX_TILE_DATA) == 0)


def chosen_variant() -> NativeVariant | None:
    """Return the best variant, or the one that SWITCH names; None if there is none or native code is disabled.

    Raises:
        RnnsearchError: SWITCH names a variant that cannot run.
    """
    wanted = os.environ.get(SWITCH)
    variants = runnable_variants()
    if wanted == "0" or not variants:
        return None
    if not wanted or wanted == "1":
        return variants[0]
    for variant in variants:
        if variant.name == wanted:
            return variant
    names = " or ".join(["0", *(variant.name for variant in variants)])
    raise RnnsearchError(f'{SWITCH}: must be {names} on this processor; got "{wanted}"')


def unavailable_reason() -> str:
    """Return why there can be no native code; empty if no reason is known."""
    if os.environ.get(SWITCH) == "0":
        return f"no native code ({SWITCH}=0)"
    variant = chosen_variant()
    if variant is None:
        return "no native code (none for this processor)"
    can_load = bundled_library(variant).is_file() or find_compiler() is not None
    return "" if can_load else "no native code (no C++ compiler was found)"


def status() -> str:
    """Return a description of the native code in use, or why there is none."""
    if reason := unavailable_reason():
        return reason
    variant = chosen_variant()
    assert variant is not None
    return f"native code for {variant.name}" if library() is not None else "no native code (it could not be built)"


if __name__ == "__main__":  # scripts/environment.sh
    sys.stdout.write(f"{status()}\n")
