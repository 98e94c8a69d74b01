"""Work on long texts without slowing down other requests (`LongTexts`).

Python runs one thread at a time, so long texts are parsed, split and filled in processes of low priority
(`text.long_texts`). `registry.Registry` holds the `LongTexts`, which all models share. Tests:
`tests/serve/test_long_texts.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from rnnsearch.data.workers import WorkerProcess
from rnnsearch.serve.limits import MAX_INLINE_CHARACTERS, ServeError
from rnnsearch.serve.processes import end_process, start_process
from rnnsearch.text import long_texts
from rnnsearch.text.long_texts import Filling, Markup, ParsedText

MAX_PROCESSES = 2  # of which a client can use one at a time
BASE_MEMORY_BYTES = 512 << 20  # of address space; Python and the libraries take a fourth of it
MEMORY_BYTES_PER_CHARACTER = 4096  # tags take a fourth of it
MAX_SECONDS = 120.0  # until a process is killed: it has low priority, and others may need the processor
MAX_RESPONSE_BYTES = 64 << 20
TAG_CHARACTERS = 50  # a tag is as much work as this many characters

Result = TypeVar("Result")
Span = tuple[int, int]


def markup_size(texts: Sequence[str]) -> int:
    """Return the amount of work that tags in texts cause, in characters."""
    return TAG_CHARACTERS * sum(text.count("<") for text in texts)


class LongTexts:
    """Parses, splits and fills texts: short ones at once, long ones in processes that are started when needed.

    The methods raise ServeError with status 413 if a text takes too much time or memory, and 503 if the process has
    ended or cannot be started.
    """

    def __init__(self, max_characters: int) -> None:
        """Start no process yet.

        Args:
            max_characters: Maximum number of characters of all texts of a request, except for segments of files.
        """
        self._max_memory = BASE_MEMORY_BYTES + MEMORY_BYTES_PER_CHARACTER * max_characters
        self._slots = asyncio.Semaphore(MAX_PROCESSES)
        self._client_turns = WeakValueDictionary[str, asyncio.Semaphore]()  # exist while tasks hold or await them
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def parse(self, texts: Sequence[str], markup: Markup, size: int, client: str) -> list[ParsedText]:
        """Return what is to be translated in each text with markup.

        Args:
            texts: The texts.
            markup: Their markup.
            size: The amount of work in characters.
            client: Identity of the client, which uses one process at a time.
        """
        return await self._call(long_texts.parse, texts, markup, size=size, client=client)

    async def fill(
        self, texts: Sequence[str], markup: Markup, fillings: Sequence[Sequence[Filling]], size: int, client: str
    ) -> list[list[str]]:
        """Return the translations of each text with markup, one for each of its fillings (see `parse`)."""
        return await self._call(long_texts.fill, texts, markup, fillings, size=size, client=client)

    async def split(self, texts: Sequence[str], language: str, size: int, client: str) -> list[list[Span]]:
        """Return the characters [start, end) of each sentence of each text (see `parse`)."""
        return await self._call(long_texts.split, texts, language, size=size, client=client)

    def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        for process in self._busy:
            process.kill()  # the thread that waits for it ends it
        while self._idle:
            end_process(self._idle.pop())

    async def _call(self, function: Callable[..., Result], *arguments: Any, size: int, client: str) -> Result:
        # A process costs more than the work on a short text.
        if size <= MAX_INLINE_CHARACTERS:
            return function(*arguments)
        turn = self._client_turns.setdefault(client, asyncio.Semaphore(1))
        await turn.acquire()
        try:
            await self._slots.acquire()
        except BaseException:
            turn.release()
            raise
        task = asyncio.create_task(self._call_process(function, arguments))
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish, turn))
        # If the client disconnects, the process finishes its work: starting another one takes longer.
        return await asyncio.shield(task)

    def _finish(self, turn: asyncio.Semaphore, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._slots.release()
        turn.release()
        if not task.cancelled():
            task.exception()  # retrieved, as the client may have disconnected

    async def _call_process(self, function: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        if self._idle:
            process = self._idle.pop()
        else:
            process = await asyncio.to_thread(start_process, long_texts.__name__, self._max_memory)
        self._busy.add(process)
        is_usable = False
        try:
            async with asyncio.timeout(MAX_SECONDS):
                result = await asyncio.to_thread(_exchange, process, function, arguments)
            is_usable = True
        except (TimeoutError, MemoryError, OverflowError):
            raise ServeError(413, "the text takes too much time or memory; send less text at a time") from None
        except (EOFError, OSError):
            raise ServeError(503, "the process of the text has ended unexpectedly; try again later", 1) from None
        finally:
            self._busy.discard(process)
            if is_usable and not self._is_closed:
                self._idle.append(process)
            else:
                process.kill()  # the thread of the exchange, if there is one, ends then
                await asyncio.to_thread(end_process, process)
        return result


def _exchange(process: WorkerProcess, function: Callable[..., Result], arguments: Sequence[Any]) -> Result:
    """Return the result of a function in a process.

    Raises:
        OSError: The process has ended.
        Exception: As in `text.long_texts.read_response`.
    """
    assert process.stdin is not None and process.stdout is not None
    long_texts.write_request(process.stdin, function, arguments)
    result: Result = long_texts.read_response(process.stdout, function, MAX_RESPONSE_BYTES)
    return result
