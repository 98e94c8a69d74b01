"""Threads that search side by side: each takes a batch of its own through the whole search."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

FEWEST = 4
"""Sentences of which a thread makes a batch of its own: with fewer, all threads are better off with one batch."""


def one_thread_each(workers: int) -> ThreadPoolExecutor:
    """So many threads, all begun, each of which has torch compute on that thread alone: the threads of one batch would
    wait for one another at every product."""
    threads = torch.get_num_threads()
    begun = Barrier(workers + 1)
    pool = ThreadPoolExecutor(workers, "beside", initializer=_compute_alone)
    for _ in range(workers):
        pool.submit(begun.wait)
    begun.wait()
    torch.set_num_threads(threads)  # what a worker sets is what threads that are made later begin with
    return pool


def _compute_alone() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # the first time it is asked in a thread, it takes over what was set last in any other
