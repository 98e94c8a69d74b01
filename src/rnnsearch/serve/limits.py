"""What a server takes on: its settings, and the checks of size and of keys that come before any work."""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rnnsearch.errors import RnnsearchError


@dataclass(frozen=True)
class Settings:
    """How a server behaves. Counts are of one request unless they say otherwise."""

    api_keys: frozenset[str] = frozenset()
    """Where there are any, a request that makes work must carry one of them."""
    max_body: int = 10 << 20
    """Bytes."""
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
    suggestions: Path | None = None
    """A file that takes readers' better translations, a line of JSON each."""


class ServeError(RnnsearchError):
    """A request that cannot be answered, with its HTTP status."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """Seconds after which trying again makes sense."""


def check_key(settings: Settings, *given: str | None) -> None:
    """One of the given keys must be known. Errors: ServeError 403."""
    if not settings.api_keys:
        return
    keys = [key.encode("utf-8", "surrogatepass") for key in given if key]
    # Every pair is compared, in constant time, so that the time tells nothing of the keys.
    matches = [hmac.compare_digest(key, known.encode()) for key in keys for known in settings.api_keys]
    if not any(matches):
        raise ServeError(403, "an API key must be given (header X-API-Key, or api_key)" if not keys else _WRONG_KEY)


_WRONG_KEY = "the API key must be one of this server's; got another"


def check_characters(settings: Settings, texts: list[str]) -> None:
    """Errors: ServeError 413 for texts that are too long together."""
    count = sum(map(len, texts))
    if count > settings.max_characters:
        raise ServeError(413, f"the text must have at most {settings.max_characters:,} characters; got {count:,}")


def error_body(message: str) -> bytes:
    """`{"error": message}`; what is not valid Unicode of a user's input is shown by its code."""
    return json.dumps({"error": message}).encode()


class BodyLimit:
    """ASGI middleware: a body larger than `max_body` is answered with 413, and not read to its end."""

    def __init__(self, app: ASGIApp, max_body: int) -> None:
        self._app = app
        self._most = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self._most:
            await self._refuse(send)
            return
        read, begun, refused = 0, False, False

        async def counted() -> Message:
            nonlocal read, refused
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most and not refused:
                refused = True
                if not begun:
                    await self._refuse(send)
            if refused:
                raise _TooLargeError
            return message

        async def unless_refused(message: Message) -> None:
            nonlocal begun
            begun = True
            if not refused:  # else the application answers the error that it was given for a body
                await send(message)

        try:
            await self._app(scope, counted, unless_refused)
        except _TooLargeError:
            return

    async def _refuse(self, send: Send) -> None:
        body = error_body(f"the body must have at most {self._most:,} bytes; got more")
        # What is left of the body stays unread, so the connection cannot be used again.
        headers: list[Any] = [
            (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]  # fmt: skip
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _TooLargeError(Exception):
    """The body is larger than allowed."""
