"""Settings of malloc, tested in subprocesses because they apply to the whole process."""

import os
import platform
import subprocess
import sys

import pytest

from rnnsearch.ops.malloc import USER_VARIABLES

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")

# Prints the page faults of ten updates of 174 MB, and the resident MB inside and after the block.
SCRIPT = """
import resource
import torch
from rnnsearch.ops.malloc import retain_freed_memory

def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() >> 20

with retain_freed_memory():
    for update in range(20):
        if update == 10:
            before = page_faults()
        tensors = [torch.ones(size << 18) for size in (40, 3, 40, 1, 90)]  # MB
        del tensors
    print(page_faults() - before, resident())
print(resident())
"""


def run_script(**environment: str) -> tuple[int, int, int]:
    clean = {name: value for name, value in os.environ.items() if name not in USER_VARIABLES}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=clean | environment, capture_output=True, text=True, check=True
    )
    page_faults, resident_inside, resident_after = map(int, result.stdout.split())
    return page_faults, resident_inside, resident_after


def test_freed_memory_is_retained_inside_and_returned_after_the_block() -> None:
    page_faults, resident_inside, resident_after = run_script()
    assert page_faults < 1_000  # with 4 kB pages returned to the system, an update has 44,000
    assert resident_inside - resident_after > 100


@pytest.mark.parametrize(
    "settings", [{"MALLOC_TRIM_THRESHOLD_": "1000000"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1000000"}]
)
def test_settings_of_the_user_take_precedence(settings: dict[str, str]) -> None:
    page_faults, resident_inside, resident_after = run_script(**settings)
    assert page_faults > 100_000  # these settings return every block
    assert resident_inside - resident_after < 50


# Prints the number of arenas after eight threads have allocated memory at the same time.
ARENAS_SCRIPT = """
import ctypes
import sys
import threading
from rnnsearch.ops.malloc import share_freed_memory

if "share" in sys.argv:
    share_freed_memory()
libc = ctypes.CDLL(None)
barrier = threading.Barrier(8)

def allocate():
    barrier.wait()
    libc.malloc(1000)
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def count_arenas(*arguments: str) -> int:
    clean = {name: value for name, value in os.environ.items() if name not in USER_VARIABLES}
    command = [sys.executable, "-c", ARENAS_SCRIPT, *arguments]
    return subprocess.run(command, env=clean, capture_output=True, text=True, check=True).stdout.count("<heap ")


def test_threads_of_a_server_share_an_arena() -> None:
    assert count_arenas() > 1
    assert count_arenas("share") == 1
