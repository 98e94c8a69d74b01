"""Runs the application on a socket until a signal, then finishes all accepted requests.

`run` is what `rnnsearch serve` calls. `Connection` limits the head of a request, before the application sees it.

`Server` and `Connection` override methods of uvicorn's classes, so a new version of uvicorn must pass
`tests/serve/test_server.py`, `tests/serve/test_listen.py` and `tests/serve/test_admission.py`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from rnnsearch.errors import ConfigError
from rnnsearch.ops.malloc import share_freed_memory
from rnnsearch.serve.app import create_app, observe
from rnnsearch.serve.clients import ConnectionCounts, client_of
from rnnsearch.serve.limits import Settings
from rnnsearch.serve.observability import RequestObserver, log_event, log_to_stderr
from rnnsearch.serve.service import Service

MAX_HEAD_SECONDS = 10.0  # time until the whole head of a request must have arrived
MAX_HEAD_BYTES = 64 << 10
PARSE_BYTES = 4096  # parsed at a time, so that pipelined requests wait as bytes
RESERVED_DESCRIPTORS = 128  # for models, uploaded files and libraries
# Time after a signal in which a request that is already on its way on an open connection is still read.
DRAIN_SECONDS = 1.0
POLL_SECONDS = 0.02
FILES_STOP_FRACTION = 2 / 3  # of the time to stop: files have until then, requests until the end
EXIT_SECONDS = 5.0  # after the time to stop, until threads that are still busy are not waited for
# Time to answer a client of HTTP/1.0 that has closed its sending direction: it may still read, or have disconnected.
MAX_HALF_CLOSED_SECONDS = 2.0
MAX_HALF_CLOSED = 16  # such connections of a client at a time; more have disconnected
HALF_CLOSED_POLL_SECONDS = 0.02
# A client must receive at least MIN_WRITE_BYTES of a response per interval, and all of it in MAX_WRITE_SECONDS.
WRITE_CHECK_SECONDS = 30.0
MIN_WRITE_BYTES = 30_000
MAX_WRITE_SECONDS = 900.0


def run(models: Sequence[Path], settings: Settings, host: str, port: int, log_level: str, preload: bool) -> None:
    """Serve models until SIGINT or SIGTERM.

    Raises:
        ModelError: A path is not a translation model.
        ConfigError: The address is not available.
    """
    share_freed_memory()
    app = create_app(models, settings)
    service: Service = app.state.service
    observer = observe(app)
    log_to_stderr(log_level)

    class LimitedConnection(Connection):
        max_connections = min(settings.max_connections, max_open_connections())

    # The observer logs requests; uvicorn's access log would contain paths and addresses.
    config = uvicorn.Config(
        observer, http=LimitedConnection, log_config=None, access_log=False, server_header=False, lifespan="on"
    )
    # Objects of the libraries live until the end: exclude them from garbage collection.
    gc.collect()
    gc.freeze()

    async def serve(listener: socket.socket) -> None:
        if preload:
            await service.registry.load_all()
        await Server(config, observer, service).serve(sockets=[listener])

    with _listen(host, port) as listener:
        asyncio.run(serve(listener))


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: The address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets created with IPPROTO_TCP. With the algorithm, the second
    # packet of a response waits 40 ms for the client's delayed acknowledgement of the first.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A restarted server can listen at once, although connections of the old one are in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError([f"host and port must be free to listen on; got {host}:{port}: {error.strerror}"]) from None
    return listener


class Server(uvicorn.Server):
    """uvicorn's server with a graceful stop."""

    def __init__(self, config: uvicorn.Config, observer: RequestObserver, service: Service) -> None:
        super().__init__(config)
        self._observer = observer
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and log the address."""
        await super().startup(sockets)
        for listener in sockets or []:
            address, port = listener.getsockname()[:2]
            host = f"[{address}]" if ":" in address else address
            log_event("listening", {"url": f"http://{host}:{port}", "models": list(self._service.registry.models)})

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals like uvicorn, but exit normally instead of raising the signal again at the end."""
        # uvicorn restores these handlers at the end and raises the signal again; here, that only sets a flag.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle_signal)
        with super().capture_signals():
            yield
        # Threads may still be busy: from here on, a signal ends the process.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the server; a second signal ends the process at once."""
        if self.should_exit:
            # Not `sys.exit`, which would wait for threads.
            os._exit(128 + sig)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish uploaded files, then stop to listen, answer accepted requests and close all connections.

        What is not finished after `Settings.stop_timeout` is cancelled.
        """
        observer = self._observer
        loop = asyncio.get_running_loop()
        stop_timeout = self._service.settings.stop_timeout
        stop_time = loop.time() + stop_timeout
        exit_after(stop_timeout + EXIT_SECONDS)
        log_event("stopping", {"open": observer.accepted - observer.answered - observer.disconnected})
        files_finished = asyncio.create_task(self._service.files.finish())
        files_deadline = loop.time() + FILES_STOP_FRACTION * stop_timeout
        while not files_finished.done() and loop.time() < files_deadline:
            await asyncio.sleep(POLL_SECONDS)
        files_finished.cancel()
        observer.draining = True
        # New connections are refused from here on; the open ones are drained below.
        for server in self.servers:
            server.close()
        self._service.files.cancel_unfinished()
        deadline = min(loop.time() + DRAIN_SECONDS, stop_time)
        while self.server_state.connections and loop.time() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        # uvicorn cancels requests after this time.
        self.config.timeout_graceful_shutdown = max(1, int(stop_time - loop.time()))
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        counts = {"accepted": observer.accepted, "answered": observer.answered, "left": observer.disconnected}
        log_event("stopped", counts)


def exit_after(seconds: float) -> None:
    """End the process after some seconds, unless it has ended by then."""

    def exit_now() -> None:
        log_event("killed", {"seconds": seconds})
        # Threads that translate cannot be interrupted, and the end of Python would wait for them.
        os._exit(1)

    timer = threading.Timer(seconds, exit_now)
    timer.daemon = True
    timer.start()


def max_open_connections() -> int:
    """Return the number of connections that the limit of file descriptors allows."""
    try:
        import resource
    except ImportError:  # Windows
        return 500
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return 1 << 20
    return max(soft_limit - RESERVED_DESCRIPTORS, soft_limit // 2)


class ReadControl(FlowControl):
    """Pauses reading like uvicorn, and does not resume it while bytes wait to be parsed."""

    has_unparsed = False
    """True while bytes wait."""

    def resume_reading(self) -> None:
        """Resume reading, unless bytes wait."""
        if not self.has_unparsed:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits on the head of a request and on reading a response, and errors in JSON.

    While a request is being answered, the next one is read up to the size of a head; so a disconnect is noticed.
    Further requests are not parsed yet, because parsed ones take a hundred times as much memory.
    """

    max_connections = 1000
    """Maximum number of connections of the server, of which a client may have half."""
    _counts: ClassVar[WeakKeyDictionary[ServerState, ConnectionCounts]] = WeakKeyDictionary()
    """Connections of each server."""
    _half_closed_counts: ClassVar[WeakKeyDictionary[ServerState, ConnectionCounts]] = WeakKeyDictionary()
    """Connections that wait for their response after the client has closed its sending direction."""
    _client = ""
    """Client whose connection is counted; empty if it is not."""
    _head_bytes = 0
    """Bytes of the current head: those since the last head or part of a body ended."""
    _deadline: asyncio.TimerHandle | None = None
    """Timer for the current head."""
    _half_closed_timer: asyncio.TimerHandle | None = None
    """Timer for the next look at the connection, after the client has closed its sending direction."""
    _half_closed_deadline = 0.0
    """Time at which such a connection is closed."""
    _write_timer: asyncio.TimerHandle | None = None
    """Timer for the next look at the bytes that the client has not received."""
    _unsent_bytes = 0
    """Number of these bytes at the last look."""
    _unsent_since = 0.0
    """Time of the first look since the client had received everything."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timers."""
        super().connection_made(transport)
        self.flow = ReadControl(transport)
        self._unparsed = bytearray()
        counts = self._counts.setdefault(self.server_state, ConnectionCounts())
        client = client_of(self.client[0]) if self.client else "unknown"
        if not counts.add(client, self.max_connections, max(1, self.max_connections // 2)):
            self._send_error("503 Service Unavailable", "too many connections are open; try again later")
            return
        self._client = client
        self._start_timer()
        self._check_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._end_head()
        if self._client:
            self._counts[self.server_state].remove(self._client)
        for timer in (self._write_timer, self._half_closed_timer):
            if timer is not None:
                timer.cancel()
        if self._half_closed_timer is not None:
            self._half_closed_counts[self.server_state].remove(self._client)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return True to keep the connection for a moment, if a complete request is being answered."""
        cycle: Any = self.cycle
        if self._is_idle or cycle.more_body:
            return False
        if self._half_closed_timer is None:
            counts = self._half_closed_counts.setdefault(self.server_state, ConnectionCounts())
            if not counts.add(self._client, self.max_connections, MAX_HALF_CLOSED):
                return False
            # A client that has closed both directions answers an interim response with a reset, which ends its search.
            # Any client of HTTP/1.1 ignores it (RFC 9110, section 15.2).
            if cycle.scope["http_version"] != "1.0":
                if not cycle.response_started:
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self._half_closed_deadline = math.inf
            else:
                self._half_closed_deadline = self.loop.time() + MAX_HALF_CLOSED_SECONDS
            self._half_closed_timer = self.loop.call_later(HALF_CLOSED_POLL_SECONDS, self._check_half_closed)
        return True

    def _check_half_closed(self) -> None:
        """Close the connection if its client has reset it or the time is over; look again later."""
        # asyncio does not read after the end, so it would notice a reset only when it writes.
        sock: socket.socket = self.transport.get_extra_info("socket")
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or self.loop.time() >= self._half_closed_deadline:
            self.transport.abort()
            return
        self._half_closed_timer = self.loop.call_later(HALF_CLOSED_POLL_SECONDS, self._check_half_closed)

    def data_received(self, data: bytes) -> None:
        """Parse requests."""
        self._unparsed += data
        self._parse()

    def _parse(self) -> None:
        """Parse a little at a time until a complete request waits for the response to the one before it."""
        while self._unparsed and not self._is_blocked:
            piece = bytes(self._unparsed[:PARSE_BYTES])
            del self._unparsed[:PARSE_BYTES]
            # Counted before parsing, which resets the count if a head ends in this piece.
            self._head_bytes += len(piece)
            super().data_received(piece)
            if self._is_idle:
                self._start_timer()
            self._check_head_size()
        flow: Any = self.flow
        flow.has_unparsed = bool(self._unparsed)
        if self._unparsed:
            flow.pause_reading()

    @property
    def _is_blocked(self) -> bool:
        """True if nothing can be parsed before the current response is complete."""
        return bool(self.pipeline) or self._head_bytes > MAX_HEAD_BYTES or self.transport.is_closing()

    def on_headers_complete(self) -> None:
        """Stop the timer: the head is complete."""
        self._end_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Do not count the body of a request that is being answered; `AdmissionControl` limits it."""
        if not self._is_idle:
            self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Start to count the next head; its bytes in the same packet are not counted."""
        self._head_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Parse the next request; reject it if its head is already too large."""
        super().on_response_complete()
        self._check_head_size()
        self._parse()
        if self._half_closed_timer is not None and self._is_idle:
            self.transport.close()  # no further request can arrive
        # uvicorn has tried to resume while bytes were waiting.
        if not (self._unparsed or self.pipeline or self.transport.is_closing()):
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Send `{"error": msg}` and close the connection."""
        self._end_head()
        self._send_error("400 Bad Request", msg)

    def _send_error(self, status: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()

    @property
    def _is_idle(self) -> bool:
        """True if no request is being answered."""
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    def _check_head_size(self) -> None:
        if self._head_bytes <= MAX_HEAD_BYTES or self.transport.is_closing():
            return
        if self._is_idle:
            self.send_400_response(f"a request's head must have at most {MAX_HEAD_BYTES:,} bytes; got more")
        else:  # an error now would end up inside the response to the previous request
            self.flow.pause_reading()

    def _start_timer(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(MAX_HEAD_SECONDS, self._on_timeout)

    def _end_head(self) -> None:
        self._head_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _check_writing(self) -> None:
        """Close the connection if its client receives nothing; look again later."""
        unsent_bytes = self.transport.get_write_buffer_size()
        now = self.loop.time()
        if not unsent_bytes:
            self._unsent_since = now
        elif self._unsent_bytes:
            is_stalled = unsent_bytes > self._unsent_bytes - MIN_WRITE_BYTES
            if is_stalled or now - self._unsent_since > MAX_WRITE_SECONDS:
                # Not `close`, which would wait until everything has been received.
                self.transport.abort()
                return
        self._unsent_bytes = unsent_bytes
        self._write_timer = self.loop.call_later(WRITE_CHECK_SECONDS, self._check_writing)

    def _on_timeout(self) -> None:
        self._deadline = None
        if self._is_idle:
            self.transport.close()
