"""Threads that search different batches in parallel, each with single-threaded tensor operations.

`decode.py` uses them for the batches of one call, the server for concurrent requests.

`decode.py` and `serve/registry.py` create the pools. A thread of a pool stays limited to one thread of PyTorch until it
ends.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, get_native_id

import torch

MIN_SENTENCES_PER_THREAD = 4
"""With fewer sentences per thread, one batch whose operations use all threads is faster."""


def single_threaded_pool(workers: int, nice: int = 0) -> ThreadPoolExecutor:
    """Return a pool of running threads in which torch uses a single thread.

    Threads of one operation would wait for each other at every product.

    Args:
        workers: Number of threads.
        nice: Increment of the threads' nice value (0 to 19), on Linux.
    """
    threads = torch.get_num_threads()
    all_started = Barrier(workers + 1)
    prefix = "background" if nice else "search"
    pool = ThreadPoolExecutor(workers, prefix, initializer=partial(_use_one_thread, nice))
    for _ in range(workers):
        pool.submit(all_started.wait)
    all_started.wait()
    torch.set_num_threads(threads)  # the setting of a worker is the default of threads created later
    return pool


def _use_one_thread(nice: int) -> None:
    if nice and sys.platform == "linux":
        thread = get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + nice))
    torch.set_num_threads(1)
    torch.get_num_threads()  # the first call in a thread adopts the last setting of any other thread
