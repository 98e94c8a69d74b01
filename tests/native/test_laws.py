"""Every variant of the native code equals plain loops in fp64: those of this processor, and those of ARM64 by QEMU.

The laws stand in the C++ beside this file, so that neither Python nor PyTorch must be emulated.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from rnnsearch.ops.native import building, library

HERE = Path(__file__).parent
ARM_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
ARM_LIBRARIES = "/usr/aarch64-linux-gnu"
ARM_PROCESSORS = {"armv8-a": "cortex-a53", "armv8.2-a": "cortex-a76", "armv8.6-a": "max"}
"""What the emulator is: a processor without any later instructions, one with products of bytes, and one with all."""


def laws(variant, command, native, folder):
    """The program of all laws, beside a library."""
    program = folder / "laws"
    sources = sorted(map(str, HERE.glob("*.cpp")))
    words = (*command, "-std=gnu++17", "-O1", "-w", *variant.flags, "-I", str(building.HERE), *sources, str(native))
    subprocess.run([*words, "-pthread", f"-Wl,-rpath,{native.parent}", "-o", str(program)], check=True)
    return program


def assert_they_hold(*command):
    told = subprocess.run(command, check=False, capture_output=True, text=True)
    assert told.stdout.endswith("all laws hold\n") and told.returncode == 0, told.stdout + told.stderr


@pytest.mark.parametrize("variant", library.runnable(), ids=lambda variant: variant.name)
def test_the_laws_hold_here(variant, tmp_path):
    command = building.compiler()
    if command is None:
        pytest.skip("there is no C++ compiler")
    if "ziglang" in command:
        pytest.skip("Zig would build its C++ library first, which the laws need and native code does not")
    assert_they_hold(laws(variant, command, building.built(variant, command), tmp_path))


@pytest.mark.parametrize("variant", building.VARIANTS["aarch64"], ids=lambda variant: variant.name)
def test_the_laws_hold_on_arm(variant, tmp_path):
    missing = [name for name in (ARM_COMPILER, EMULATOR) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"there is no {' and no '.join(missing)} (Debian: g++-aarch64-linux-gnu, qemu-user)")
    native = building.built(variant, (ARM_COMPILER,))
    program = laws(variant, (ARM_COMPILER,), native, tmp_path)
    assert_they_hold(EMULATOR, "-cpu", ARM_PROCESSORS[variant.name], "-L", ARM_LIBRARIES, str(program))
