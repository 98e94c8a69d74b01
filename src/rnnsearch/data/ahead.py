"""Making the next items while the last one is worked on."""

import time
from collections.abc import Iterator
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")
_LOOK = 0.05
"""Seconds between two looks whether anyone still wants items."""


class Ahead(Generic[Item]):
    """An iterator's items in order, made by a thread up to `depth` of them ahead; an exception comes in its place.

    `waited`: seconds that `next` has spent waiting for items so far. Close it, or the thread goes on.
    """

    def __init__(self, items: Iterator[Item], depth: int = 4) -> None:
        self.waited = 0.0
        self._ready: Queue[tuple[Item | None, BaseException | None]] = Queue(depth)
        self._closed = Event()
        self._thread = Thread(target=self._make, args=(items,), daemon=True)
        self._thread.start()

    def _make(self, items: Iterator[Item]) -> None:
        try:
            for item in items:
                if not self._put((item, None)):
                    return
            self._put((None, StopIteration()))
        except BaseException as error:
            self._put((None, error))

    def _put(self, made: tuple[Item | None, BaseException | None]) -> bool:
        while not self._closed.is_set():
            try:
                self._ready.put(made, timeout=_LOOK)
            except Full:
                continue
            return True
        return False

    def __iter__(self) -> "Ahead[Item]":
        return self

    def __next__(self) -> Item:
        begin = time.monotonic()
        item, error = self._ready.get()
        self.waited += time.monotonic() - begin
        if error is not None:
            self._ready.put((None, error))  # there is nothing after it
            raise error
        return item  # type: ignore[return-value]

    def close(self) -> None:
        """Make no more items; what was made is dropped."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=_LOOK)
            except Empty:
                self._thread.join(_LOOK)
