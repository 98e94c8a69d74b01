"""Threads that search side by side: each takes a batch of its own through the whole search."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, get_native_id

import torch

FEWEST = 4
"""Sentences of which a thread makes a batch of its own: with fewer, all threads are better off with one batch."""


def one_thread_each(workers: int, nice: int = 0) -> ThreadPoolExecutor:
    """So many threads, all begun, each of which has torch compute on that thread alone: the threads of one batch would
    wait for one another at every product. `nice`: how far they stand back for other threads, where the system has
    priorities of threads (0 to 19)."""
    threads = torch.get_num_threads()
    begun = Barrier(workers + 1)
    pool = ThreadPoolExecutor(workers, "back" if nice else "beside", initializer=partial(_compute_alone, nice))
    for _ in range(workers):
        pool.submit(begun.wait)
    begun.wait()
    torch.set_num_threads(threads)  # what a worker sets is what threads that are made later begin with
    return pool


def _compute_alone(nice: int) -> None:
    if nice and sys.platform == "linux":
        thread = get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + nice))
    torch.set_num_threads(1)
    torch.get_num_threads()  # the first time it is asked in a thread, it takes over what was set last in any other
