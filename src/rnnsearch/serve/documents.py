"""Reading and filling of uploaded files without slowing down other requests (`FileReader`).

Python runs one thread at a time, so a large file is read in a process of its own, which has limits of memory and time
and ends with its task. `text.documents.process` is this process; `files.Files` is the caller.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from rnnsearch.data.workers import WorkerProcess
from rnnsearch.serve.limits import ServeError
from rnnsearch.serve.processes import end_process, start_process
from rnnsearch.text.documents import process as documents
from rnnsearch.text.documents.packed import PackedTexts
from rnnsearch.text.documents.process import Direction, ParsedFile
from rnnsearch.text.processes import Block, raise_error, read_blocks, write_blocks

MAX_INLINE_BYTES = 32 << 10  # larger files are read in a process; starting one takes as long as reading half a megabyte
MAX_PROCESSES = 2  # at a time, of which a client can have one
BASE_MEMORY_BYTES = 512 << 20  # of address space; Python and the libraries take a fourth of it
MEMORY_BYTES_PER_BYTE = 96  # catalogues and translation memories take half of it
MAX_CPU_SECONDS = 60
MAX_SECONDS = 240.0  # until a process is killed: it has low priority, and others may need the processor
MAX_RESPONSE_BYTES = 64 << 20  # of the segments of a file, or of a translated file


class FileReader:
    """Reads and fills files, large ones in processes."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_PROCESSES)
        self._client_turns = WeakValueDictionary[str, asyncio.Semaphore]()  # exist while tasks hold or await them
        self._processes: set[WorkerProcess] = set()

    async def parse(self, name: str, content: bytes, directions: Sequence[Direction], client: str) -> ParsedFile:
        """Return the segments of a file.

        Args:
            name: File name.
            content: Its bytes.
            directions: Possible directions, one per source language.
            client: Identity of the client, which has one process at a time.

        Raises:
            DataError: The file cannot be read.
            ServeError: With status 413 if the file takes too much time or memory, 503 if its process was killed.
        """
        try:
            if len(content) <= MAX_INLINE_BYTES:
                return await asyncio.to_thread(documents.parse_file, name, content, directions)
            request = documents.parse_request(name, directions)
            header, blocks = await self._run(client, request, [content])
        except MemoryError:
            raise _too_expensive() from None
        return documents.read_parsed(name, content, header, blocks)

    async def fill(self, parsed: ParsedFile, translations: PackedTexts, client: str) -> bytes:
        """Return a file with the translations of its segments.

        Args:
            parsed: The file.
            translations: Translation of each marked segment.
            client: Identity of the client, which has one process at a time.

        Raises:
            ServeError: As in `parse`.
        """
        content = parsed.content
        try:
            if len(content) + translations.num_bytes <= MAX_INLINE_BYTES:
                return await asyncio.to_thread(
                    documents.fill_file, parsed.name, content, parsed.direction, translations
                )
            request = documents.fill_request(parsed)
            _, [result] = await self._run(client, request, [content, *translations.to_blocks()])
        except MemoryError:
            raise _too_expensive() from None
        return result

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()

    async def _run(
        self, client: str, request: dict[str, Any], blocks: Sequence[Block]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Return the response of a new process, when it is the client's turn."""
        turn = self._client_turns.setdefault(client, asyncio.Semaphore(1))
        async with turn, self._slots:
            process = _start(len(blocks[0]))
            self._processes.add(process)
            try:
                async with asyncio.timeout(MAX_SECONDS):
                    header, result = await asyncio.to_thread(_exchange, process, request, blocks)
            except TimeoutError:
                raise _too_expensive() from None
            finally:
                # Also after a cancellation: the thread that waits for the process then ends, too.
                process.kill()
                self._processes.discard(process)
        raise_error(header)
        return header, result


def _start(num_bytes: int) -> WorkerProcess:
    """Start a process for a file of some size.

    Raises:
        ServeError: With status 503 if the system cannot start one.
    """
    max_memory = BASE_MEMORY_BYTES + MEMORY_BYTES_PER_BYTE * num_bytes
    return start_process(documents.__name__, max_memory, MAX_CPU_SECONDS)


def _exchange(
    process: WorkerProcess, request: dict[str, Any], blocks: Sequence[Block]
) -> tuple[dict[str, Any], list[bytes]]:
    """Send a request to a process, return its response and wait for its end.

    Raises:
        ServeError: As in `FileReader.parse`.
    """
    assert process.stdin is not None and process.stdout is not None
    try:
        write_blocks(process.stdin, request, *blocks)
        return read_blocks(process.stdout, MAX_RESPONSE_BYTES)
    except OverflowError:
        size = MAX_RESPONSE_BYTES >> 20
        raise ServeError(413, f"the segments of a file, and its translation, must have at most {size} MiB") from None
    except (EOFError, OSError):
        if process.wait() == -getattr(signal, "SIGXCPU", 0):
            raise _too_expensive() from None
        raise ServeError(503, "the process of the file has ended unexpectedly; try again later", 60) from None
    finally:
        # A process that has answered ends by itself, and one that has not answered cannot be used again.
        end_process(process)


def _too_expensive() -> ServeError:
    return ServeError(413, "the file takes too much time or memory to read; split it into smaller files")
