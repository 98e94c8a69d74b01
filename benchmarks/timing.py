"""The time that a piece of work takes, in a process of which it is all the work."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds_of(work: Callable[[], object], rounds: int, least: float = 0.02) -> float:
    """The best round's mean time of a call; a round lasts at least `least` seconds. Of no rounds: the time of one call,
    which otherwise comes before them, to warm up."""
    began = time.perf_counter()
    work()
    best = time.perf_counter() - began
    for _ in range(rounds):
        began, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < least:
            work()
            count += 1
        best = min(best, spent / count)
    return best
