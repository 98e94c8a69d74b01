"""The application on a socket, until a signal: then nothing more is accepted, and what was accepted is finished."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from rnnsearch.errors import ConfigError
from rnnsearch.serve.connection import Connection
from rnnsearch.serve.http import create_app, observed
from rnnsearch.serve.limits import Settings
from rnnsearch.serve.logs import Observed, log, to_stderr
from rnnsearch.serve.service import Service

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
