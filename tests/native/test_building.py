"""Building native libraries: choice of the compiler, its command lines, file names, and wheels with libraries."""

import os
import shlex
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rnnsearch.ops.native import building, library

ROOT = Path(__file__).parents[2]
V3 = building.VARIANTS["x86_64"][-1]


@pytest.fixture
def empty_path(monkeypatch, tmp_path):
    """Set PATH to an empty directory, unset CXX and the switch, and return the directory."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(building.SWITCH, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def create_program(path):
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_compiler_is_cxx_then_the_system_compiler_then_zig(empty_path, monkeypatch):
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda _: None)
    assert building.find_compiler() is None
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: name)
    assert building.find_compiler() == (sys.executable, "-m", "ziglang", "c++")
    clang, ccache = create_program(empty_path / "clang++"), create_program(empty_path / "ccache")
    assert building.find_compiler() == (str(clang),)
    monkeypatch.setenv("CXX", "ccache clang++ -m64")
    assert building.find_compiler() == (str(ccache), "clang++", "-m64")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert building.find_compiler() is None


@pytest.mark.parametrize(
    ("system", "ending", "pic", "as_needed", "zig_target"),
    [
        ("Linux", "so", True, True, "x86_64-linux-gnu"),
        ("Darwin", "dylib", True, False, "x86_64-macos"),
        ("Windows", "dll", False, False, "x86_64-windows-gnu"),
    ],
)
def test_command_lines_per_system(system, ending, pic, as_needed, zig_target, monkeypatch, tmp_path):
    commands = []

    def run(*words):
        commands.append(words)
        Path(words[-1]).touch()

    monkeypatch.setattr(building.platform, "system", lambda: system)
    monkeypatch.setattr(building.platform, "machine", lambda: "AMD64")
    monkeypatch.setattr(building, "_run", run)
    assert building.library_file_name(V3).endswith(f".{ending}")
    building.build(V3, ("clang++",), tmp_path / "library")
    assert all(("-fPIC" in words) == pic for words in commands)
    assert all(set(V3.flags) <= set(words) for words in commands[:-1])
    assert ("-Wl,--as-needed" in commands[-1]) == as_needed
    assert not any("openmp" in word for words in commands for word in words if word.startswith("-"))
    building.build(V3, ("python", "-m", "ziglang", "c++"), tmp_path / "library")
    assert commands[-2][:4] == ("python", "-m", "ziglang", "c++")
    assert commands[-2][4:7] == ("-target", zig_target, "-nostdlib++")
    assert "-mcpu=x86_64_v3" in commands[-2]
    assert not any(word.startswith("-march") for word in commands[-2])


def without_optimisation(flags):
    """Return flags with `-O0`, which takes half of the time of `-O1`, and without the checks that Zig then inserts."""
    return (*("-O0" if flag == "-O3" else flag for flag in flags), "-fno-sanitize=undefined")


@pytest.mark.parametrize("machine", sorted(building.VARIANTS))
def test_zig_builds_for_another_processor(machine, monkeypatch, tmp_path):
    if building.find_zig() is None or sys.platform != "linux":
        pytest.skip("there is no ziglang, or it does not build ELF files here")
    monkeypatch.delenv(building.SWITCH, raising=False)
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", f"linux-{machine}")
    monkeypatch.setenv("CXX", f"{sys.executable} -m ziglang c++")
    monkeypatch.setattr(building, "FLAGS", without_optimisation(building.FLAGS))
    variant = building.wheel_variants()[-1]
    assert variant is building.VARIANTS[machine][-1]
    building.build(variant, building.find_compiler(), tmp_path / "library")
    content = (tmp_path / "library").read_bytes()
    assert content[:4] == b"\x7fELF"
    assert content[18] == {"x86_64": 62, "aarch64": 183}[machine]  # e_machine
    assert len(content) < 1_000_000


@pytest.mark.parametrize(
    ("host_platform", "machine"),
    [
        (None, "x86_64"),
        ("macosx-10.9-universal2", "x86_64"),
        ("macosx-11.0-arm64", "aarch64"),
        ("linux-aarch64", "aarch64"),
        ("win-amd64", "x86_64"),
    ],
)
def test_target_machine_has_one_name_on_all_systems(host_platform, machine, monkeypatch):
    monkeypatch.setattr(building.platform, "machine", lambda: "AMD64")
    monkeypatch.delenv("_PYTHON_HOST_PLATFORM", raising=False)
    if host_platform is not None:
        monkeypatch.setenv("_PYTHON_HOST_PLATFORM", host_platform)
    assert building.target_family() == machine


def test_wheel_contains_the_variants_that_can_be_built(empty_path, monkeypatch, caplog):
    monkeypatch.setattr(building.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda _: None)
    assert building.wheel_variants() == []
    monkeypatch.setenv("CXX", str(create_program(empty_path / "c++")))
    assert [variant.name for variant in building.wheel_variants()] == ["armv8.6-a", "armv8.2-a", "armv8-a"]

    def run(*words):
        if "-march=armv8-a" not in words and "-shared" not in words:
            raise subprocess.CalledProcessError(1, words, stderr="c++: error: unknown -march\n")
        Path(words[-1]).touch()

    monkeypatch.setattr(building, "_run", run)
    building.build_for_wheel(empty_path / "built")
    assert caplog.messages == [
        f"native code for {name} could not be built: c++: error: unknown -march" for name in ("armv8.6-a", "armv8.2-a")
    ]
    assert [path.name.partition("-a-")[0] for path in (empty_path / "built").iterdir()] == ["armv8"]
    monkeypatch.setenv(building.SWITCH, "0")
    assert building.wheel_variants() == []
    monkeypatch.setattr(building.platform, "machine", lambda: "riscv64")
    monkeypatch.setenv(building.SWITCH, "1")
    assert building.wheel_variants() == []


def test_variants_in_the_wheel_are_preferred(monkeypatch, tmp_path):
    variants = library.runnable_variants()
    if len(variants) < 2:
        pytest.skip("this processor runs one variant or none")
    best, slowest = variants[0], variants[-1]
    monkeypatch.delenv(building.SWITCH, raising=False)
    monkeypatch.setattr(building, "BUNDLED_FOLDER", tmp_path)
    (tmp_path / building.library_file_name(slowest)).touch()
    library.runnable_variants.cache_clear()
    try:
        assert library.chosen_variant() == slowest
        assert best in library.runnable_variants()
    finally:
        library.runnable_variants.cache_clear()


USE_NATIVE_PRODUCT = """
import rnnsearch, torch
from rnnsearch.ops.linear import native_product
from rnnsearch.ops.native import building, library
print(rnnsearch.__file__)
assert building.shutil.which("c++") is None and building.find_compiler() is None
x, w = torch.randn(5, 40), torch.randn(30, 40)
assert torch.allclose(native_product(x, w, torch.float32), x @ w.t(), atol=1e-4)
print(library.status())
"""


def copying_zig(folder):
    """Return a folder for PYTHONPATH with a `ziglang` that copies the engine for browsers instead of compiling it."""
    (folder / "ziglang").mkdir(parents=True)
    (folder / "ziglang" / "__init__.py").touch()
    copy = f"import shutil, sys\nshutil.copy({str(building.web_engine_path())!r}, sys.argv[-1])\n"
    (folder / "ziglang" / "__main__.py").write_text(copy)
    return folder


def test_wheel_has_native_code_without_a_compiler(tmp_path):
    compiler = building.find_compiler()
    variant = library.chosen_variant()
    if library.unavailable_reason() or compiler is None or variant is None:
        pytest.skip(library.unavailable_reason() or "no C++ compiler was found")
    chosen = variant.name
    # Instead of compiling for many seconds, copies the library that was built by the same function.
    compiled = building.build_if_missing(variant, compiler)
    copying_compiler = create_program(tmp_path / "c++")
    copying_compiler.write_text(f'#!/bin/sh\nfor target; do :; done\ncp {shlex.quote(str(compiled))} "$target"\n')
    build_environment = {**os.environ, "PYTHON": sys.executable, building.SWITCH: chosen, "CXX": str(copying_compiler)}
    if building.find_zig():
        build_environment["PYTHONPATH"] = str(copying_zig(tmp_path / "zig"))
    make_wheel = [ROOT / "scripts" / "wheel.sh", tmp_path / "dist", "--no-build-isolation"]
    subprocess.run(make_wheel, env=build_environment, check=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.startswith("rnnsearch-")
    assert "-py3-none-" in wheel.name
    assert "-any" not in wheel.name
    has_engine = any(name.endswith(f"/built/{building.web_file_name()}") for name in zipfile.ZipFile(wheel).namelist())
    assert has_engine == bool(building.find_zig())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    pip += ["--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", tmp_path / "site", wheel], check=True)
    environment = {
        "PATH": str(tmp_path / "empty"),
        "PYTHONPATH": str(tmp_path / "site"),
        "RNNSEARCH_CACHE": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
        "CXX": "no-such-compiler",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", USE_NATIVE_PRODUCT]
    output = subprocess.check_output(command, env=environment, cwd=tmp_path, text=True)
    package, status = output.splitlines()
    assert Path(package).is_relative_to(tmp_path / "site")
    assert status == f"native code for {chosen}"
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def compiler(empty_path, monkeypatch):
    """Return the command of a compiler that is never called, with an empty cache."""
    monkeypatch.setenv("RNNSEARCH_CACHE", str(empty_path / "cache"))
    monkeypatch.setenv("CXX", str(create_program(empty_path / "c++")))
    monkeypatch.setattr(building.platform, "machine", lambda: "x86_64")
    return building.find_compiler()


def test_one_of_two_processes_builds_and_both_report_that_they_wait(compiler, monkeypatch, caplog):
    targets = []

    def build(_variant, _command, target, _flags):
        targets.append(target)
        end = time.monotonic() + 10
        while len(caplog.messages) < 2 and time.monotonic() < end:  # until the other one waits
            time.sleep(0.01)
        target.write_text("library")

    monkeypatch.setattr(building, "build", build)
    with ThreadPoolExecutor(2) as threads:
        paths = set(threads.map(lambda _: building.build_if_missing(V3, compiler), range(2)))
    assert paths == {building.cached_library(V3, compiler)}
    assert len(targets) == 1
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("compiling native code (once per environment")
    building.build_if_missing(V3, compiler)
    assert len(caplog.messages) == 2


def test_missing_library_is_built_by_another_process(compiler, monkeypatch, caplog):
    commands = []

    class Started(subprocess.Popen):
        def __init__(self, command, **_):
            commands.append(command)

    def build(_variant, _command, target, _flags):
        target.write_text("library")

    monkeypatch.setattr(building.subprocess, "Popen", Started)
    monkeypatch.setattr(building, "build", build)
    assert building.start_building(V3) is not None
    assert commands == [[sys.executable, "-m", "rnnsearch.ops.native.building", V3.name]]
    assert caplog.messages == [f"compiling native code in the background ({building.DURATION})"]
    building.main(V3.name)
    assert building.cached_library(V3, compiler).read_text() == "library"
    assert building.start_building(V3) is None
    assert len(commands) == 1


@pytest.mark.usefixtures("compiler")
def test_nothing_is_built_without_compiler_or_cache(monkeypatch):
    monkeypatch.setenv("RNNSEARCH_CACHE", "~nobody-here/cache")
    assert building.start_building(V3) is None
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert building.start_building(V3) is None
