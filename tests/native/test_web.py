"""The browser's engine, built for this machine, never accesses memory out of bounds for any input."""

import re
import subprocess
from pathlib import Path

import pytest

from rnnsearch.ops.native import building

FUZZERS = Path(__file__).parent / "web"


def test_fuzzed_input_causes_no_out_of_bounds_access(tmp_path):
    compiler = building.find_compiler()
    if compiler is None or "ziglang" in compiler:
        pytest.skip("there is no C++ compiler with AddressSanitizer")
    program = tmp_path / "fuzz"
    flags = ("-std=gnu++17", "-O1", "-g1", "-w", "-fsanitize=address")
    command = [*compiler, *flags, *building.WEB_SOURCES, *sorted(FUZZERS.glob("*.cpp")), "-o", program]
    compilation = subprocess.run(command, check=False, capture_output=True, text=True)
    if "asan" in compilation.stderr:
        pytest.skip("the compiler has no AddressSanitizer")
    assert compilation.returncode == 0, compilation.stderr
    run = subprocess.run([program], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    rejected, succeeded = map(int, re.findall(r"\d+", run.stdout))
    assert rejected > 2000
    assert succeeded > 1000
