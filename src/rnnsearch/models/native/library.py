"""Building and loading the C++ of this folder: it has no header but the language's own, so it takes seconds, once."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

from rnnsearch.errors import RnnsearchError
from rnnsearch.files import atomic_file, default_cache

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-std=c++17", "-shared", "-fPIC", "-w")
OFF = "RNNSEARCH_NATIVE"
"""Set to 0 to do without native code."""


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The library built from `name`.cpp; None where there is no compiler for it, or native code is switched off.

    What went wrong is logged, once.
    """
    if os.environ.get(OFF) == "0":
        return None
    compiler = _compiler()
    if compiler is None:
        log.info("no C++ compiler was found: decoding goes without native code")
        return None
    sources = [HERE / f"{name}.cpp", *sorted(HERE.glob("*.h"))]
    path = default_cache() / "native" / f"{name}-{_key(sources, compiler)}.so"
    try:
        if not path.is_file():
            with atomic_file(path) as temporary:
                command = [compiler, *FLAGS, str(sources[0]), "-o", str(temporary)]
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        return ctypes.CDLL(str(path))
    except (subprocess.SubprocessError, OSError, RnnsearchError) as error:
        said = getattr(error, "stderr", None) or str(error)
        log.warning("native code could not be built, so decoding goes without: %s", said.strip().splitlines()[-1])
        return None


def _compiler() -> str | None:
    named = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((path for name in named if name and (path := shutil.which(name))), None)


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
