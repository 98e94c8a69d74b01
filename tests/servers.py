"""HTTP servers of the standard library for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from threading import Thread


@contextmanager
def running(server: HTTPServer) -> Iterator[str]:
    """Run the server in a thread and yield its address."""
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
