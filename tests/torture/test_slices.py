"""A slice of the torture; `make torture` does it all."""

import subprocess
import sys

import pytest

SLICES = [
    ("kills", "--every", "64"),
    ("run_files", "--count", "2000"),
    ("folders", "--count", "150"),
    ("http", "--count", "200"),
    ("bombs", "--size", "16384"),
    ("engine_files", "--count", "100", "--plain"),
]


@pytest.mark.parametrize("what", SLICES, ids=lambda what: what[0])
def test_nothing_breaks_it(what):
    name, *options = what
    command = [sys.executable, "-m", f"tests.torture.{name}", *options]
    told = subprocess.run(command, check=False, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.strip().endswith("0 faults")
