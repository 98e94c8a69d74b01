"""Limits of the server: its settings, the error for a request that exceeds one, and work outside the event loop.

Work on long texts of users takes time, so it is done in another thread (`run_in_thread`) or process (`long_texts`);
meanwhile the event loop serves all others.

`cli/serve.py` makes the `Settings` from options. Default values are documented in docs/serving.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Response

from rnnsearch.errors import RnnsearchError
from rnnsearch.text.terms import Glossary

Result = TypeVar("Result")

MAX_INLINE_CHARACTERS = 2000  # work on more text is done in another thread; this much takes less than a millisecond
TEXT_OVERHEAD_CHARACTERS = 10  # cost of a text in addition to its characters, however short it is
MAX_JSON_BYTES_PER_CHARACTER = 12  # two escapes of six bytes, for a character outside the basic plane
CLIENT_CLOSED_REQUEST = 499  # status after the client has disconnected; only the log and the metrics show it
OTHER_JSON_BYTES = 64 << 10  # names and other fields of a body


@dataclass(frozen=True)
class Settings:
    """Settings of a server. Limits are per request unless stated otherwise."""

    api_keys: frozenset[str] = frozenset()
    """Accepted keys; if there are any, requests that cause work must have one."""
    max_body: int = 10 << 20
    """Maximum size of a body with a file, in bytes; other bodies are limited by `max_text_body`."""
    max_characters: int = 50_000
    """Maximum number of characters of all texts together, except files."""
    max_tokens: int = 500
    """Maximum number of tokens of a sentence."""
    max_queue: int = 2000
    """Maximum number of sentences of all requests that wait for one model."""
    max_files: int = 8
    """Maximum number of files of a client that wait or are being translated."""
    timeout: float = 60.0
    """Seconds until a request is abandoned."""
    max_connections: int = 1000
    """Maximum number of open connections, of which a client may have half."""
    stop_timeout: float = 90.0
    """Seconds after a signal until the process exits, whatever it is doing."""
    batch_sentences: int = 64
    """Maximum number of sentences in a batch."""
    batch_tokens: int = 6000
    """Maximum size of a batch: sentences times tokens of the longest one."""
    batch_wait: float = 0.004
    """Minimum of the seconds that a batch waits for more sentences under load (see `batching`)."""
    device: str = "cpu"
    """Device of the models."""
    max_loaded: int | None = None
    """Maximum number of models in memory; the one unused for the longest time is unloaded first."""
    allowed_hosts: frozenset[str] = frozenset()
    """Names of this server in addition to its addresses and localhost; "*" allows any."""
    allowed_origins: frozenset[str] = frozenset()
    """Origins of other pages and of browser extensions that may use this server, in lower case; "*" allows any."""
    pivot_languages: tuple[str, ...] = ()
    """Languages through which two models translate in directions that no model has."""
    pivot_n_best: int = 1
    """Number of translations into such a language that are translated further."""
    glossaries: Mapping[str, Glossary] = field(default_factory=dict)
    """Glossary of each model by name; entries of a request take precedence."""
    suggestions: Path | None = None
    """File that better translations from users are appended to, one JSON object per line."""

    @property
    def max_text_body(self) -> int:
        """Maximum size of a body without a file, in bytes."""
        return min(self.max_body, MAX_JSON_BYTES_PER_CHARACTER * self.max_characters + OTHER_JSON_BYTES)

    @property
    def max_texts(self) -> int:
        """Maximum number of texts; at least two, because some requests contain a text and its translation."""
        # Empty texts cost work, too.
        return max(2, self.max_characters // TEXT_OVERHEAD_CHARACTERS)


class ServeError(RnnsearchError):
    """A request that cannot be answered, with the HTTP status."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """Seconds after which the client may try again."""


def error_response(
    status: int, message: str, headers: Mapping[str, str] | None = None, fields: Mapping[str, Any] | None = None
) -> Response:
    """Return `{"error": message}`, in ASCII, because text of users may contain lone surrogates.

    Args:
        status: The status.
        message: The message.
        headers: Headers of the response.
        fields: Further fields.
    """
    return Response(json.dumps({"error": message, **(fields or {})}), status, headers, "application/json")


async def run_in_thread(function: Callable[..., Result], *arguments: Any, size: int) -> Result:
    """Call a function, in another thread if it works on more than `MAX_INLINE_CHARACTERS`.

    Args:
        function: The function to call.
        arguments: Its arguments.
        size: The amount of work in characters.
    """
    # A thread costs more than the work on a short text.
    if size <= MAX_INLINE_CHARACTERS:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def text_size(texts: Sequence[str]) -> int:
    """Return the amount of work that texts cause, in characters."""
    return sum(map(len, texts)) + TEXT_OVERHEAD_CHARACTERS * len(texts)
