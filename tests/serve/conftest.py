"""Fixtures: small untrained models behind an application, and clients with and without a socket."""

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
    """Return the folders of two models: en-de with attention, de-en without."""
    root = tmp_path_factory.mktemp("served")
    return [
        write_model(root / "en-de", BAHDANAU, "bpe"),
        write_model(root / "de-en", RNNENCDEC, "words", ("de", "en")),
    ]


@pytest.fixture
def serve(folders: list[Path]) -> Iterator[Callable[..., TestClient]]:
    """Return a function that starts an application with settings and returns its client."""
    with ExitStack() as stack:

        def start(**settings: Any) -> TestClient:
            app = create_app(folders, Settings(**settings))
            return stack.enter_context(TestClient(app, "http://localhost", raise_server_exceptions=False))

        yield start


@pytest.fixture
def http(serve: Callable[..., TestClient]) -> TestClient:
    """Return the client of an application with default settings."""
    return serve()


@contextmanager
def _listening(app: Any) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=Connection, log_config=None, access_log=False, lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def listening() -> Callable[..., AbstractContextManager[str]]:
    """Return a context manager that serves an application on a socket and yields its address."""
    return _listening
