"""The compiled functions, built with the machine's own C++ compiler at their first use.

A build takes some seconds, once a machine: the library is kept in the cache folder under a name made of the sources,
the compiler and the processor. Where there is no compiler, or RNNSEARCH_NATIVE=0, there is no library, and every caller
has a twin in PyTorch to fall back on.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from rnnsearch.files import cache_folder
from rnnsearch.models.fused.products import product_type

SWITCH = "RNNSEARCH_NATIVE"
"""Environment variable: 0 turns the compiled functions off."""
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    *("-O3", "-march=native", "-std=gnu++17", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    *("-fPIC", "-fopenmp"),
)
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def function(name: str, kind: torch.dtype) -> Callable[..., None] | None:
    """The compiled function of a name for numbers of a type, or None where it cannot be had here.

    It takes tensors (contiguous, on the CPU), integers and floats in the order of its C++ declaration, runs on as many
    threads as PyTorch does, and gives nothing back.
    """
    compiled = library()
    entry = getattr(compiled, f"{name}_{TYPES[kind]}", None) if compiled is not None and kind in TYPES else None
    return None if entry is None else lambda *arguments: entry(*map(_argument, arguments))


def serves(name: str, x: Tensor, weight: Tensor, sizes: tuple[int, ...]) -> bool:
    """Whether a function can run here: on the CPU, over fp32 weights, in the type that products with x run in.

    Products in bfloat16 take numbers two by two, so the `sizes` that they sum over must then be even.
    """
    kind = product_type(x)
    if x.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    return (kind == torch.float32 or all(size % 2 == 0 for size in sizes)) and function(name, kind) is not None


def status() -> str:
    """What a user should know: that the functions are in use, or why they are not."""
    found, reason = _load()
    return "compiled kernels" if found is not None else f"no compiled kernels ({reason})"


def library() -> ctypes.CDLL | None:
    """The compiled functions; None where there are none."""
    return _load()[0]


def _argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        assert value.is_contiguous() and value.device.type == "cpu"
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int64(value)


@lru_cache(maxsize=1)
def _load() -> tuple[ctypes.CDLL | None, str]:
    if os.environ.get(SWITCH, "1") == "0":
        return None, f"{SWITCH}=0"
    wanted = os.environ.get("CXX", "").split()[:1] or list(COMPILERS)
    compiler = next((path for name in wanted if (path := shutil.which(name))), None)
    if compiler is None:
        return None, f"no C++ compiler found: {', '.join(wanted)}"
    try:
        return ctypes.CDLL(str(_built(compiler))), ""
    except subprocess.CalledProcessError as error:
        return None, f"{compiler} failed: {_last_line(error.stderr)}"
    except OSError as error:
        return None, str(error)


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no message")


def _built(compiler: str) -> Path:
    """The library, compiled unless it is in the cache."""
    sources = {
        entry.name: entry.read_bytes()
        for entry in resources.files(__package__).iterdir()
        if entry.name.endswith((".h", ".cpp"))
    }
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    marks = [version, _processor(), " ".join(FLAGS).encode(), torch.__version__.encode()]
    texts = [part for name, content in sorted(sources.items()) for part in (name.encode(), content)]
    key = hashlib.sha256(b"\0".join([*marks, *texts]))
    kept = cache_folder() / "native" / f"{key.hexdigest()[:24]}.so"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=kept.parent) as work:
            _compile(compiler, Path(work), sources).replace(kept)
    return kept


def _compile(compiler: str, folder: Path, sources: dict[str, bytes]) -> Path:
    for name, content in sources.items():
        (folder / name).write_bytes(content)
    units = [name.removesuffix(".cpp") for name in sources if name.endswith(".cpp")]

    def compile_unit(unit: str) -> None:
        command = [compiler, *FLAGS, "-c", f"{unit}.cpp", "-o", f"{unit}.o"]
        subprocess.run(command, cwd=folder, capture_output=True, check=True, text=True)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_unit, units))
    # Linked without an OpenMP of its own: a second pool of threads would wait, spinning, on the cores of PyTorch's,
    # whose functions are found at load time.
    link = [compiler, "-shared", *(f"{unit}.o" for unit in units), "-o", "native.so"]
    subprocess.run(link, cwd=folder, capture_output=True, check=True, text=True)
    return folder / "native.so"


def _processor() -> bytes:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = [line for line in lines if line.startswith(("flags", "Features"))][:1]
    except OSError:
        flags = []
    return "\n".join([sys.platform, platform.machine(), platform.processor(), *flags]).encode()
