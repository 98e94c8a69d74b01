"""Building and loading the C++ of this folder: it has no header but the language's own, so it takes seconds, once."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from rnnsearch.errors import RnnsearchError
from rnnsearch.files import atomic_file, default_cache
from rnnsearch.tensors import product_type

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
FLAGS = (
    *("-O3", "-march=native", "-std=gnu++17", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    *("-fopenmp", "-fPIC", "-w"),
)
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
OFF = "RNNSEARCH_NATIVE"
"""Set to 0 to do without native code."""


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The library built from `name`.cpp; None where there is no compiler for it, or native code is switched off.

    What went wrong is logged, once.
    """
    compiler = _compiler()
    if os.environ.get(OFF) == "0" or compiler is None:
        log.info(why_not())
        return None
    sources = [HERE / f"{name}.cpp", *sorted(HERE.glob("*.h"))]
    path = default_cache() / "native" / f"{name}-{_key(sources, compiler)}.so"
    try:
        if not path.is_file():
            with atomic_file(path) as temporary:
                _build(compiler, sources[0], temporary)
        return ctypes.CDLL(str(path))
    except (subprocess.SubprocessError, OSError, RnnsearchError) as error:
        said = getattr(error, "stderr", None) or str(error)
        log.warning("native code could not be built, so PyTorch does its work: %s", said.strip().splitlines()[-1])
        return None


def _compiler() -> str | None:
    named = (own,) if (own := os.environ.get("CXX")) else ("c++", "g++", "clang++")
    return next((path for name in named if (path := shutil.which(name))), None)


def why_not() -> str:
    """Why there can be no native code; empty where nothing is known to stand against it."""
    if os.environ.get(OFF) == "0":
        return f"no native code ({OFF}=0)"
    return "" if _compiler() else "no native code (no C++ compiler was found)"


def status(name: str) -> str:
    """What a user should know of a library: that it is in use, or that it is not."""
    return "native code" if library(name) is not None else why_not() or "no native code (it could not be built)"


def function(name: str, of: str, kind: torch.dtype) -> Callable[..., None] | None:
    """Function `name` of the library `of` for numbers of a type, or None where it cannot be had here.

    It takes tensors (contiguous, on the CPU), integers and floats in the order of its C++ declaration, runs on as many
    threads as PyTorch does, and gives nothing back.
    """
    found = library(of) if kind in TYPES else None
    entry = None if found is None else getattr(found, f"{name}_{TYPES[kind]}", None)
    return None if entry is None else lambda *arguments: entry(*map(_argument, arguments))


def serves(name: str, of: str, x: Tensor, weight: Tensor, sizes: tuple[int, ...] = ()) -> bool:
    """Whether a function can run here: on the CPU, over fp32 weights, in the type that products with x run in.

    Products in bfloat16 take numbers two by two, so the `sizes` that they sum over must then be even.
    """
    kind = product_type(x)
    if x.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    return (kind == torch.float32 or all(size % 2 == 0 for size in sizes)) and function(name, of, kind) is not None


def _argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        assert value.is_contiguous() and value.device.type == "cpu"
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int64(value)


def _build(compiler: str, source: Path, target: Path) -> None:
    """Compile and link, without an OpenMP of its own: a second pool of threads would wait, spinning, on the cores of
    PyTorch's, whose functions are found at load time."""
    with TemporaryDirectory() as folder:
        compiled = f"{folder}/{source.stem}.o"
        for command in (
            [compiler, *FLAGS, "-c", str(source), "-o", compiled],
            [compiler, "-shared", compiled, "-o", str(target)],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)


def _key(sources: list[Path], compiler: str) -> str:
    """Changes with the code, the flags, the compiler and the processor: a home folder may be shared by machines."""
    parts = [*(source.read_bytes() for source in sources), " ".join((compiler, *FLAGS)).encode(), _processor()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    wanted = (b"model name", b"flags", b"Features")
    return b"\n".join(sorted({line for line in lines if line.startswith(wanted)}))
