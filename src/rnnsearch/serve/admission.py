"""Admission control: ASGI middleware that rejects requests by their headers and their size, before routing.

It is the outermost layer of the application. The head of a request is limited earlier, in `server.Connection`.

`app.create_app` adds it. A limit here protects against hostile clients (docs/threats.md): check the order, since a
cheap check must come before a body is read. Tests: `tests/serve/test_admission.py`, `docs/results/hostile-clients.md`.
"""

from __future__ import annotations

import asyncio

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rnnsearch.serve.clients import abandoned_requests, client_of
from rnnsearch.serve.limits import CLIENT_CLOSED_REQUEST, Settings, error_response
from rnnsearch.utils.origin_check import RequestOrigin, rejection

MAX_HEADERS = 100
MAX_BODY_SECONDS = 60.0  # time until the whole body must have arrived
ABANDONED_WAIT_SECONDS = 0.2  # wait of a request whose client has abandoned many
TOO_MANY_REQUESTS_WAIT_SECONDS = 0.2  # wait of a response with status 429
WORKING_PATHS = frozenset({"/translate", "/MTRestService/TranslateJson"})
"""Paths on which GET requests cause work, so that pages of other sites must not send them."""

Headers = dict[bytes, bytes]


class AdmissionControl:
    """Middleware that rejects requests without reading their bodies to the end.

    Statuses: 400 for another host, several hosts or too many headers, 403 for pages of other sites, 408 for a body
    that does not arrive in time, 413 for a body that is too large.

    The requests of a client that has abandoned many wait for a moment, and only those whose client is still there then
    are read. Responses with status 429 wait, too, so that a client that ignores them takes little processor time.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._abandoned = abandoned_requests()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The lifespan of the application; there are no WebSocket routes.
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # ASGI servers send names in lower case. Of repeated headers, the last one counts.
        headers = dict(scope["headers"])
        error = self._check_head(scope, headers)
        if error is not None:
            response = error_response(error.status_code, error.detail, error.headers)
            await response(scope, receive, send)
            return
        client = client_of(scope["client"][0]) if scope.get("client") else "unknown"
        first: Message | None = None
        if self._abandoned.is_full(client):
            await asyncio.sleep(ABANDONED_WAIT_SECONDS)
            first = await receive()
            if first["type"] == "http.disconnect":
                self._abandoned.add(client)
                await error_response(CLIENT_CLOSED_REQUEST, "the client has disconnected")(scope, receive, send)
                return
        reader = _BodyReader(receive, self._max_body(headers), first)

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 429:
                await asyncio.sleep(TOO_MANY_REQUESTS_WAIT_SECONDS)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                if reader.has_disconnected:
                    self._abandoned.add(client)
                else:
                    # The client has waited for a response.
                    self._abandoned.remove(client)
            await send(message)

        await self._app(scope, reader.read, counted_send)

    def _check_head(self, scope: Scope, headers: Headers) -> HTTPException | None:
        """Return the error to reject a request with, or None to accept it."""
        if len(scope["headers"]) > MAX_HEADERS:
            return _rejected(400, f"a request must have at most {MAX_HEADERS} headers; got {len(scope['headers'])}")
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            return _rejected(400, "a request must have one Host header; got several")
        # Routes that work for a GET request are as worth protecting as others.
        is_working_get = scope["path"] in WORKING_PATHS
        origin = RequestOrigin(
            "POST" if is_working_get else scope["method"],
            host=headers.get(b"host", b"").decode("latin-1"),
            origin=headers.get(b"origin", b"").decode("latin-1"),
            fetch_site=headers.get(b"sec-fetch-site", b"").decode("latin-1"),
        )
        if status_and_message := rejection(origin, self._settings.allowed_hosts, self._settings.allowed_origins):
            return _rejected(*status_and_message)
        declared_length = headers.get(b"content-length", b"")
        max_body = self._max_body(headers)
        # A number of more than 18 digits is not converted.
        if declared_length.isdigit() and (len(declared_length) > 18 or int(declared_length) > max_body):
            return _too_large(max_body)
        return None

    def _max_body(self, headers: Headers) -> int:
        """Return the maximum size of the request's body in bytes."""
        has_file = headers.get(b"content-type", b"").lower().startswith(b"multipart/form-data")
        return self._settings.max_body if has_file else self._settings.max_text_body


class _BodyReader:
    """Reads a body up to a size and a time limit."""

    def __init__(self, receive: Receive, max_bytes: int, first: Message | None = None) -> None:
        """Start the time limit.

        Args:
            receive: Returns the ASGI messages of the request.
            max_bytes: Maximum size of the body.
            first: The first message, if it has been received already.
        """
        self.has_disconnected = False
        """True if the client has disconnected."""
        self._receive = receive
        self._first = first
        self._max_bytes = max_bytes
        self._read_bytes = 0
        self._is_complete = False
        self._deadline = asyncio.get_running_loop().time() + MAX_BODY_SECONDS

    async def read(self) -> Message:
        """Return the next ASGI message.

        Raises:
            HTTPException: With status 413 or 408 if a limit is exceeded; 400 if the client disconnects, which only the
                log shows.
        """
        if self._is_complete:  # the next message is the client's disconnect
            message = await self._receive()
            self.has_disconnected = message["type"] == "http.disconnect"
            return message
        try:
            # One deadline for the whole body: a client that sends a byte now and then must not hold the connection.
            async with asyncio.timeout_at(self._deadline):
                message = self._first or await self._receive()
        except TimeoutError:
            raise _rejected(408, f"the body must arrive within {MAX_BODY_SECONDS:g} seconds; it did not") from None
        self._first = None
        if message["type"] == "http.disconnect":
            self.has_disconnected = True
            raise _rejected(400, "the body must be complete; the client disconnected")
        # Counted as they arrive, because chunked bodies declare no length and others may declare a wrong one.
        self._read_bytes += len(message.get("body", b""))
        if self._read_bytes > self._max_bytes:
            raise _too_large(self._max_bytes)
        self._is_complete = not message.get("more_body", False)
        return message


def _rejected(status: int, message: str) -> HTTPException:
    # The rest of the request is not read, so the connection cannot be used again.
    return HTTPException(status, message, {"connection": "close"})


def _too_large(max_bytes: int) -> HTTPException:
    return _rejected(413, f"the body must have at most {max_bytes:,} bytes; got more")
