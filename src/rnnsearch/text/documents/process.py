"""Reading and filling of files as functions of bytes, and the process that runs one of them (`python -m` this module).

Python runs one thread at a time, so a large file that is read in a thread slows down all others. `serve.documents`
therefore starts this process for it. The process reads one request from standard input, writes one response, and ends;
so no file can affect another one. It also ends when standard input does, because then its parent has ended.

Requests and responses are blocks of bytes, of which the first is JSON. Must not import torch.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import IO, Any

from rnnsearch.errors import DataError, RnnsearchError
from rnnsearch.text.documents import Document, read_document
from rnnsearch.text.documents.packed import PackedTexts
from rnnsearch.text.languages import detect

LANGUAGE_SEGMENTS = 500  # first segments of a file, by which its language is detected
NICE = 10  # increment of the nice value of the process
_BLOCK_HEAD = struct.Struct("<IQ")  # number of blocks that follow, size of this block

Block = bytes | bytearray
Direction = tuple[str, str]
"""Source and target language."""


@dataclass(eq=False)
class ParsedFile:
    """The segments of a file, and what is needed to fill it."""

    name: str
    """File name, whose suffix is the format."""
    content: bytes
    """The file's bytes."""
    direction: Direction
    """Languages between which its segments are translated."""
    segments: PackedTexts
    """`Document.marked_segments`."""
    tags: bool
    """True if the segments contain inline markup."""
    is_bilingual: bool
    """True if a segment can stay untranslated."""
    grammars: Sequence[str | None]
    """Different grammars of placeholders."""
    grammar_indices: bytes
    """Index of each segment's grammar."""

    def segment_grammars(self, start: int, stop: int) -> list[str | None]:
        """Return the grammars of the segments [start, stop)."""
        return [self.grammars[index] for index in self.grammar_indices[start:stop]]


def parse_file(name: str, content: bytes, directions: Sequence[Direction]) -> ParsedFile:
    """Return the segments of a file for the direction whose source language fits it best.

    Raises:
        DataError: As in `read_document`.
    """
    direction, document = _best_direction(name, content, directions)
    # A file has no more than a few grammars, however many segments it has.
    indices = {grammar: index for index, grammar in enumerate(dict.fromkeys(document.grammars))}
    return ParsedFile(
        name,
        content,
        direction,
        PackedTexts(document.marked_segments),
        document.tags,
        document.is_bilingual,
        list(indices),
        bytes(indices[grammar] for grammar in document.grammars),
    )


def fill_file(name: str, content: bytes, direction: Direction, translations: PackedTexts) -> bytes:
    """Return a file with the translations of its marked segments."""
    return read_document(name, content, *direction).fill_marked(translations.unpack())


def _best_direction(name: str, content: bytes, directions: Sequence[Direction]) -> tuple[Direction, Document]:
    """Return the direction whose source language fits a file best, and the document for it."""

    @cache
    def read(direction: Direction) -> Document:
        return read_document(name, content, *direction)

    if len(directions) == 1:
        return directions[0], read(directions[0])
    # A translation memory declares its languages, so for another source language it has no segments.
    sample: list[str] = []
    for direction in directions:
        if segments := read(direction).segments:
            sample = segments[:LANGUAGE_SEGMENTS]
            break
    by_language = {direction[0]: direction for direction in directions}
    ranked = [by_language[code] for code, _ in detect(" ".join(sample), list(by_language))]
    ranked = ranked or list(by_language.values())  # a file in another language, or without letters
    best = next((direction for direction in ranked if read(direction).marked_segments), ranked[0])
    return best, read(best)


# Requests and responses.


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


def parse_request(name: str, directions: Sequence[Direction]) -> dict[str, Any]:
    """Return the header of a request to parse a file; its block is the content."""
    return {"task": "parse", "name": name, "directions": directions}


def fill_request(parsed: ParsedFile) -> dict[str, Any]:
    """Return the header of a request to fill a file; its blocks are the content and the translations."""
    return {"task": "fill", "name": parsed.name, "directions": [parsed.direction]}


def read_parsed(name: str, content: bytes, header: dict[str, Any], blocks: Sequence[bytes]) -> ParsedFile:
    """Return the parsed file in a response."""
    ends, data, grammar_indices = blocks
    return ParsedFile(
        name,
        content,
        (header["direction"][0], header["direction"][1]),
        PackedTexts.from_blocks(ends, data),
        header["tags"],
        header["is_bilingual"],
        header["grammars"],
        grammar_indices,
    )


def raise_error(header: dict[str, Any]) -> None:
    """Raise the exception in a response, if it is one.

    Raises:
        DataError: The file cannot be read.
        MemoryError: The file takes more memory than the process may use.
        RuntimeError: A bug.
    """
    if "error" in header:
        raise DataError(header["error"])
    if header.get("memory"):
        raise MemoryError
    if "bug" in header:
        raise RuntimeError(header["bug"])


# The process.


def _answer(header: dict[str, Any], blocks: Sequence[bytes]) -> tuple[dict[str, Any], list[Block]]:
    """Return the header and the blocks of the response to a request."""
    directions = [(source, target) for source, target in header["directions"]]
    content = blocks[0]
    if header["task"] == "fill":
        return {}, [fill_file(header["name"], content, directions[0], PackedTexts.from_blocks(*blocks[1:]))]
    parsed = parse_file(header["name"], content, directions)
    fields = {
        "direction": parsed.direction,
        "tags": parsed.tags,
        "is_bilingual": parsed.is_bilingual,
        "grammars": list(parsed.grammars),
    }
    return fields, [*parsed.segments.to_blocks(), parsed.grammar_indices]


def _answer_or_error(header: dict[str, Any], blocks: Sequence[bytes]) -> tuple[dict[str, Any], list[Block]]:
    try:
        return _answer(header, blocks)
    except RnnsearchError as error:
        return {"error": str(error)}, []
    except MemoryError:
        return {"memory": True}, []
    except Exception as error:
        # Without the message, which can contain text of the file.
        lines = traceback.format_tb(error.__traceback__)
        return {"bug": f"{type(error).__name__} in the process of a file:\n{''.join(lines)}"}, []


def _limit(max_memory: int, max_cpu_seconds: int) -> None:
    """Limit the memory and the processor time of this process, where the system can do that."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = {resource.RLIMIT_AS: max_memory, resource.RLIMIT_CPU: max_cpu_seconds, resource.RLIMIT_CORE: 0}
    for limit, value in limits.items():
        _, hard = resource.getrlimit(limit)
        bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (bounded, hard))


def _exit_with_parent() -> None:
    # Not from `sys.stdin`, whose lock would be in the way at the end.
    os.read(0, 1)
    os._exit(1)


def main() -> None:
    """Answer one request from standard input on standard output; arguments: memory in bytes, processor time in s."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which then ends this process
    _limit(int(sys.argv[1]), int(sys.argv[2]))
    header, blocks = read_blocks(sys.stdin.buffer, sys.maxsize)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    response, response_blocks = _answer_or_error(header, blocks)
    write_blocks(sys.stdout.buffer, response, *response_blocks)
    os._exit(0)  # without freeing a million objects one by one


if __name__ == "__main__":
    main()
