"""The application on a socket, until a signal: then nothing more is accepted, and what was accepted is finished."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rnnsearch.errors import ConfigError
from rnnsearch.serve.app import create_app, observed
from rnnsearch.serve.limits import Settings
from rnnsearch.serve.observability import Observed, log, to_stderr
from rnnsearch.serve.service import Service

# A connection whose other side may be slow, or send what is no HTTP: uvicorn's, with limits for a request's head.

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


GRACE = 1.0
"""Seconds after a signal in which a request that was already on its way over an open connection is still read."""


class Server(uvicorn.Server):
    """uvicorn's server, which leaves open connections a moment to send what is on its way before it closes them."""

    def __init__(self, config: uvicorn.Config, app: Observed, service: Service) -> None:
        super().__init__(config)
        self._app = app
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say where."""
        await super().startup(sockets)
        for listening in sockets or []:
            address, port = listening.getsockname()[:2]
            shown = f"[{address}]" if ":" in address else address
            log("listening", {"url": f"http://{shown}:{port}", "models": list(self._service.registry.abouts)})

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, which raises the signal again when all is done: that it has stopped is answer enough."""
        for stop in (signal.SIGINT, signal.SIGTERM):
            signal.signal(stop, self._stop)
        with super().capture_signals():
            yield

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the files that were sent; then accept no more connections, end each kept one with its next answer,
        and answer what was asked."""
        app = self._app
        log("stopping", {"open": app.accepted - app.answered - app.left})
        finishing = asyncio.create_task(self._service.files.finish())
        while not finishing.done() and not self.force_exit:
            await asyncio.sleep(0.02)
        finishing.cancel()
        self._app.draining = True
        for server in self.servers:
            server.close()
        ends = asyncio.get_running_loop().time() + GRACE
        while self.server_state.connections and asyncio.get_running_loop().time() < ends and not self.force_exit:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)
        log("stopped", {"accepted": app.accepted, "answered": app.answered, "left": app.left})


def run(models: Sequence[Path], settings: Settings, host: str, port: int, log_level: str, preload: bool) -> None:
    """Serve until SIGINT or SIGTERM.

    Errors: ModelError for a folder that is no model's; ConfigError for an address that cannot be had.
    """
    app = create_app(models, settings)
    outer = observed(app)
    to_stderr(log_level)
    config = uvicorn.Config(
        outer, http=Connection, log_config=None, access_log=False, server_header=False, lifespan="on"
    )
    service: Service = app.state.service
    # What the libraries made stays until the end: the collector need not look at it again after every few requests.
    gc.collect()
    gc.freeze()

    async def serve(listening: socket.socket) -> None:
        if preload:
            await service.registry.load_all()
        await Server(config, outer, service).serve(sockets=[listening])

    with _listen(host, port) as listening:
        asyncio.run(serve(listening))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Errors: ConfigError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio turns Nagle's algorithm off for sockets that say they are TCP alone, and with it
    # on an answer's second packet waits 40 ms for the client's delayed acknowledgement of the first.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError([f"host and port must be free to listen on; got {host}:{port}: {error.strerror}"]) from None
    return listening
