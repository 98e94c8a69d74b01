"""Building of the C++ libraries: one per instruction set, when a wheel is built, by `make`, or at first use.

No process waits for the compiler without a message; `start_building` compiles next to other work.

The code includes only C headers and needs no C++ standard library, so any C++ compiler builds it in seconds. Each
instruction set is named explicitly, and nothing depends on the machine that builds. `setup.py` runs this module without
PyTorch and without the package, so it must import only the standard library.

File names contain a hash of sources, headers and flags, so that a changed source is never run from an old library.
Tests: tests/native/test_building.py, tests/native/test_variants.py.
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
BUNDLED_FOLDER = HERE / "built"
"""Folder of the libraries that are part of a wheel."""
# Without exceptions and RTTI, no C++ runtime is needed. No -ffast-math: -inf marks masked scores, and NaN is
# detected.
FLAGS = (
    *("-O3", "-std=gnu++17", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions"),
    *("-fno-rtti", "-fvisibility=hidden", "-w"),
)
COMPILER_TIMEOUT_SECONDS = 600
"""Time limit of one call of the compiler."""

DURATION = "once per environment, about ten seconds; longer next to other programs"
"""Duration of a build, for messages."""

SWITCH = "RNNSEARCH_NATIVE"
"""Environment variable: 0 disables native code; the name of a variant forces this variant, and 1 the best one, even
where a library is faster (`ops/autotune.py`). When a wheel is built, it selects the variants of the wheel."""

Command = tuple[str, ...]
"""The words of a compiler's command line, which flags follow."""


class NativeVariant(NamedTuple):
    """A library for one instruction set."""

    name: str  # name of the variant, in file names and `RNNSEARCH_NATIVE`
    flags: tuple[str, ...]  # flags of GCC and Clang
    zig_cpu: str  # the instruction set in Zig's notation
    capabilities: tuple[str, ...]  # that the processor must have, as in `torch.cpu.get_capabilities()`
    multiplies_bf16_pairs: bool = False  # by a vector instruction for pairs of bf16 values
    uses_amx_tiles: bool = False  # which the operating system must allow


V3 = ("avx2", "fma3", "f16c", "bmi2")
"""Capabilities of x86-64-v3."""
V4 = (*V3, "avx512_f", "avx512_bw", "avx512_cd", "avx512_dq", "avx512_vl")
"""Capabilities of x86-64-v4."""
GENERIC = "-mtune=generic"
"""Flag to tune for no particular processor."""
VARIANTS = {
    "x86_64": (
        NativeVariant(
            "x86-64-v4-amx",
            ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8", GENERIC),
            "x86_64_v4+avx512bf16+avx512vnni+amx_tile+amx_bf16+amx_int8",
            (*V4, "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"),
            uses_amx_tiles=True,
        ),
        NativeVariant(
            "x86-64-v4-bf16",
            ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", GENERIC),
            "x86_64_v4+avx512bf16+avx512vnni",
            (*V4, "avx512_bf16", "avx512_vnni"),
            multiplies_bf16_pairs=True,
        ),
        NativeVariant(
            "x86-64-v4-vnni",
            ("-march=x86-64-v4", "-mavx512vnni", GENERIC),
            "x86_64_v4+avx512vnni",
            (*V4, "avx512_vnni"),
        ),
        NativeVariant("x86-64-v4", ("-march=x86-64-v4", GENERIC), "x86_64_v4", V4),
        NativeVariant(
            "x86-64-v3-vnni", ("-march=x86-64-v3", "-mavxvnni", GENERIC), "x86_64_v3+avxvnni", (*V3, "avx_vnni")
        ),
        NativeVariant("x86-64-v3", ("-march=x86-64-v3", GENERIC), "x86_64_v3", V3),
    ),
    "aarch64": (
        NativeVariant(
            "armv8.6-a",
            ("-march=armv8.2-a+bf16+i8mm",),
            "generic+v8_2a+bf16+i8mm",
            ("bf16", "i8mm"),
            multiplies_bf16_pairs=True,
        ),
        NativeVariant("armv8.2-a", ("-march=armv8.2-a+dotprod",), "generic+v8_2a+dotprod", ("dot",)),
        NativeVariant("armv8-a", ("-march=armv8-a",), "generic", ()),
    ),
}
"""Variants by processor family, the best first."""

WEB_SOURCES = (
    *(HERE / name for name in ("thread_team.cpp", "packed_matrix.cpp", "rnnsearch.cpp", "search.cpp")),
    *sorted((HERE / "web").glob("*.cpp")),
)
"""Sources of the engine for browsers; those in `web/` are a flat interface to the others."""
WEB_FLAGS = (
    *("-target", "wasm32-wasi", "-mcpu=generic+simd128+bulk_memory+nontrapping_fptoint+sign_ext"),
    *("-mexec-model=reactor", "-nostdlib++", "-Wl,--strip-all"),
)
"""Flags for WebAssembly."""


# Processors and compilers.


def processor_family() -> str:
    """Return the family of this machine's processor, as in `VARIANTS`."""
    return _family(platform.machine())


def _family(machine: str) -> str:
    name = machine.lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def target_family() -> str:
    """Return the processor family that libraries are built for.

    For cross-compilation, Python names the platform in an environment variable, such as `linux-aarch64`; macOS's
    `universal2` stands for any.
    """
    machine = os.environ.get("_PYTHON_HOST_PLATFORM", "").rpartition("-")[2]
    return processor_family() if machine in ("", "universal2") else _family(machine)


@cache
def cpuinfo_field(name: str) -> str:
    """Return a field of the first CPU in /proc/cpuinfo, or an empty string."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        field, _, value = line.partition(":")
        if field.strip() == name:
            return value.strip()
    return ""


def find_compiler() -> Command | None:
    """Return the compiler in CXX, the first usual one on the path, or Zig's if the package `ziglang` is installed."""
    chosen = shlex.split(os.environ.get("CXX", ""), posix=platform.system() != "Windows")
    for words in (chosen,) if chosen else (["c++"], ["g++"], ["clang++"]):
        if path := shutil.which(words[0]):
            return (path, *words[1:])
    return None if chosen else find_zig()


def find_zig() -> Command | None:
    """Return Zig's compiler, which can also build for browsers, if the package `ziglang` is installed."""
    return None if importlib.util.find_spec("ziglang") is None else (sys.executable, "-m", "ziglang", "c++")


def error_summary(error: Exception) -> str:
    """Return the last line of a compiler's error output, or of the error."""
    output: str = getattr(error, "stderr", None) or str(error)
    return output.strip().splitlines()[-1]


# Compilation.


def build(variant: NativeVariant, command: Command, target: Path, flags: tuple[str, ...] = ()) -> None:
    """Build the library of a variant; raise SubprocessError or OSError if that fails."""
    system_flags, variant_flags = _compiler_flags(variant, command)
    with TemporaryDirectory() as folder:

        def compile_source(source: Path) -> str:
            object_file = f"{folder}/{source.stem}.o"
            options = (*system_flags, *FLAGS, *variant_flags, *flags)
            _run(*command, *options, "-c", str(source), "-o", object_file)
            return object_file

        # Threads are enough, because each only waits for a compiler process.
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            objects = list(workers.map(compile_source, sorted(HERE.glob("*.cpp"))))
        # Leave out unused libraries, and Zig's debug information, which is six times the code.
        link_flags = ("-Wl,--as-needed", "-Wl,--strip-debug", "-lpthread") if platform.system() == "Linux" else ()
        library = f"{folder}/{target.name}"  # some linkers write further files next to it
        _run(*command, *system_flags, "-shared", *objects, *link_flags, "-o", library)
        shutil.copyfile(library, target)


def build_web(command: Command, target: Path) -> None:
    """Build the engine for browsers with Zig; raise SubprocessError or OSError if that fails."""
    with TemporaryDirectory() as folder:  # for further files of the linker
        engine = f"{folder}/engine.wasm"
        _run(*command, *WEB_FLAGS, *FLAGS, *map(str, WEB_SOURCES), "-o", engine)
        shutil.copyfile(engine, target)


def _compiler_flags(variant: NativeVariant, command: Command) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the flags for the operating system and for the variant."""
    if "ziglang" not in command:
        return () if platform.system() == "Windows" else ("-fPIC",), variant.flags
    # With a named target, Zig uses its own C library, whatever this machine has. Without -nostdlib++, Zig would first
    # build its C++ library, which takes minutes.
    system = {"Windows": "windows-gnu", "Darwin": "macos"}.get(platform.system(), "linux-gnu")
    return ("-target", f"{target_family()}-{system}", "-nostdlib++", "-fPIC"), (f"-mcpu={variant.zig_cpu}",)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILER_TIMEOUT_SECONDS)


# File names, which change with the code and the flags.


def library_file_name(variant: NativeVariant, extra_flags: tuple[str, ...] = ()) -> str:
    """Return the file name of a variant's library; compiler and flags of a local build are part of its hash."""
    digest = _digest(sorted(HERE.glob("*.cpp")), (*FLAGS, *variant.flags, *extra_flags))
    extension = {"Windows": "dll", "Darwin": "dylib"}.get(platform.system(), "so")
    return f"{variant.name}-{digest}.{extension}"


def web_file_name() -> str:
    """Return the file name of the engine for browsers."""
    return f"engine-{_digest(list(WEB_SOURCES), (*FLAGS, *WEB_FLAGS))}.wasm"


def _digest(sources: list[Path], flags: tuple[str, ...]) -> str:
    # All headers count, although a source includes only some: no dependencies are tracked.
    headers = {header for folder in (HERE, *(source.parent for source in sources)) for header in folder.glob("*.h")}
    contents = [path.read_bytes() for path in (*sources, *sorted(headers))]
    return hashlib.sha256(b"\0".join([*contents, " ".join(flags).encode()])).hexdigest()[:16]


# Libraries of a wheel.


def wheel_variants() -> list[NativeVariant]:
    """Return the variants of a wheel that is built now: all of the processor family, or the one that SWITCH names.

    Without a compiler there are none.
    """
    # 0 is the name of no variant: the wheel then has no native code.
    wanted = os.environ.get(SWITCH) or "1"
    variants = VARIANTS.get(target_family(), ()) if find_compiler() else ()
    return [variant for variant in variants if wanted in ("1", variant.name)]


def build_for_wheel(folder: Path) -> None:
    """Build the libraries of a wheel; warn about those that cannot be built, and leave them out."""
    command = find_compiler() or ()
    for variant in wheel_variants():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            build(variant, command, folder / library_file_name(variant))
        except (subprocess.SubprocessError, OSError) as error:
            log.warning("native code for %s could not be built: %s", variant.name, error_summary(error))
    zig = find_zig() if os.environ.get(SWITCH) != "0" else None
    if zig:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            build_web(zig, folder / web_file_name())
        except (subprocess.SubprocessError, OSError) as error:
            log.warning("the engine for browsers could not be built: %s", error_summary(error))


def bundled_library(variant: NativeVariant) -> Path:
    """Return the path of a variant's library in a wheel, whether it exists or not."""
    return BUNDLED_FOLDER / library_file_name(variant)


# Libraries on the user's machine.


def best_first(variants: Iterable[NativeVariant]) -> list[NativeVariant]:
    """Sort variants that a processor can run: bundled ones first, then by speed.

    Intel's vector instructions multiply pairs of bf16 values at half the speed of fp32, AMD's at twice that. On Intel,
    variants without these instructions come first: 250 GFLOP/s, not 165, in products of 1024 x 1536 x 512
    (docs/results/kernels-amx.md).
    """
    is_intel = "GenuineIntel" in (cpuinfo_field("vendor_id") or platform.processor())

    def rank(variant: NativeVariant) -> tuple[bool, bool]:
        return not bundled_library(variant).is_file(), is_intel and variant.multiplies_bf16_pairs

    # The sort is stable: otherwise, variants stay in the order of VARIANTS, the best first.
    return sorted(variants, key=rank)


def cached_library(variant: NativeVariant, command: Command, flags: tuple[str, ...] = ()) -> Path:
    """Return the path of a variant's library in the cache, whether it exists or not."""
    from rnnsearch.utils.files import default_cache_folder  # setup.py loads this module without the package

    return default_cache_folder() / "native" / library_file_name(variant, (*command, *flags))


def build_if_missing(variant: NativeVariant, command: Command, flags: tuple[str, ...] = ()) -> Path:
    """Return the cached library of a variant, and build it first if necessary, with a message.

    Raises:
        SubprocessError, OSError, RnnsearchError: It cannot be built.
    """
    from rnnsearch.utils.files import atomic_file, replacing

    path = cached_library(variant, command, flags)
    if path.is_file():
        return path
    # A warning, because it is shown whether logging is configured or not.
    log.warning("compiling native code (%s)", DURATION)
    # One process builds, the others wait.
    with replacing(path):
        if not path.is_file():
            with atomic_file(path) as temporary:
                build(variant, command, temporary, flags)
    return path


def start_building(variant: NativeVariant) -> subprocess.Popen[bytes] | None:
    """Start to build a missing library in another process and return the process; None if nothing is to be built.

    The process ends by itself, even if this one ends first. If it fails, a later `build_if_missing` reports the reason.
    """
    from rnnsearch.errors import RnnsearchError

    command = find_compiler()
    if command is None or bundled_library(variant).is_file():
        return None
    try:
        if cached_library(variant, command).is_file():
            return None
    except RnnsearchError:  # there is no folder for it
        return None
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, variant.name],
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends the command, but not the compiler
        )
    except OSError:
        return None
    log.warning("compiling native code in the background (%s)", DURATION)
    return process


def web_engine_path() -> Path:
    """Return the path of the engine for browsers: the wheel's, or a cached one, which is built if necessary.

    Raises:
        RnnsearchError: It cannot be built.
    """
    from rnnsearch.errors import RnnsearchError
    from rnnsearch.utils.files import atomic_file, default_cache_folder

    name = web_file_name()
    path = default_cache_folder() / "native" / name
    for candidate in (BUNDLED_FOLDER / name, path):
        if candidate.is_file():
            return candidate
    command = find_zig()
    if command is None:
        raise RnnsearchError("the engine for browsers is not in this package; to build it: pip install ziglang")
    log.warning("compiling the engine for browsers (%s)", DURATION)
    try:
        with atomic_file(path) as temporary:
            build_web(command, temporary)
    except (subprocess.SubprocessError, OSError) as error:
        raise RnnsearchError(f"the engine for browsers could not be built: {error_summary(error)}") from None
    return path


def main(name: str) -> None:
    """Build the library of a variant of this processor family, if it is missing (see `start_building`)."""
    for variant in VARIANTS.get(processor_family(), ()):
        if variant.name == name and (command := find_compiler()) is not None:
            build_if_missing(variant, command)


if __name__ == "__main__":
    main(sys.argv[1])
