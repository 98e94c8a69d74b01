"""The C library's heap while a model is trained: what an update gives back is kept for the next one, on huge pages.

An update takes hundreds of megabytes, gives them back, and the next one takes them again. Left alone, glibc returns
much of that to the system, which clears each page of 4 kB that is touched anew: thousands in an update. Kept, they
are there; and pages of 2 MB, which Linux gives to those who ask, spare the processor most of its walks through
tables. A search gains nothing by either (docs/results/speed-amx.md).
"""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rnnsearch.ops.device import machine_memory

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""Settings of malloc.h: what must be free at the heap's end to be returned, by how much more than is needed the heap
grows, and from what size on a block is outside of it and returned when it is free."""
KEPT = {TRIM_THRESHOLD: -1, MMAP_THRESHOLD: 1 << 30}
USUAL = {TRIM_THRESHOLD: 64 << 20, TOP_PAD: 128 << 10, MMAP_THRESHOLD: 32 << 20}
"""What glibc comes to by itself where large blocks are freed."""
GROWTH = 32 << 20
OF_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
"""By which a user may have set them, or by GLIBC_TUNABLES."""
MOST, SHARE = 1 << 30, 4
"""Bytes of addresses that are reserved, at most, and of which part of the memory. They are taken when they are
used.
"""


@contextmanager
def retained_heap() -> Iterator[None]:
    """Within it, freed memory stays with this process; afterwards it is returned. Without effect where the C library
    is
    not glibc, or the user has set its heap."""
    libc = _glibc()
    if libc is None:
        yield
        return
    _reserve(libc, min(MOST, (machine_memory() or 0) // SHARE))
    try:
        yield
    finally:
        _set(libc, USUAL)
        libc.malloc_trim(0)


def release_free_memory() -> None:
    """What is free now is returned to the system, within `kept_heap`, too."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(name in os.environ for name in OF_USERS):
        return None
    try:
        libc = ctypes.CDLL(None)
        libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
        libc.sbrk.argtypes = [ctypes.c_ssize_t]
        libc.malloc_trim.argtypes = libc.malloc.argtypes = [ctypes.c_size_t]
        libc.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
        libc.free.argtypes = [ctypes.c_void_p]
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    except (AttributeError, OSError, TypeError):  # Windows, macOS, other C libraries
        return None
    return libc


def _reserve(libc: ctypes.CDLL, size: int) -> None:
    """The heap grows by `size` bytes at once, and is asked to lie on huge pages there."""
    _set(libc, KEPT | {TOP_PAD: size})
    begin = libc.sbrk(0)
    libc.free(libc.malloc(size // 2))  # more than is free in it
    end = libc.sbrk(0)
    _set(libc, {TOP_PAD: GROWTH})
    begin += -begin % mmap.PAGESIZE
    if begin < end and hasattr(mmap, "MADV_HUGEPAGE"):
        libc.madvise(begin, end - begin, mmap.MADV_HUGEPAGE)


def _set(libc: ctypes.CDLL, values: dict[int, int]) -> None:
    for name, value in values.items():
        libc.mallopt(name, value)
