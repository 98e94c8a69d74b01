"""Every variant of the native code equals simple loops in fp64, on this processor and on ARM64 under QEMU.

The properties are tested by the C++ program in this directory, so that neither Python nor PyTorch has to be emulated.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from rnnsearch.ops.native import building, library

HERE = Path(__file__).parent
ARM_COMPILER = "aarch64-linux-gnu-g++"
ARM_LIBRARIES = "/usr/aarch64-linux-gnu"
EMULATOR = "qemu-aarch64"
EMULATED_CPUS = {"armv8-a": "cortex-a53", "armv8.2-a": "cortex-a76", "armv8.6-a": "max"}
"""Emulated CPU of each variant: without later instructions, with int8 dot products, or with all instructions."""


def build_program(variant, compiler, native, folder):
    """Return the test program, linked against a native library."""
    program = folder / "properties"
    sources = sorted(map(str, HERE.glob("*.cpp")))
    command = [*compiler, "-std=gnu++17", "-O1", "-w", *variant.flags, "-I", str(building.HERE), *sources, str(native)]
    subprocess.run([*command, "-pthread", f"-Wl,-rpath,{native.parent}", "-o", str(program)], check=True)
    return program


def assert_all_checks_pass(*command):
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.stdout.endswith("all checks passed\n"), result.stdout + result.stderr
    assert result.returncode == 0


@pytest.mark.parametrize("variant", library.runnable_variants(), ids=lambda variant: variant.name)
def test_variant_equals_fp64_loops(variant, tmp_path):
    compiler = building.find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    if "ziglang" in compiler:
        pytest.skip("the test program needs a C++ standard library, which Zig would build first")
    assert_all_checks_pass(build_program(variant, compiler, building.build_if_missing(variant, compiler), tmp_path))


@pytest.mark.parametrize("variant", building.VARIANTS["aarch64"], ids=lambda variant: variant.name)
def test_arm_variant_equals_fp64_loops(variant, tmp_path):
    missing = [name for name in (ARM_COMPILER, EMULATOR) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not found (Debian: g++-aarch64-linux-gnu, qemu-user)")
    native = building.build_if_missing(variant, (ARM_COMPILER,))
    program = build_program(variant, (ARM_COMPILER,), native, tmp_path)
    assert_all_checks_pass(EMULATOR, "-cpu", EMULATED_CPUS[variant.name], "-L", ARM_LIBRARIES, str(program))
