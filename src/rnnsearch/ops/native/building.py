"""Building the C++ of this folder, one library for each instruction set: by a wheel's build, or at first use.

It needs no header but C's own and no C++ library, so any compiler builds it, once, in seconds. Compilers' tunings are
left out of account on purpose: each instruction set is named, and nothing of the machine that happens to build it.

Nothing but Python's own library is imported here, nor anything of this package: `setup.py` runs it where no PyTorch is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
FLAGS = (
    *("-O3", "-std=gnu++17", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions"),
    *("-fno-rtti", "-fvisibility=hidden", "-w"),
)

SWITCH = "RNNSEARCH_NATIVE"
"""Set to 0 to do without native code, or to the name of a variant to hold the program, or a wheel, to it; 1: the best
variant. What is so named serves even where a library was faster (`choice.py`)."""

Command = tuple[str, ...]
"""A compiler: the words of a command line that its flags follow."""


class Variant(NamedTuple):
    """name: of the instruction set. flags: the compiler's. zig: what Zig calls it. needs: of
    `torch.cpu.get_capabilities()`. pairs: whether bf16 is multiplied by an instruction of vectors, pair by pair. tiles:
    whether in AMX tiles, which the system must allow."""

    name: str
    flags: tuple[str, ...]
    zig: str
    needs: tuple[str, ...]
    pairs: bool = False
    tiles: bool = False


V3 = ("avx2", "fma3", "f16c", "bmi2")
V4 = (*V3, "avx512_f", "avx512_bw", "avx512_cd", "avx512_dq", "avx512_vl")
GENERIC = "-mtune=generic"
VARIANTS = {
    "x86_64": (
        Variant(
            "x86-64-v4-amx",
            ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8", GENERIC),
            "x86_64_v4+avx512bf16+avx512vnni+amx_tile+amx_bf16+amx_int8",
            (*V4, "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"),
            tiles=True,
        ),
        Variant(
            "x86-64-v4-bf16",
            ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", GENERIC),
            "x86_64_v4+avx512bf16+avx512vnni",
            (*V4, "avx512_bf16", "avx512_vnni"),
            pairs=True,
        ),
        Variant(
            "x86-64-v4-vnni",
            ("-march=x86-64-v4", "-mavx512vnni", GENERIC),
            "x86_64_v4+avx512vnni",
            (*V4, "avx512_vnni"),
        ),
        Variant("x86-64-v4", ("-march=x86-64-v4", GENERIC), "x86_64_v4", V4),
        Variant("x86-64-v3-vnni", ("-march=x86-64-v3", "-mavxvnni", GENERIC), "x86_64_v3+avxvnni", (*V3, "avx_vnni")),
        Variant("x86-64-v3", ("-march=x86-64-v3", GENERIC), "x86_64_v3", V3),
    ),
    "aarch64": (
        Variant("armv8.6-a", ("-march=armv8.2-a+bf16+i8mm",), "generic+v8_2a+bf16+i8mm", ("bf16", "i8mm"), pairs=True),
        Variant("armv8.2-a", ("-march=armv8.2-a+dotprod",), "generic+v8_2a+dotprod", ("dot",)),
        Variant("armv8-a", ("-march=armv8-a",), "generic", ()),
    ),
}
"""By kind of processor, the best first."""


WEB_CODE = (
    *(HERE / name for name in ("openmp.cpp", "packed_matrix.cpp", "rnnsearch.cpp", "search.cpp")),
    *sorted((HERE / "web").glob("*.cpp")),
)
"""Of the engine for browsers; `web/` is a flat interface over the rest."""
WEB_FLAGS = (
    *("-target", "wasm32-wasi", "-mcpu=generic+simd128+bulk_memory+nontrapping_fptoint+sign_ext"),
    *("-mexec-model=reactor", "-nostdlib++", "-Wl,--strip-all"),
)


def processor() -> str:
    """The kind of processor that this is, by the name that `VARIANTS` has for it."""
    return _kind(platform.machine())


def _kind(machine: str) -> str:
    """By its names in several systems."""
    name = machine.lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def built_for() -> str:
    """The kind of processor that libraries are built for: this one, or that of the platform which Python's own variable
    for builds for another names, as `linux-aarch64` (but for macOS's `universal2`, which is any)."""
    named = os.environ.get("_PYTHON_HOST_PLATFORM", "").rpartition("-")[2]
    return processor() if named in ("", "universal2") else _kind(named)


@cache
def told(name: str) -> str:
    """What Linux says of the first processor, by the name that it has in /proc/cpuinfo; empty for nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    said = (line.partition(":") for line in lines)
    return next((words.strip() for known, _, words in said if known.strip() == name), "")


def compiler() -> Command | None:
    """CXX, or the first of the usual ones that is on the path, or Zig's, where the Python package `ziglang` is."""
    own = shlex.split(os.environ.get("CXX", ""), posix=platform.system() != "Windows")
    for words in (own,) if own else (["c++"], ["g++"], ["clang++"]):
        if found := shutil.which(words[0]):
            return (found, *words[1:])
    return None if own else zig()


def zig() -> Command | None:
    """Zig's compiler, which builds for browsers too, where the Python package `ziglang` is."""
    return None if importlib.util.find_spec("ziglang") is None else (sys.executable, "-m", "ziglang", "c++")


def build(variant: Variant, command: Command, target: Path, flags: tuple[str, ...] = ()) -> None:
    """Compile and link. Errors: SubprocessError, OSError."""
    for_all, for_one = _words(variant, command)
    with TemporaryDirectory() as folder:

        def compiled(source: Path) -> str:
            to = f"{folder}/{source.stem}.o"
            _run(*command, *for_all, *FLAGS, *for_one, *flags, "-c", str(source), "-o", to)
            return to

        with ThreadPoolExecutor(os.cpu_count()) as workers:
            objects = list(workers.map(compiled, sorted(HERE.glob("*.cpp"))))
        # The C++ library; and what Zig tells a debugger, six times the code.
        unneeded = ("-Wl,--as-needed", "-Wl,--strip-debug") if platform.system() == "Linux" else ()
        linked = f"{folder}/{target.name}"  # some linkers leave more beside it
        _run(*command, *for_all, "-shared", *objects, *unneeded, "-o", linked)
        shutil.copyfile(linked, target)


def build_web(command: Command, target: Path) -> None:
    """Compile and link the engine for browsers, by Zig. Errors: SubprocessError, OSError."""
    with TemporaryDirectory() as folder:  # nothing of it beside the target
        linked = f"{folder}/engine.wasm"
        _run(*command, *WEB_FLAGS, *FLAGS, *map(str, WEB_CODE), "-o", linked)
        shutil.copyfile(linked, target)


def of_wheel() -> list[Variant]:
    """What a wheel that is made here is to have: all variants of a kind of processor, or the one that the switch
    names; none where there is no compiler."""
    wanted = os.environ.get(SWITCH) or "1"
    every = VARIANTS.get(built_for(), ()) if compiler() else ()
    return [variant for variant in every if wanted in ("1", variant.name)]


def build_for_wheel(folder: Path) -> None:
    """A library of each of them, as `file_name` names it. What cannot be built is said and left out."""
    command = compiler() or ()
    for variant in of_wheel():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            build(variant, command, folder / file_name(variant))
        except (subprocess.SubprocessError, OSError) as error:
            log.warning("native code for %s could not be built: %s", variant.name, what_went_wrong(error))
    found = zig() if os.environ.get(SWITCH) != "0" else None
    if found:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            build_web(found, folder / web_file_name())
        except (subprocess.SubprocessError, OSError) as error:
            log.warning("the engine for browsers could not be built: %s", what_went_wrong(error))


def what_went_wrong(error: Exception) -> str:
    """The last line of what a compiler said, or of the error."""
    said: str = getattr(error, "stderr", None) or str(error)
    return said.strip().splitlines()[-1]


def file_name(variant: Variant, made_with: tuple[str, ...] = ()) -> str:
    """Changes with the code and the flags, and with what it is made with besides."""
    key = _key(sorted(HERE.glob("*.cpp")), (*FLAGS, *variant.flags, *made_with))
    ending = {"Windows": "dll", "Darwin": "dylib"}.get(platform.system(), "so")
    return f"{variant.name}-{key}.{ending}"


def web_file_name() -> str:
    """The same for browsers, whatever it is made with."""
    return f"engine-{_key(list(WEB_CODE), (*FLAGS, *WEB_FLAGS))}.wasm"


def _key(code: list[Path], flags: tuple[str, ...]) -> str:
    headers = {header for folder in (HERE, *(source.parent for source in code)) for header in folder.glob("*.h")}
    sources = [source.read_bytes() for source in (*code, *sorted(headers))]
    return hashlib.sha256(b"\0".join([*sources, " ".join(flags).encode()])).hexdigest()[:16]


def _words(variant: Variant, command: Command) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a compiler must be told of the system, and of the variant."""
    if "ziglang" not in command:
        return () if platform.system() == "Windows" else ("-fPIC",), variant.flags
    # A named target has Zig's own C library, whatever stands on this machine. Without -nostdlib++ Zig builds its C++
    # library first, which takes minutes.
    system = {"Windows": "windows-gnu", "Darwin": "macos"}.get(platform.system(), "linux-gnu")
    return ("-target", f"{built_for()}-{system}", "-nostdlib++", "-fPIC"), (f"-mcpu={variant.zig}",)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)


# Where the libraries of this folder are: in a wheel, or made by the machine's compiler at first use. No torch here.

BUILT = Path(__file__).parent / "built"
"""Where a wheel has its libraries."""


def shipped(variant: Variant) -> Path:
    """Where the library of a variant is, if the wheel has it."""
    return BUILT / file_name(variant)


def best_first(able: Iterable[Variant]) -> list[Variant]:
    """Variants that a processor can run, those that the wheel has first. Intel's vectors multiply pairs of bf16 at
    half the speed of fp32, AMD's at twice that, so that Intel's do it in fp32: 250 GFLOP/s, not 165, in products of
    1024 x 1536 x 512 (docs/results/kernels-amx.md)."""
    intel = "GenuineIntel" in (told("vendor_id") or platform.processor())
    return sorted(able, key=lambda variant: (not shipped(variant).is_file(), intel and variant.pairs))


def built(variant: Variant, command: Command, flags: tuple[str, ...] = ()) -> Path:
    """The library of a variant, made by a compiler where it is not yet there; `flags`: more of them.

    Errors: SubprocessError, OSError.
    """
    from rnnsearch.utils.files import atomic_file, default_cache  # setup.py loads this module without the package

    path = default_cache() / "native" / file_name(variant, (*command, *flags))
    if not path.is_file():
        with atomic_file(path) as temporary:
            build(variant, command, temporary, flags)
    return path


def web_engine() -> Path:
    """The engine for browsers: the wheel's, or made by Zig where it is not yet there.

    Errors: RnnsearchError where there is none and none can be built.
    """
    from rnnsearch.errors import RnnsearchError
    from rnnsearch.utils.files import atomic_file, default_cache

    path = default_cache() / "native" / web_file_name()
    for found in (BUILT / path.name, path):
        if found.is_file():
            return found
    command = zig()
    if command is None:
        raise RnnsearchError("the engine for browsers is not in this package; to build it: pip install ziglang")
    try:
        with atomic_file(path) as temporary:
            build_web(command, temporary)
    except (subprocess.SubprocessError, OSError) as error:
        raise RnnsearchError(f"the engine for browsers: {what_went_wrong(error)}") from None
    return path
