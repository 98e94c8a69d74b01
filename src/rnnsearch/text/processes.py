"""Processes that work on text of users next to a server: their limits, requests and responses.

Requests and responses are blocks of bytes, of which the first is JSON. `text.documents.process` and `text.long_texts`
are such processes; `serve.documents` and `serve.long_texts` start them. Must not import torch.
"""

from __future__ import annotations

import json
import os
import struct
import traceback
from collections.abc import Callable, Sequence
from typing import IO, Any

from rnnsearch.errors import DataError, RnnsearchError

_BLOCK_HEAD = struct.Struct("<IQ")  # number of blocks that follow, size of this block

Block = bytes | bytearray


def write_blocks(stream: IO[bytes], header: dict[str, Any], *blocks: Block) -> None:
    """Write a JSON object and blocks of bytes."""
    all_blocks = [json.dumps(header).encode(), *blocks]
    for index, block in enumerate(all_blocks):
        stream.write(_BLOCK_HEAD.pack(len(all_blocks) - 1 - index, len(block)))
        stream.write(block)
    stream.flush()


def read_blocks(stream: IO[bytes], max_bytes: int) -> tuple[dict[str, Any], list[bytes]]:
    """Return the JSON object and the blocks of `write_blocks`.

    Raises:
        EOFError: The stream has ended too early.
        OverflowError: They have more bytes together.
    """
    blocks = []
    num_following = 1
    while num_following:
        num_following, size = _BLOCK_HEAD.unpack(_read_exactly(stream, _BLOCK_HEAD.size))
        max_bytes -= size + _BLOCK_HEAD.size
        if max_bytes < 0:
            raise OverflowError
        blocks.append(_read_exactly(stream, size))
    header: dict[str, Any] = json.loads(blocks[0])
    return header, blocks[1:]


def _read_exactly(stream: IO[bytes], size: int) -> bytes:
    block = stream.read(size)
    if len(block) < size:
        raise EOFError
    return block


def answer_or_error(
    answer: Callable[[dict[str, Any], Sequence[bytes]], tuple[dict[str, Any], list[Block]]],
    header: dict[str, Any],
    blocks: Sequence[bytes],
) -> tuple[dict[str, Any], list[Block]]:
    """Return the header and the blocks of the response to a request, or a header for `raise_error`."""
    try:
        return answer(header, blocks)
    except RnnsearchError as error:
        return {"error": str(error)}, []
    except MemoryError:
        return {"memory": True}, []
    except Exception as error:
        # Without the message, which can contain text of the user.
        lines = traceback.format_tb(error.__traceback__)
        return {"bug": f"{type(error).__name__} in a process:\n{''.join(lines)}"}, []


def raise_error(header: dict[str, Any]) -> None:
    """Raise the exception in a response, if it is one.

    Raises:
        DataError: The request cannot be answered.
        MemoryError: It takes more memory than the process may use.
        RuntimeError: A bug.
    """
    if "error" in header:
        raise DataError(header["error"])
    if header.get("memory"):
        raise MemoryError
    if "bug" in header:
        raise RuntimeError(header["bug"])


def limit_process(nice: int, max_memory: int, max_cpu_seconds: int | None = None) -> None:
    """Limit this process where the system can do that.

    Args:
        nice: Increment of its nice value.
        max_memory: Maximum of its address space, in bytes.
        max_cpu_seconds: Maximum of its processor time.
    """
    if hasattr(os, "nice"):
        os.nice(nice)
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = {resource.RLIMIT_AS: max_memory, resource.RLIMIT_CORE: 0}
    if max_cpu_seconds is not None:
        limits[resource.RLIMIT_CPU] = max_cpu_seconds
    for limit, value in limits.items():
        _, hard = resource.getrlimit(limit)
        bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (bounded, hard))
