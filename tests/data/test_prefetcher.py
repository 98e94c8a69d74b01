"""The prefetcher: order of items, exceptions, and the number of items computed ahead."""

import threading
import time
from collections.abc import Iterator

import pytest

from rnnsearch.data.workers import Prefetcher
from rnnsearch.errors import DataError


def counted(made: list[int], upto: int) -> Iterator[int]:
    for number in range(upto):
        made.append(number)
        yield number


def test_items_arrive_in_order_and_end():
    ahead = Prefetcher(counted([], 20), depth=3)
    assert list(ahead) == list(range(20))
    assert list(ahead) == [], "and stay at their end"
    ahead.close()


def test_prefetcher_computes_at_most_depth_items_and_none_after_close():
    made: list[int] = []
    threads = threading.active_count()
    ahead = Prefetcher(counted(made, 1000), depth=3)
    assert next(ahead) == 0
    end = time.monotonic() + 10
    while len(made) < 5 and time.monotonic() < end:
        time.sleep(0.01)
    assert made == [0, 1, 2, 3, 4], "one is had, three wait, one waits to wait"
    ahead.close()
    assert made[-1] <= 8
    assert threading.active_count() == threads


def test_exception_is_raised_after_earlier_items():
    def items() -> Iterator[int]:
        yield 1
        raise DataError("a broken file")

    ahead = Prefetcher(items())
    assert next(ahead) == 1
    for _ in range(2):
        with pytest.raises(DataError, match="a broken file"):
            next(ahead)
    ahead.close()


def test_waited_counts_only_slow_items():
    gate = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        gate.wait(10)
        yield 1

    ahead = Prefetcher(items())
    assert next(ahead) == 0
    before = ahead.waited
    threading.Timer(0.2, gate.set).start()
    assert next(ahead) == 1
    assert ahead.waited - before > 0.1
    ahead.close()
