"""Rejection of requests by their head, size and origin, and how hostile connections are limited."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import Response

from rnnsearch.serve import admission, clients, server
from rnnsearch.serve.admission import AdmissionControl
from rnnsearch.serve.app import create_app, observe
from rnnsearch.serve.limits import Settings
from rnnsearch.translator.translator import Translator


@pytest.fixture(scope="module")
def url(folders: list[Path], listening: Any) -> Iterator[str]:
    with listening(observe(create_app(folders, Settings()))) as url:
        yield url


def connect(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0)), timeout=60)


def response_to(url: str, *parts: bytes) -> bytes:
    """Send bytes over a new connection; return everything received until the server closes it."""
    with connect(url) as client:
        for part in parts:
            client.sendall(part)
        response = b""
        while block := client.recv(100_000):
            response += block
        return response


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:5000", "[::1]:5000", "192.168.1.2", "LOCALHOST:1"])
def test_addresses_and_localhost_are_accepted_hosts(http, host):
    assert http.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[::1", "a:b:c"])
def test_other_hosts_are_rejected(http, host):
    response = http.get("/health", headers={"host": host})
    assert (response.status_code, list(response.json())) == (400, ["error"])
    assert "--allowed-host" in response.json()["error"]


def test_allowed_hosts_are_accepted(serve):
    http = serve(allowed_hosts=frozenset({"mt.example"}))
    assert http.get("/health", headers={"host": "mt.example:443"}).status_code == 200
    assert http.get("/health", headers={"host": "other.example"}).status_code == 400
    assert serve(allowed_hosts=frozenset({"*"})).get("/health", headers={"host": "any.example"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://["}, {"sec-fetch-site": "cross-site"}],
)
def test_pages_of_other_sites_cannot_send_requests(http, headers):
    for path in ("/translate", "/v1/translate", "/translate_file", "/v1/files"):
        assert http.post(path, content=b"q=a&target=de", headers=headers).status_code == 403
    assert http.get("/health", headers=headers).status_code == 200


def test_own_page_can_send_requests(http):
    body = {"text": "the dog", "model": "en-de"}
    assert http.post("/v1/translate", json=body, headers={"origin": "http://localhost"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("mt.example:443", "https://mt.example", 200),
        ("mt.example", "https://mt.example:443", 200),
        ("MT.example:80", "http://mt.example", 200),
        ("mt.example:5000", "http://mt.example:5000", 200),
        ("mt.example:443", "http://mt.example", 403),
        ("mt.example:5000", "https://mt.example", 403),
        ("mt.example", "https://other.example", 403),
    ],
)
def test_port_of_the_scheme_may_be_omitted(serve, host, origin, status):
    http = serve(allowed_hosts=frozenset({"mt.example"}))
    headers = {"host": host, "origin": origin}
    assert http.post("/detect", data={"q": "the dog"}, headers=headers).status_code == status


OBSIDIAN = "app://obsidian.md"


def test_pages_of_allowed_origins_can_send_requests_and_read_responses(http, serve):
    allowed = serve(allowed_origins=frozenset({OBSIDIAN}))
    headers = {"origin": OBSIDIAN, "sec-fetch-site": "cross-site"}
    response = allowed.post("/detect", data={"q": "the dog"}, headers=headers)
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (200, OBSIDIAN)
    asks = {**headers, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    preflight = allowed.options("/v1/translate", headers=asks)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-headers"] == "x-api-key"
    rejected = allowed.post("/detect", data={"q": ""}, headers=headers)
    assert (rejected.status_code, rejected.headers["access-control-allow-origin"]) == (400, OBSIDIAN)
    other = allowed.post("/detect", data={"q": "the dog"}, headers={"origin": "https://evil.example"})
    assert (other.status_code, other.headers.get("access-control-allow-origin")) == (403, None)
    assert http.options("/v1/translate", headers=asks).status_code == 403
    every = serve(allowed_origins=frozenset({"*"})).post("/detect", data={"q": "the dog"}, headers={"origin": "null"})
    assert (every.status_code, every.headers["access-control-allow-origin"]) == (200, "*")


def test_body_without_file_is_limited_by_max_characters(serve):
    http = serve(max_characters=1000)
    limit = 12 * 1000 + (64 << 10)
    response = http.post("/v1/translate", content=b" " * (limit + 1), headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert response.json()["error"] == f"the body must have at most {limit:,} bytes; got more"
    file = {"file": ("a.txt", b"\n" * (limit + 1))}
    assert http.post("/v1/files", files=file, data={"model": "en-de"}).status_code == 202


def test_too_many_headers_are_rejected(http):
    response = http.get("/health", headers={f"x-{n}": "a" for n in range(admission.MAX_HEADERS + 1)})
    assert (response.status_code, list(response.json())) == (400, ["error"])


def test_head_without_end_is_rejected(url):
    response = response_to(url, b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a: b\r\n" * 20_000)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert response.endswith(b'{"error": "a request\'s head must have at most 65,536 bytes; got more"}')


def test_invalid_http_gets_error_in_json(url):
    response = response_to(url, b"\xff\xfe garbage\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"application/json" in response


def test_connection_is_closed_if_head_does_not_arrive(url, monkeypatch):
    monkeypatch.setattr(server, "MAX_HEAD_SECONDS", 0.2)
    start = time.monotonic()
    assert response_to(url, b"GET / HTTP/1.1\r\n") == b""
    assert response_to(url) == b""
    assert time.monotonic() - start < 20


def test_connection_of_client_that_does_not_read_is_closed(folders, listening, monkeypatch):
    monkeypatch.setattr(server, "WRITE_CHECK_SECONDS", 0.1)
    app = create_app(folders, Settings())

    @app.get("/large")
    async def large() -> Response:
        return Response(b"a" * (16 << 20))

    with listening(app) as url, connect(url) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # much less than the response
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(1)
        assert len(receive_all(client)) < 16 << 20
        # A client that reads gets everything.
        assert len(httpx.get(f"{url}/large").content) == 16 << 20


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Return an event that all translations wait for."""
    go = threading.Event()
    n_best = Translator.n_best

    def n_best_after_go(*args: Any, **kwargs: Any) -> Any:
        assert go.wait(60)
        return n_best(*args, **kwargs)

    monkeypatch.setattr(Translator, "n_best", n_best_after_go)
    yield go
    go.set()


BODY = b'{"text": "the dog", "model": "en-de"}'
POST_HEAD = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
POST = POST_HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
INCOMPLETE_GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
FLOOD_BYTES = 64 << 20


def flood(client: socket.socket) -> int:
    """Send header lines until the server reads no more for a second, or FLOOD_BYTES; return the number of bytes."""
    lines = b"a: %s\r\n" % (b"b" * 8000) * 20
    count = 0
    client.settimeout(1)
    with contextlib.suppress(TimeoutError):
        while count < FLOOD_BYTES:
            count += client.send(lines)
    client.settimeout(60)
    return count


def receive_all(client: socket.socket) -> bytes:
    """Return everything that is received until the server closes the connection."""
    response = b""
    with contextlib.suppress(ConnectionResetError):  # raised because the server has not read everything
        while block := client.recv(100_000):
            response += block
    return response


def test_next_head_without_end_is_rejected_after_the_response(url, go):
    with connect(url) as client:
        client.sendall(POST + INCOMPLETE_GET)
        assert flood(client) < FLOOD_BYTES
        go.set()
        response = receive_all(client)
    assert response.startswith(b"HTTP/1.1 200 ")
    assert response.count(b"HTTP/1.1 ") == 2
    assert response.endswith(b'{"error": "a request\'s head must have at most 65,536 bytes; got more"}')


def test_connection_is_closed_if_next_head_does_not_arrive(url, go, monkeypatch):
    monkeypatch.setattr(server, "MAX_HEAD_SECONDS", 0.2)
    with connect(url) as client:
        client.sendall(POST + INCOMPLETE_GET)
        time.sleep(0.4)  # the time limit does not apply before the response
        go.set()
        assert client.recv(100_000).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"a: b\r\n")
        start = time.monotonic()
        while client.recv(100_000):
            pass
        assert time.monotonic() - start < 4  # without the limit, uvicorn waits for 5 seconds


def test_trailers_without_end_after_chunked_body_are_limited(url, monkeypatch):
    monkeypatch.setattr(admission, "MAX_BODY_SECONDS", 2.0)
    with connect(url) as client:
        client.sendall(POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        assert flood(client) < FLOOD_BYTES
        assert receive_all(client).startswith(b"HTTP/1.1 408 ")


def test_pipelined_requests_are_answered_in_order(url, go):
    # A complete request, a large chunked one, and one whose head arrives in two parts.
    spaces = (b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 30
    chunked = POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + spaces + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    with connect(url) as client:
        client.sendall(POST + chunked + INCOMPLETE_GET[:20])
        time.sleep(0.2)
        go.set()
        client.sendall(INCOMPLETE_GET[20:] + b"Connection: close\r\n\r\n")
        response = receive_all(client)
    assert response.count(b"HTTP/1.1 200 ") == response.count(b"HTTP/1.1 ") == 3
    assert response.endswith(b'{"status":"ok"}')


def test_half_closed_client_gets_its_responses(url, go, monkeypatch):
    monkeypatch.setattr(server, "MAX_HALF_CLOSED_SECONDS", 0.1)
    with connect(url) as client:
        client.sendall(POST + POST)
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        go.set()
        assert receive_all(client).count(b"HTTP/1.1 200 ") == 2


@pytest.mark.usefixtures("go")
def test_request_of_client_that_has_disconnected_is_cancelled(folders, listening, monkeypatch):
    monkeypatch.setattr(server, "MAX_HALF_CLOSED_SECONDS", 60.0)
    observer = observe(create_app(folders, Settings()))
    with listening(observer) as url:
        start = time.monotonic()
        with connect(url) as client:
            client.sendall(POST)
            time.sleep(0.1)
        # The end of a request counts as its answer, although no client receives it.
        while not observer.answered and time.monotonic() < start + 30:
            time.sleep(0.01)
        assert time.monotonic() < start + 30


@pytest.mark.usefixtures("go")
def test_half_closed_connection_is_closed_after_a_while(url, monkeypatch):
    monkeypatch.setattr(server, "MAX_HALF_CLOSED_SECONDS", 0.2)
    # Of HTTP/1.0, which has no interim responses to find out if the client has disconnected.
    with connect(url) as client:
        client.sendall(POST.replace(b"HTTP/1.1", b"HTTP/1.0"))
        client.shutdown(socket.SHUT_WR)
        assert receive_all(client) == b""
    # Too many of a client are not waited for, and neither is an incomplete request.
    monkeypatch.setattr(server, "MAX_HALF_CLOSED_SECONDS", 60.0)
    monkeypatch.setattr(server, "MAX_HALF_CLOSED", 0)
    with connect(url) as client:
        client.sendall(POST)
        client.shutdown(socket.SHUT_WR)
        assert receive_all(client) == b""
    for incomplete in (POST[:-1], INCOMPLETE_GET):
        start = time.monotonic()
        with connect(url) as client:
            client.sendall(incomplete)
            client.shutdown(socket.SHUT_WR)
            receive_all(client)
        assert time.monotonic() - start < 5


def test_body_must_arrive_in_time(monkeypatch):
    monkeypatch.setattr(admission, "MAX_BODY_SECONDS", 0.05)
    parts = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Any:
        if parts:
            return parts.pop()
        await asyncio.sleep(60)
        return None

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        while True:
            await receive()

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"host", b"localhost")]}
    with pytest.raises(Exception, match=r"the body must arrive within 0\.05 seconds; it did not") as error:
        asyncio.run(AdmissionControl(app, Settings())(scope, receive, None))  # type: ignore[arg-type]
    assert error.value.status_code == 408


def test_client_that_abandons_requests_is_served_only_while_it_waits(monkeypatch):
    monkeypatch.setattr(admission, "ABANDONED_WAIT_SECONDS", 0.01)
    num_served = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal num_served
        num_served += 1
        assert (await receive())["type"] == "http.request"
        if scope["path"] == "/abandoned":
            assert (await receive())["type"] == "http.disconnect"
        await Response(b"")(scope, receive, send)

    async def request(control: AdmissionControl, path: str, *types: str) -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "headers": [(b"host", b"localhost")],
            "client": ("a", 1),
        }
        messages = [{"type": type} for type in types]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(_: Any) -> None:
            pass

        await control(scope, receive, send)

    async def scenario() -> None:
        control = AdmissionControl(app, Settings())
        for _ in range(clients.MAX_ABANDONED + 5):
            await request(control, "/abandoned", "http.request", "http.disconnect")
        before = num_served
        await request(control, "/", "http.disconnect")
        assert num_served == before
        await request(control, "/", "http.request")
        assert num_served == before + 1

    asyncio.run(scenario())


@pytest.mark.parametrize(("status", "waits"), [(200, []), (403, []), (429, [0.2])])
def test_response_about_too_many_requests_waits(monkeypatch, status, waits):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    async def ignore(*_):
        return {"type": "http.request"}

    monkeypatch.setattr(admission.asyncio, "sleep", sleep)
    control = AdmissionControl(Response(status_code=status), Settings())
    scope = {"type": "http", "method": "GET", "path": "/x", "headers": [(b"host", b"localhost")], "client": ("::1", 1)}
    asyncio.run(control(scope, ignore, ignore))
    assert slept == waits


def test_health_responds_while_long_texts_are_split(url):
    durations = [0.0]
    done = threading.Event()

    def poll_health() -> None:
        with httpx.Client(base_url=url) as client:
            while not done.is_set():
                start = time.monotonic()
                assert client.get("/health").status_code == 200
                durations.append(time.monotonic() - start)

    thread = threading.Thread(target=poll_health)
    thread.start()
    for piece in (".", "1. ", '."'):
        text = (piece * 49_000)[:49_000]
        httpx.post(f"{url}/v1/translate", json={"text": text, "model": "en-de"}, timeout=120)
    done.set()
    thread.join()
    assert max(durations) < 2.0


def test_errors_do_not_reveal_paths_or_contents_of_files(folders, serve, tmp_path):
    http = serve()
    secret = tmp_path / "secret.txt"
    secret.write_text("password\n")
    config = folders[0] / "config.toml"
    original = config.read_text()
    try:
        config.write_text(original + f'\n[search]\nreplace_unknown = "dictionary"\ndictionary = "{secret}"\n')
        response = http.post("/v1/translate", json={"text": "the dog", "model": "en-de"})
    finally:
        config.write_text(original)
    assert response.status_code == 503
    assert response.json() == {"error": "the model en-de cannot be loaded; see the server's log"}


def test_disconnect_during_body_is_not_logged_as_error(url, caplog):
    caplog.set_level("INFO", "rnnsearch.serve")
    paths = ("/detect", "/v1/translate", "/v1/files")
    for path in paths:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n"
        with connect(url) as client:
            client.sendall(head.encode() + b'{"q": "')
    deadline = time.monotonic() + 20
    while len(events := [(record.levelname, record.getMessage()) for record in caplog.records]) < len(paths):
        assert time.monotonic() < deadline, events
        time.sleep(0.01)
    assert events == [("INFO", "request")] * len(paths)
