"""Reading and filling of files as functions of bytes, and the process that runs one of them (`python -m` this module).

Python runs one thread at a time, so a large file that is read in a thread slows down all others. `serve.documents`
therefore starts this process for it. The process reads one request from standard input, writes one response, and ends;
so no file can affect another one. It also ends when standard input does, because then its parent has ended.

Requests and responses are blocks of bytes, of which the first is JSON. Must not import torch.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rnnsearch.text.documents import Document, read_document
from rnnsearch.text.documents.packed import PackedTexts
from rnnsearch.text.languages import detect
from rnnsearch.text.processes import Block, answer_or_error, limit_process, read_blocks, write_blocks

NICE = 10  # increment of the nice value of the process
LANGUAGE_SEGMENTS = 500  # first segments of a file, by which its language is detected

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


def _exit_with_parent() -> None:
    # Not from `sys.stdin`, whose lock would be in the way at the end.
    os.read(0, 1)
    os._exit(1)


def main() -> None:
    """Answer one request from standard input on standard output; arguments: memory in bytes, processor time in s."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which then ends this process
    limit_process(NICE, int(sys.argv[1]), int(sys.argv[2]))
    header, blocks = read_blocks(sys.stdin.buffer, sys.maxsize)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    response, response_blocks = answer_or_error(_answer, header, blocks)
    write_blocks(sys.stdout.buffer, response, *response_blocks)
    os._exit(0)  # without freeing a million objects one by one


if __name__ == "__main__":
    main()
