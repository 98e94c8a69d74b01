"""Where native code comes from: which compiler, with which words, under which name; and out of a wheel where there is
none."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rnnsearch.ops.native import building, library

ROOT = Path(__file__).parents[2]
V3 = building.VARIANTS["x86_64"][-1]


@pytest.fixture
def empty_path(monkeypatch, tmp_path):
    """A `PATH` without any program, and no compiler that the user names; the folder that `PATH` names."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(building.SWITCH, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(path):
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_compiler_is_the_users_then_the_machines_then_zig(empty_path, monkeypatch):
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda _: None)
    assert building.compiler() is None
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: name)
    assert building.compiler() == (sys.executable, "-m", "ziglang", "c++")
    clang, cache = program(empty_path / "clang++"), program(empty_path / "ccache")
    assert building.compiler() == (str(clang),)
    monkeypatch.setenv("CXX", "ccache clang++ -m64")
    assert building.compiler() == (str(cache), "clang++", "-m64")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert building.compiler() is None


@pytest.mark.parametrize(
    ("system", "ending", "pic", "unneeded", "zig"),
    [
        ("Linux", "so", True, True, "x86_64-linux-gnu"),
        ("Darwin", "dylib", True, False, "x86_64-macos"),
        ("Windows", "dll", False, False, "x86_64-windows-gnu"),
    ],
)
def test_what_each_system_is_asked_for(system, ending, pic, unneeded, zig, monkeypatch, tmp_path):
    asked = []

    def run(*words):
        asked.append(words)
        Path(words[-1]).touch()

    monkeypatch.setattr(building.platform, "system", lambda: system)
    monkeypatch.setattr(building.platform, "machine", lambda: "AMD64")
    monkeypatch.setattr(building, "_run", run)
    assert building.file_name(V3).endswith(f".{ending}")
    building.build(V3, ("clang++",), tmp_path / "made")
    assert all(("-fPIC" in words) == pic for words in asked)
    assert all(set(V3.flags) <= set(words) for words in asked[:-1])
    assert ("-Wl,--as-needed" in asked[-1]) == unneeded
    assert not any("openmp" in word for words in asked for word in words)
    building.build(V3, ("python", "-m", "ziglang", "c++"), tmp_path / "made")
    assert asked[-2][:4] == ("python", "-m", "ziglang", "c++")
    assert asked[-2][4:7] == ("-target", zig, "-nostdlib++") and "-mcpu=x86_64_v3" in asked[-2]
    assert not any(word.startswith("-march") for word in asked[-2])


def test_a_system_without_such_a_pool_of_threads_has_one_thread(monkeypatch):
    errors = [TypeError, OSError, AttributeError]

    class Library(ctypes.CDLL):
        def __init__(self, path):
            if path is None:
                raise errors.pop()("no such thing here")

        def use_pool(self, *given):
            raise AssertionError("there is no pool")

    library.library()  # types are checked against ctypes' own class, as it is found at the first call
    monkeypatch.setattr(ctypes, "CDLL", Library)
    while errors:
        assert isinstance(library.load(Path("native")), Library)


@pytest.mark.parametrize("kind", sorted(building.VARIANTS))
def test_zig_builds_for_another_processor(kind, monkeypatch, tmp_path):
    """ELF's number of the machine, at byte 18."""
    if building.zig() is None or sys.platform != "linux":
        pytest.skip("there is no ziglang, or what it builds is not ELF")
    monkeypatch.delenv(building.SWITCH, raising=False)
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", f"linux-{kind}")
    monkeypatch.setenv("CXX", f"{sys.executable} -m ziglang c++")
    variant = building.of_wheel()[-1]
    assert variant is building.VARIANTS[kind][-1]
    building.build(variant, building.compiler(), tmp_path / "made")
    made = (tmp_path / "made").read_bytes()
    assert made[:4] == b"\x7fELF" and made[18] == {"x86_64": 62, "aarch64": 183}[kind]
    assert len(made) < 1_000_000


def test_what_is_built_for_has_one_name_in_all_systems(monkeypatch):
    monkeypatch.setattr(building.platform, "machine", lambda: "AMD64")
    for platform, kind in (
        (None, "x86_64"),
        ("macosx-10.9-universal2", "x86_64"),
        ("macosx-11.0-arm64", "aarch64"),
        ("linux-aarch64", "aarch64"),
        ("win-amd64", "x86_64"),
    ):
        if platform is not None:
            monkeypatch.setenv("_PYTHON_HOST_PLATFORM", platform)
        assert building.built_for() == kind


def test_a_wheel_has_what_can_be_built(empty_path, monkeypatch, caplog):
    monkeypatch.setattr(building.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda _: None)
    assert building.of_wheel() == []
    monkeypatch.setenv("CXX", str(program(empty_path / "c++")))
    assert [variant.name for variant in building.of_wheel()] == ["armv8.6-a", "armv8.2-a", "armv8-a"]

    def run(*words):
        if "-march=armv8-a" not in words and "-shared" not in words:
            raise subprocess.CalledProcessError(1, words, stderr="c++: error: unknown -march\n")
        Path(words[-1]).touch()

    monkeypatch.setattr(building, "_run", run)
    building.build_for_wheel(empty_path / "built")
    newer = ("armv8.6-a", "armv8.2-a")
    assert caplog.messages == [
        f"native code for {name} could not be built: c++: error: unknown -march" for name in newer
    ]
    assert [path.name.partition("-a-")[0] for path in (empty_path / "built").iterdir()] == ["armv8"]
    monkeypatch.setenv(building.SWITCH, "0")
    assert building.of_wheel() == []
    monkeypatch.setattr(building.platform, "machine", lambda: "riscv64")
    monkeypatch.setenv(building.SWITCH, "1")
    assert building.of_wheel() == []


def test_what_the_wheel_has_comes_first(monkeypatch, tmp_path):
    *_, least = best, *_ = library.runnable() or [None]
    if best == least:
        pytest.skip("this processor runs one variant or none")
    monkeypatch.delenv(building.SWITCH, raising=False)
    monkeypatch.setattr(building, "BUILT", tmp_path)
    (tmp_path / building.file_name(least)).touch()
    library.runnable.cache_clear()
    try:
        assert library.chosen() == least and best in library.runnable()
    finally:
        library.runnable.cache_clear()


SERVES = """
import rnnsearch, torch
from rnnsearch.ops.native import building, library, product
print(rnnsearch.__file__)
assert building.shutil.which("c++") is None and building.compiler() is None
x, w = torch.randn(5, 40), torch.randn(30, 40)
assert torch.allclose(product.product(x, w, torch.float32), x @ w.t(), atol=1e-4)
print(library.status())
"""


def test_a_wheel_brings_native_code_where_there_is_no_compiler(tmp_path):
    if library.why_not() or building.compiler() is None:
        pytest.skip(library.why_not() or "no C++ compiler was found")
    chosen = library.chosen().name
    given = {**os.environ, "PYTHON": sys.executable, building.SWITCH: chosen}
    make = [ROOT / "scripts" / "wheel.sh", tmp_path / "dist", "--no-build-isolation"]
    subprocess.run(make, env=given, check=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.startswith("rnnsearch-") and "-py3-none-" in wheel.name and "-any" not in wheel.name
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", tmp_path / "site", wheel], check=True)
    bare = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path / "site"), "RNNSEARCH_CACHE": str(tmp_path / "cache")}
    bare |= {"HOME": str(tmp_path), "CXX": "no-such-compiler", "OMP_NUM_THREADS": "1"}
    told = subprocess.check_output([sys.executable, "-c", SERVES], env=bare, cwd=tmp_path, text=True)
    where, status = told.splitlines()
    assert Path(where).is_relative_to(tmp_path / "site") and status == f"native code for {chosen}"
    assert not (tmp_path / "cache").exists()
