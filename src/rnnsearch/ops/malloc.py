"""Settings of glibc's malloc for training, which reuses large blocks, and for servers, which have many threads.

An update allocates hundreds of megabytes, frees them, and the next update allocates them again. By default glibc
returns much of that to the system, which must clear each 4 kB page again when it is next used: thousands per update.
Retained memory avoids this, and pages of 2 MB, which Linux provides on request, avoid most page-table walks. Search
does not benefit from either (docs/results/speed-amx.md). `train` (`training/run.py`) wraps a run in
`retain_freed_memory`.

A server's threads come and go. glibc gives each new thread one of up to eight arenas per core, and what a thread has
freed in its arena is not available to the others, so memory grows for hours. `serve/server.py` calls
`share_freed_memory`.

It applies to Linux with glibc only, and does nothing if the user has set malloc's parameters.
"""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rnnsearch.ops.device import total_memory

# Parameters of mallopt in malloc.h.
TRIM_THRESHOLD = -1  # memory at the top of the heap is returned if more bytes than this are free
TOP_PAD = -2  # extra bytes to request whenever the heap grows
MMAP_THRESHOLD = -3  # blocks from this size on are allocated outside the heap and returned when freed
ARENA_MAX = -8  # maximum number of arenas, each with its own free memory

RETAIN_SETTINGS = {TRIM_THRESHOLD: -1, MMAP_THRESHOLD: 1 << 30}
"""Settings by which freed memory stays with the process."""
DEFAULT_SETTINGS = {TRIM_THRESHOLD: 64 << 20, TOP_PAD: 128 << 10, MMAP_THRESHOLD: 32 << 20}
"""Values that glibc's dynamic adjustment reaches if large blocks are freed."""
GROWTH_BYTES = 32 << 20
"""Bytes by which the heap grows after the reserved memory."""
USER_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX")
"""Environment variables by which users set these parameters; the alternative is GLIBC_TUNABLES."""
MAX_RESERVED_BYTES = 1 << 30
"""Limit of the address space to reserve; pages are occupied only when they are used."""
RESERVED_MEMORY_FRACTION = 1 / 4
"""Limit of the address space to reserve, as a fraction of the memory."""


@contextmanager
def retain_freed_memory() -> Iterator[None]:
    """Keep freed memory in this process inside the block and return it to the system afterwards.

    Does nothing if the C library is not glibc or the user has set malloc's parameters.
    """
    libc = _load_glibc()
    if libc is None:
        yield
        return
    memory = total_memory() or 0
    _reserve(libc, min(MAX_RESERVED_BYTES, int(memory * RESERVED_MEMORY_FRACTION)))
    try:
        yield
    finally:
        _apply(libc, DEFAULT_SETTINGS)
        libc.malloc_trim(0)


def release_free_memory() -> None:
    """Return memory that is free now to the system, also inside `retain_freed_memory`."""
    libc = _load_glibc()
    if libc is not None:
        libc.malloc_trim(0)


def share_freed_memory() -> None:
    """Let threads that start from now on allocate from the memory that all threads have freed.

    Call it before other threads have started: those with an arena of their own keep it.
    """
    libc = _load_glibc()
    if libc is not None:
        _apply(libc, {ARENA_MAX: 1})


def _load_glibc() -> ctypes.CDLL | None:
    """Return glibc with typed functions, or None if there is none or the user has set malloc's parameters."""
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(name in os.environ for name in USER_VARIABLES):
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
    """Grow the heap by `size` bytes and request huge pages for them."""
    _apply(libc, RETAIN_SETTINGS | {TOP_PAD: size})
    start = libc.sbrk(0)
    libc.free(libc.malloc(size // 2))  # more than is free in the heap, so that it must grow
    end = libc.sbrk(0)
    _apply(libc, {TOP_PAD: GROWTH_BYTES})
    # madvise requires the start of a page.
    start += -start % mmap.PAGESIZE
    if start < end and hasattr(mmap, "MADV_HUGEPAGE"):
        libc.madvise(start, end - start, mmap.MADV_HUGEPAGE)


def _apply(libc: ctypes.CDLL, settings: dict[int, int]) -> None:
    for parameter, value in settings.items():
        libc.mallopt(parameter, value)
