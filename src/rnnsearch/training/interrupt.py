"""Ctrl-C and SIGTERM ask training to save and stop; a second Ctrl-C stops at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """While the block runs, a signal sets a flag, which the yielded function reads.

    Outside the main thread (where Python allows no handlers) nothing is caught.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _frame: FrameType | None) -> None:
        asked.set()
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
