"""Who is let in (`utils/origin_check.py`), and how much of what they send: ASGI middleware before everything else."""

from __future__ import annotations

import asyncio

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rnnsearch.serve.limits import Settings, fault
from rnnsearch.utils.origin_check import Caller, refused

MOST_HEADERS = 100
BODY_SECONDS = 60.0
"""In which a whole body must come."""
Headers = dict[bytes, bytes]


class Door:
    """Refuses what need not be looked at: 400 for other hosts and too many headers, 403 for other sites' pages, 413 for
    bodies that are too large, 408 for such as do not come; none of them is read to its end."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refusal = self._refused(scope, headers)
        if refusal is not None:
            await fault(refusal.status_code, refusal.detail, refusal.headers)(scope, receive, send)
            return
        await self._app(scope, _Body(receive, self._most(headers)).read, send)

    def _most(self, headers: Headers) -> int:
        """Bytes of a body."""
        file = headers.get(b"content-type", b"").lower().startswith(b"multipart/form-data")
        return self._settings.max_body if file else self._settings.most_bytes

    def _refused(self, scope: Scope, headers: Headers) -> HTTPException | None:
        """What is said to a request that is not let in."""
        if len(scope["headers"]) > MOST_HEADERS:
            return _refusal(400, f"a request must have at most {MOST_HEADERS} headers; got {len(scope['headers'])}")
        said = [headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin", b"sec-fetch-site")]
        if why := refused(Caller(scope["method"], *said), self._settings.allowed_hosts):
            return _refusal(*why)
        declared, most = headers.get(b"content-length", b""), self._most(headers)
        if declared.isdigit() and (len(declared) > 18 or int(declared) > most):
            return _too_large(most)
        return None


class _Body:
    """A body that is read no further than it may be."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._most, self._count, self._whole = receive, most, 0, False
        self._ends = asyncio.get_running_loop().time() + BODY_SECONDS

    async def read(self) -> Message:
        """The next part. Errors: HTTPException 413 or 408; 400, which nobody reads, where the sender has left."""
        if self._whole:  # what comes now is that the sender leaves
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._ends):
                message = await self._receive()
        except TimeoutError:
            raise _refusal(408, f"the body must be there in {BODY_SECONDS:g} seconds; it was not") from None
        if message["type"] == "http.disconnect":
            raise _refusal(400, "the body must be sent to its end; it was not")
        self._count += len(message.get("body", b""))
        if self._count > self._most:
            raise _too_large(self._most)
        self._whole = not message.get("more_body", False)
        return message


def _refusal(status: int, message: str) -> HTTPException:
    """What is left of the request stays unread, so the connection cannot be used again."""
    return HTTPException(status, message, {"connection": "close"})


def _too_large(most: int) -> HTTPException:
    return _refusal(413, f"the body must have at most {most:,} bytes; got more")
