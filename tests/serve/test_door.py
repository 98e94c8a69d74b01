"""Who is let in, and how much of what they send."""

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

from rnnsearch.serve import admission, server
from rnnsearch.serve.admission import Door
from rnnsearch.serve.app import create_app, observed
from rnnsearch.serve.limits import Settings
from rnnsearch.translator.translator import Translator


@pytest.fixture(scope="module")
def url(folders: list[Path], listening: Any) -> Iterator[str]:
    with listening(observed(create_app(folders, Settings()))) as url:
        yield url


def sent(url: str, *parts: bytes) -> bytes:
    """The answer to what is sent over a socket, until the other side closes it."""
    with socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0)), timeout=60) as client:
        for part in parts:
            client.sendall(part)
        answer = b""
        while block := client.recv(100_000):
            answer += block
        return answer


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:5000", "[::1]:5000", "192.168.1.2", "LOCALHOST:1"])
def test_addresses_and_localhost_are_known(http, host):
    assert http.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[::1", "a:b:c"])
def test_other_hosts_are_refused(http, host):
    answer = http.get("/health", headers={"host": host})
    assert (answer.status_code, list(answer.json())) == (400, ["error"])
    assert "--allowed-host" in answer.json()["error"]


def test_a_host_that_is_allowed(serve):
    http = serve(allowed_hosts=frozenset({"mt.example"}))
    assert http.get("/health", headers={"host": "mt.example:443"}).status_code == 200
    assert http.get("/health", headers={"host": "other.example"}).status_code == 400
    assert serve(allowed_hosts=frozenset({"*"})).get("/health", headers={"host": "any.example"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://["}, {"sec-fetch-site": "cross-site"}],
)
def test_a_page_of_another_site_makes_no_work(http, headers):
    for path in ("/translate", "/v1/translate", "/translate_file", "/v1/files"):
        assert http.post(path, content=b"q=a&target=de", headers=headers).status_code == 403
    assert http.get("/health", headers=headers).status_code == 200


def test_our_own_page_does(http):
    body = {"text": "the dog", "model": "en-de"}
    assert http.post("/v1/translate", json=body, headers={"origin": "http://localhost"}).status_code == 200


def test_a_body_without_a_file_is_no_larger_than_its_characters_can_be(serve):
    http = serve(max_characters=1000)
    most = 12 * 1000 + (64 << 10)
    answer = http.post("/v1/translate", content=b" " * (most + 1), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]) == (413, f"the body must have at most {most:,} bytes; got more")
    file = {"file": ("a.txt", b"\n" * (most + 1))}
    assert http.post("/v1/files", files=file, data={"model": "en-de"}).status_code == 202


def test_too_many_headers(http):
    answer = http.get("/health", headers={f"x-{n}": "a" for n in range(admission.MOST_HEADERS + 1)})
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


def test_a_head_without_end(url):
    answer = sent(url, b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a: b\r\n" * 20_000)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b'{"error": "a request\'s head must have at most 65,536 bytes; got more"}')


def test_what_is_no_http_is_answered_in_json(url):
    answer = sent(url, b"\xff\xfe garbage\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/json" in answer


def test_a_head_that_does_not_come(url, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    began = time.monotonic()
    assert sent(url, b"GET / HTTP/1.1\r\n") == b""
    assert sent(url) == b""
    assert time.monotonic() - began < 20


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until this is set no translation is made."""
    go, n_best = threading.Event(), Translator.n_best

    def waiting(*given: Any, **options: Any) -> Any:
        assert go.wait(60)
        return n_best(*given, **options)

    monkeypatch.setattr(Translator, "n_best", waiting)
    yield go
    go.set()


BODY = b'{"text": "the dog", "model": "en-de"}'
POST = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ASKED = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


MOST = 64 << 20


def poured(client: socket.socket) -> int:
    """How many bytes of header lines are taken, of so many, before a second goes by without any."""
    lines, taken = b"a: %s\r\n" % (b"b" * 8000) * 20, 0
    client.settimeout(1)
    with contextlib.suppress(TimeoutError):
        while taken < MOST:
            taken += client.send(lines)
    client.settimeout(60)
    return taken


def drained(client: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):  # what it has not read it throws away
        while block := client.recv(100_000):
            answer += block
    return answer


def test_the_next_head_without_end_while_a_request_is_answered(url, held):
    """It was read on and on, and kept; now it waits outside until the answer is there, and is refused then."""
    with socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0)), timeout=60) as client:
        client.sendall(ASKED + GET)
        assert poured(client) < MOST
        held.set()
        answer = drained(client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 2
    assert answer.endswith(b'{"error": "a request\'s head must have at most 65,536 bytes; got more"}')


def test_the_next_head_that_does_not_come(url, held, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0)), timeout=60) as client:
        client.sendall(ASKED + GET)
        time.sleep(0.4)  # meanwhile nobody waits for it
        held.set()
        assert client.recv(100_000).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"a: b\r\n")
        began = time.monotonic()
        while client.recv(100_000):
            pass
        assert time.monotonic() - began < 4  # uvicorn itself waits for 5 seconds


def test_lines_without_end_after_a_body_in_chunks(url, monkeypatch):
    """Those that may stand there are part of no head, and were counted as part of no body."""
    monkeypatch.setattr(admission, "BODY_SECONDS", 2.0)
    with socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0)), timeout=60) as client:
        client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        assert poured(client) < MOST
        assert drained(client).startswith(b"HTTP/1.1 408 ")


def test_requests_one_behind_another_are_answered_in_order(url, held):
    """A whole one, a large one in chunks, and one whose head comes in pieces, while the first is answered."""
    spaces = (b"4000\r\n" + b" " * 0x4000 + b"\r\n") * 30
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n" + spaces + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    with socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0)), timeout=60) as client:
        client.sendall(ASKED + chunked + GET[:20])
        time.sleep(0.2)
        held.set()
        client.sendall(GET[20:] + b"Connection: close\r\n\r\n")
        answer = drained(client)
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == 3
    assert answer.endswith(b'{"status":"ok"}')


def test_a_body_that_does_not_come(monkeypatch):
    monkeypatch.setattr(admission, "BODY_SECONDS", 0.05)
    parts = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Any:
        if parts:
            return parts.pop()
        await asyncio.sleep(60)
        return None

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        while True:
            await receive()

    scope = {"type": "http", "method": "POST", "headers": [(b"host", b"localhost")]}
    with pytest.raises(Exception, match=r"the body must be there in 0\.05 seconds; it was not") as error:
        asyncio.run(Door(app, Settings())(scope, receive, None))  # type: ignore[arg-type]
    assert error.value.status_code == 408


def test_health_answers_while_a_long_text_is_split(url):
    """49,000 dots, three times over; each answer of the others is timed."""
    slowest, done = [0.0], threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url) as client:
            while not done.is_set():
                began = time.monotonic()
                assert client.get("/health").status_code == 200
                slowest[0] = max(slowest[0], time.monotonic() - began)

    asking = threading.Thread(target=ask)
    asking.start()
    for piece in (".", "1. ", '."'):
        text = (piece * 49_000)[:49_000]
        httpx.post(f"{url}/v1/translate", json={"text": text, "model": "en-de"}, timeout=120)
    done.set()
    asking.join()
    assert slowest[0] < 2.0


def test_no_client_sees_a_path_or_a_line_of_a_file(folders, serve, tmp_path):
    http = serve()
    secret = tmp_path / "secret.txt"
    secret.write_text("password\n")
    config = folders[0] / "config.toml"
    before = config.read_text()
    try:
        config.write_text(before + f'\n[search]\nreplace_unknown = "dictionary"\ndictionary = "{secret}"\n')
        answer = http.post("/v1/translate", json={"text": "the dog", "model": "en-de"})
    finally:
        config.write_text(before)
    assert (answer.status_code, answer.json()) == (
        503,
        {"error": "the model en-de cannot be loaded; the server's log says why"},
    )


def test_a_sender_that_leaves_in_a_body_is_no_fault_of_ours(url, caplog):
    caplog.set_level("INFO", "rnnsearch.serve")
    paths = ("/detect", "/v1/translate", "/v1/files")
    for path in paths:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n"
        with socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0))) as client:
            client.sendall(head.encode() + b'{"q": "')
    ends = time.monotonic() + 20
    while len(found := [(r.levelname, r.getMessage()) for r in caplog.records]) < len(paths):
        assert time.monotonic() < ends, found
        time.sleep(0.01)
    assert found == [("INFO", "request")] * len(paths)
