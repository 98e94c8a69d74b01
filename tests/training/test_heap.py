"""The heap of a process that trains: in processes of their own, for the settings are a whole process's."""

import os
import platform
import subprocess
import sys

import pytest

from rnnsearch.training.malloc import OF_USERS

GLIBC = platform.libc_ver()[0] == "glibc"
UPDATES = """
import resource
import torch
from rnnsearch.training.malloc import kept_heap

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    with open("/proc/self/statm") as told:
        return int(told.read().split()[1]) * resource.getpagesize() >> 20

with kept_heap():
    for update in range(20):
        if update == 10:
            before = faults()
        taken = [torch.ones(size << 18) for size in (40, 3, 40, 1, 90)]  # MB
        del taken
    print(faults() - before, resident())
print(resident())
"""


def updates(**environment: str) -> tuple[int, int, int]:
    """Page faults of ten updates that take 174 MB, and the process's MB within and behind the heap that is kept."""
    told = {name: value for name, value in os.environ.items() if name not in OF_USERS} | environment
    ran = subprocess.run([sys.executable, "-c", UPDATES], env=told, capture_output=True, text=True, check=True)
    faults, within, behind = map(int, ran.stdout.split())
    return faults, within, behind


@pytest.mark.skipif(not GLIBC, reason="the heap is another C library's")
def test_what_an_update_frees_is_there_for_the_next_and_is_returned_in_the_end() -> None:
    """Of 4 kB pages an update of 174 MB touches 44,000."""
    faults, within, behind = updates()
    assert faults < 1_000
    assert within - behind > 100


@pytest.mark.skipif(not GLIBC, reason="the heap is another C library's")
@pytest.mark.parametrize(
    "told", [{"MALLOC_TRIM_THRESHOLD_": "1000000"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1000000"}]
)
def test_the_users_own_settings_stand(told: dict[str, str]) -> None:
    """By which every block of theirs is returned."""
    faults, within, behind = updates(**told)
    assert faults > 100_000
    assert within - behind < 50
