"""A small slice of each stress test; `make stress` runs them in full."""

import subprocess
import sys

import pytest

SLICES = [
    ("kills", "--every", "64"),
    ("run_files", "--count", "2000"),
    ("folders", "--count", "150"),
    ("http", "--count", "200"),
    ("hostile_clients", "--seconds", "0.1", "--clients", "2"),
    ("bombs", "--size", "16384"),
    ("engine_files", "--count", "100", "--plain"),
]


@pytest.mark.parametrize("stress_test", SLICES, ids=lambda stress_test: stress_test[0])
def test_slice_has_no_failures(stress_test):
    name, *options = stress_test
    command = [sys.executable, "-m", f"tests.stress.{name}", *options]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.strip().endswith("0 failures")


def test_time_limit_ends_a_stress_test():
    command = [sys.executable, "-m", "tests.stress.run_files", "--minutes", "0.01"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    tried = int(result.stdout.split()[0].replace(",", ""))
    assert 0 < tried < 1_000_000
