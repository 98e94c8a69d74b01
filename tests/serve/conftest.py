"""Small untrained models behind an application, and a client that talks to it without a socket."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import Settings
from rnnsearch.serve.server import Connection
from tests.untrained import BAHDANAU, RNNENCDEC, write_model


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """en-de with attention, de-en without."""
    place = tmp_path_factory.mktemp("served")
    return [
        write_model(place / "en-de", BAHDANAU, "bpe"),
        write_model(place / "de-en", RNNENCDEC, "words", ("de", "en")),
    ]


@pytest.fixture
def serve(folders: list[Path]) -> Iterator[Callable[..., TestClient]]:
    """Starts an application of these settings; returns a client of it."""
    with ExitStack() as running:

        def start(**settings: Any) -> TestClient:
            app = create_app(folders, Settings(**settings))
            return running.enter_context(TestClient(app, "http://localhost", raise_server_exceptions=False))

        yield start


@pytest.fixture
def http(serve: Callable[..., TestClient]) -> TestClient:
    """A client of an application of the usual settings."""
    return serve()


@contextmanager
def _listening(app: Any) -> Iterator[str]:
    socket_ = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=Connection, log_config=None, access_log=False, lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket_]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{socket_.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def listening() -> Callable[..., AbstractContextManager[str]]:
    """A server of an application in a thread of this process, as a context that gives its address."""
    return _listening
