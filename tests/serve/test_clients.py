"""Limits per client: connections, pipelined requests, API keys; and of the log."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from rnnsearch.serve import clients, observability
from rnnsearch.serve.app import create_app
from rnnsearch.serve.clients import ConnectionCounts, LeakyBuckets, WrongKeys, abandoned_requests, client_of
from rnnsearch.serve.limits import Settings
from rnnsearch.serve.observability import RateLimit
from rnnsearch.serve.server import Connection, max_open_connections

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST_GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def url(folders: list[Path], listening: Any) -> Iterator[str]:
    with listening(create_app(folders, Settings())) as url:
        yield url


def connect(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0)), timeout=60)


def receive_all(client: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    response = b""
    while block := client.recv(100_000):
        response += block
    return response


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("testclient", "testclient", True),
    ],
)
def test_clients_are_told_apart_by_address_or_network(one, other, is_same):
    assert (client_of(one) == client_of(other)) is is_same


def test_connections_are_counted_in_total_and_by_client():
    counts = ConnectionCounts()
    assert [counts.add(client, 3, 2) for client in "aaabb"] == [True, True, False, True, False]
    counts.remove("a")
    assert [counts.add(client, 3, 2) for client in "ba"] == [True, False]


def test_connections_above_the_limit_are_refused(url, monkeypatch):
    monkeypatch.setattr(Connection, "max_connections", 8)
    for _ in range(2):  # closed connections do not count
        with ExitStack() as stack:
            accepted = [stack.enter_context(connect(url)) for _ in range(4)]
            for client in accepted:
                client.sendall(GET)
                assert client.recv(10_000).startswith(b"HTTP/1.1 200 ")
            with connect(url) as refused:
                response = receive_all(refused)
            assert response.startswith(b"HTTP/1.1 503 ")
            assert response.endswith(b'{"error": "too many connections are open; try again later"}')
            for client in accepted:
                client.sendall(LAST_GET)
                assert b"HTTP/1.1 200 " in receive_all(client)


def test_connections_leave_file_descriptors_for_others():
    resource = pytest.importorskip("resource")
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft_limit == resource.RLIM_INFINITY or 0 < max_open_connections() < soft_limit


def test_pipelined_requests_are_parsed_as_they_are_answered(url, monkeypatch):
    max_waiting = 0
    parse = Connection._parse

    def watched_parse(connection: Connection) -> None:
        nonlocal max_waiting
        parse(connection)
        max_waiting = max(max_waiting, len(connection.pipeline))

    monkeypatch.setattr(Connection, "_parse", watched_parse)
    with connect(url) as client:
        client.sendall(GET * 3000 + LAST_GET)
        assert receive_all(client).count(b"HTTP/1.1 200 ") == 3001
    assert 0 < max_waiting <= 4096 / len(GET) + 1


def test_large_head_in_one_packet_is_rejected(folders):
    config = uvicorn.Config(create_app(folders[:1], Settings()), log_config=None)
    config.load()
    written: list[bytes] = []

    class Transport(asyncio.Transport):
        is_closed = False

        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return None

        def get_write_buffer_size(self) -> int:
            return 0

        def write(self, data: Any) -> None:
            written.append(data)

        def close(self) -> None:
            self.is_closed = True

        def is_closing(self) -> bool:
            return self.is_closed

        def pause_reading(self) -> None:
            pass

    async def send() -> None:
        connection = Connection(config, uvicorn.server.ServerState(), {})
        connection.connection_made(Transport())
        connection.data_received(GET[:-2] + b"a: " + b"b" * (70 << 10) + b"\r\n\r\n")
        connection.connection_lost(None)

    asyncio.run(send())
    assert b"".join(written).startswith(b"HTTP/1.1 400 ")


def test_several_host_headers_are_rejected(url):
    with connect(url) as client:
        client.sendall(LAST_GET.replace(b"\r\n\r\n", b"\r\nHost: localhost\r\n\r\n"))
        response = receive_all(client)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"a request must have one Host header; got several" in response


def test_api_keys_can_be_tried_only_slowly(serve):
    http = serve(api_keys=frozenset({"secret", "other"}))

    def status(key: str) -> int:
        return int(http.post("/detect", data={"q": "the dog"}, headers={"x-api-key": key}).status_code)

    assert status("secret") == 200
    statuses = [status(f"guess {n}") for n in range(12)]
    assert statuses[:10] == [403] * 10
    assert statuses[-1] == 429
    # Right keys that were not used before are answered like wrong ones.
    assert (status("other"), status("secret")) == (429, 200)


def test_wrong_keys_are_forgotten(monkeypatch):
    now = 100.0
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: now))
    wrong_keys = WrongKeys()
    for _ in range(clients.MAX_WRONG_KEYS):
        assert wrong_keys.retry_after("a") == 0
        wrong_keys.count("a")
    assert (wrong_keys.retry_after("a"), wrong_keys.retry_after("b")) == (1, 0)
    now = 102.0
    assert wrong_keys.retry_after("a") == 0


def test_abandoned_requests_are_compensated_and_forgotten(monkeypatch):
    now = 100.0
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: now))
    abandoned = abandoned_requests()
    for _ in range(100):  # as of a page that translates while its user types
        abandoned.add("a")
        abandoned.remove("a")
    for _ in range(clients.MAX_ABANDONED - 1):
        abandoned.add("a")
    assert not abandoned.is_full("a")
    for _ in range(1000):
        abandoned.add("a")
    assert [abandoned.is_full(client) for client in "ab"] == [True, False]
    # However many they were, not more are remembered than twice the maximum.
    now += (clients.MAX_ABANDONED + 1) / clients.ABANDONED_PER_SECOND
    assert not abandoned.is_full("a")


def test_leaky_bucket_forgets_at_a_constant_rate(monkeypatch):
    now = 100.0
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: now))
    buckets = LeakyBuckets(capacity=3, per_second=0.5)
    buckets.remove("a")
    for expected in (0.0, 0.0, 0.0, 2.0, 4.0):
        assert buckets.seconds_until_free("a") == expected
        buckets.add("a")
    assert (buckets.level("a"), buckets.seconds_until_free("a"), buckets.is_full("a")) == (5.0, 6.0, True)
    now = 106.0
    assert (buckets.level("a"), buckets.is_full("a")) == (2.0, False)
    buckets.remove("a")
    assert buckets.level("a") == 1.0
    now = 200.0
    assert buckets.level("a") == 0.0
    buckets.add("a")
    assert (buckets.level("a"), buckets.level("b")) == (1.0, 0.0)


def test_leaky_buckets_of_the_latest_clients_are_remembered(monkeypatch):
    monkeypatch.setattr(clients, "MAX_ADDRESSES", 2)
    buckets = LeakyBuckets(capacity=1, per_second=0.001)
    for client in "abac":
        buckets.add(client)
    assert [buckets.is_full(client) for client in "abc"] == [True, False, True]


def test_log_has_few_equal_warnings_per_interval(monkeypatch):
    now = 100.0
    monkeypatch.setattr(observability, "time", SimpleNamespace(monotonic=lambda: now))
    limit = RateLimit()

    def count(level: int, message: str) -> int:
        return sum(limit.filter(logging.LogRecord("a", level, "", 0, message, (), None)) for _ in range(1000))

    assert count(logging.ERROR, "socket.accept() out of system resource") == observability.MAX_WARNINGS
    assert count(logging.WARNING, "other") == observability.MAX_WARNINGS
    assert count(logging.INFO, "request") == 1000
    now += observability.WARNING_SECONDS
    assert count(logging.WARNING, "other") == observability.MAX_WARNINGS
