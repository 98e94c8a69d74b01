"""A connection whose other side may be slow, or send what is no HTTP: uvicorn's, with limits for a request's head."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0
"""In which a request's head must be there whole."""
HEAD_BYTES = 64 << 10


class Connection(HttpToolsProtocol):
    """Faults of a head are answered in JSON, like all others.

    While a request is answered what comes next is read, as much as a head may have: so a sender is seen to leave.
    """

    _bytes = 0
    """Since the last end of a head, or part of a body: of the head that is being read."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the first head."""
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        self._settle()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Of a head, count it."""
        self._bytes += len(data)
        super().data_received(data)
        if self._idle:
            self._expect()
        self._limit()

    def on_headers_complete(self) -> None:
        """A head is whole."""
        self._settle()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """What is no head is counted elsewhere, if somebody reads it."""
        if not self._idle:
            self._bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Another head may follow. What of it came together with this is not counted."""
        self._bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Of the next head there may be too much already."""
        super().on_response_complete()
        self._limit()

    def send_400_response(self, msg: str) -> None:
        """`{"error": msg}`, and the connection is closed."""
        self._settle()
        body = json.dumps({"error": msg}).encode()
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()

    @property
    def _idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    def _limit(self) -> None:
        if self._bytes <= HEAD_BYTES or self.transport.is_closing():
            return
        if self._idle:
            self.send_400_response(f"a request's head must have at most {HEAD_BYTES:,} bytes; got more")
        else:  # to say so now would break into another's answer
            self.flow.pause_reading()

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._late)

    def _settle(self) -> None:
        self._bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self._idle:
            self.transport.close()
