"""What a server takes on: its settings, and the fault of a request that asks for more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Response

from rnnsearch.errors import RnnsearchError
from rnnsearch.text.sentences import sentence_spans

# Work on text from outside that may be long, apart from the event loop, which answers everybody.

Found = TypeVar("Found")
INLINE = 2000
"""Characters that are worked on at once: less than a millisecond's work, which costs a thread more."""
EACH = 10
"""Characters that a text counts as besides its own, for what is done once for each, however short it is."""


async def apart(function: Callable[..., Found], *given: Any, size: int) -> Found:
    """What a function finds in so many characters."""
    return function(*given) if size <= INLINE else await asyncio.to_thread(function, *given)


def work_of(texts: Sequence[str]) -> int:
    """The size of work on texts, in characters."""
    return sum(map(len, texts)) + EACH * len(texts)


async def split(texts: Sequence[str], language: str) -> list[list[tuple[int, int]]]:
    """The sentences of each text."""
    return await apart(lambda: [sentence_spans(text, language) for text in texts], size=work_of(texts))


@dataclass(frozen=True)
class Settings:
    """How a server behaves. Counts are of one request unless they say otherwise."""

    api_keys: frozenset[str] = frozenset()
    """Where there are any, a request that makes work must carry one of them."""
    max_body: int = 10 << 20
    """Bytes of a file; of other bodies `most_bytes`."""
    max_characters: int = 50_000
    """Of all texts together (files: by `max_body` alone)."""
    max_symbols: int = 500
    """Of one sentence, in the model's symbols."""
    max_queue: int = 2000
    """Sentences that may wait for one model, of all requests together."""
    max_files: int = 8
    """File translations that may wait or run."""
    timeout: float = 60.0
    """Seconds until a request that is not answered is given up."""
    batch_sentences: int = 64
    batch_tokens: int = 6000
    """Budget of a batch: sentences times the symbols of the longest."""
    window: float = 0.004
    """Seconds that a batch waits for more sentences while several requests are about, or a third of the time of the
    batch before, if that is longer."""
    device: str = "cpu"
    max_loaded: int | None = None
    """Models kept in memory; the one unused for longest goes first."""
    allowed_hosts: frozenset[str] = frozenset()
    """Names of this server besides its addresses and localhost; `*`: all."""
    suggestions: Path | None = None
    """A file that takes readers' better translations, a line of JSON each."""

    @property
    def most_bytes(self) -> int:
        """Of a body without a file: JSON writes a character in 12 bytes at most, and names besides."""
        return min(self.max_body, 12 * self.max_characters + (64 << 10))

    @property
    def most_texts(self) -> int:
        """Empty ones are work, too. Some requests have a text and its translation."""
        return max(2, self.max_characters // EACH)


class ServeError(RnnsearchError):
    """A request that cannot be answered, with its HTTP status."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """Seconds after which trying again makes sense."""


def fault(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """`{"error": message}`; what is not valid Unicode of a user's input is shown by its code."""
    return Response(json.dumps({"error": message}), status, headers, "application/json")
