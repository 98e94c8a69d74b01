"""Worker threads compute with one thread each and can have a lower priority."""

import os
import sys
import threading

import pytest
import torch

from rnnsearch.search.workers import single_threaded_pool


def test_worker_threads_compute_with_one_thread_each():
    torch.set_num_threads(3)
    with single_threaded_pool(4) as pool:
        together = threading.Barrier(4)
        torch.set_num_threads(2)

        def threads():
            together.wait(20)  # so that each thread runs one task
            torch.ones(100, 100) @ torch.ones(100, 100)
            return torch.get_num_threads()

        asked = [pool.submit(threads) for _ in range(4)]
        assert [answer.result() for answer in asked] == [1] * 4
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [*later, torch.get_num_threads()] == [2, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
def test_worker_threads_can_have_lower_priority():
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    with single_threaded_pool(1, nice=7) as back, single_threaded_pool(1) as usual:
        assert back.submit(priority).result() == min(19, usual.submit(priority).result() + 7)
