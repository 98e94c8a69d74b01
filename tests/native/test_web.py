"""The engine for browsers, built for this machine: no model and no request reads out of bounds."""

import re
import subprocess
from pathlib import Path

import pytest

from rnnsearch.ops.native import building

FUZZ = Path(__file__).parent / "web"


def test_nothing_is_read_out_of_bounds(tmp_path):
    command = building.compiler()
    if command is None or "ziglang" in command:
        pytest.skip("there is no C++ compiler with AddressSanitizer")
    program = tmp_path / "requests"
    flags = ("-std=gnu++17", "-O1", "-g", "-w", "-fsanitize=address")
    words = [*command, *flags, *building.WEB_CODE, *sorted(FUZZ.glob("*.cpp")), "-o", program]
    built = subprocess.run(words, check=False, capture_output=True, text=True)
    if "asan" in built.stderr:
        pytest.skip("the compiler has no AddressSanitizer")
    assert built.returncode == 0, built.stderr
    told = subprocess.run([program], check=False, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    refused, answered = map(int, re.findall(r"\d+", told.stdout))
    assert refused > 2000 and answered > 1000
