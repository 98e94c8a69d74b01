"""The server on a real socket: a third-party client, malformed requests, and a signal under load."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from libretranslatepy import LibreTranslateAPI

import rnnsearch
from rnnsearch.serve.app import create_app, observe
from rnnsearch.serve.limits import Settings


@pytest.fixture(scope="module")
def url(folders: list[Path], listening: Any) -> Iterator[str]:
    with listening(observe(create_app(folders, Settings(api_keys=frozenset({"secret"}), max_body=100_000)))) as url:
        yield url


def connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(str(urlsplit(url).netloc), timeout=60)


def is_healthy(url: str) -> bool:
    connection = connect(url)
    connection.request("GET", "/health")
    response = connection.getresponse()
    result = response.status == 200 and json.loads(response.read()) == {"status": "ok"}
    connection.close()
    return result


def test_client_of_libretranslate_works(url, folders):
    client = LibreTranslateAPI(url, api_key="secret")
    assert client.languages()[0] == {"code": "en", "name": "English", "targets": ["de"]}
    assert client.detect("the cat is in the house")[0]["language"] == "en"
    expected = rnnsearch.load(folders[0]).translate("the dog sees a big bird.").text
    assert client.translate("the dog sees a big bird.", "en", "de") == expected
    assert client.translate("the dog sees a big bird.", "auto", "de") == expected


HEAD = b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nX-API-Key: secret\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\xff\xfe\x00garbage\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (HEAD + b'Content-Length: 14\r\n\r\n{"text": "\xff\xfe"}', b"400"),
        (HEAD + b"Content-Length: 12\r\n\r\n[1, {]nonsens", b"400"),
        (HEAD + b"Content-Length: 999999999999\r\n\r\n{", b"413"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"4000\r\n" + b"x" * 0x4000 + b"\r\n") * 8, b"413"),
        (HEAD + b"Content-Length: -5\r\n\r\n", b"400"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzzz\r\n", None),
        (HEAD + b"Content-Length: 100\r\n\r\n{", None),
        (HEAD + b'Content-Length: 19\r\n\r\n{"text": "the dog"}', None),
        (b"", None),
    ],
)
def test_malformed_requests_do_no_harm(url, request_bytes, status):
    # A client without an expected status disconnects without waiting for a response.
    with socket.create_connection(("127.0.0.1", int(urlsplit(url).port or 0)), timeout=60) as client:
        client.sendall(request_bytes)
        if status is not None:
            response = client.recv(100_000)
            assert response.split(b" ")[1] == status, response
    assert is_healthy(url)


class Load:
    """Clients that send requests until the server stops to listen."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answered = 0
        self.errors: list[str] = []
        self._lock = threading.Lock()

    def client(self, number: int) -> None:
        """Send requests over one connection."""
        body = json.dumps({"q": f"the cat sees {'the dog ' * (number % 7)}.", "source": "en", "target": "de"})
        connection = connect(self.url)
        while True:
            try:
                connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
            except (ConnectionError, http.client.BadStatusLine):
                return  # no byte of a response: the server has not accepted the request
            try:
                content = response.read()
                is_translation = response.status == 200 and isinstance(json.loads(content)["translatedText"], str)
            except (http.client.HTTPException, OSError, ValueError) as error:
                self.errors.append(repr(error))
                return
            if not is_translation:
                self.errors.append(f"{response.status} {content!r}")
            with self._lock:
                self.answered += 1


SLOW_SERVER = """
import sys, time
from rnnsearch.cli import main
from rnnsearch.serve import server
from rnnsearch.translator.translator import Translator
server.EXIT_SECONDS = 0.2
n_best = Translator.n_best
Translator.n_best = lambda *arguments, **options: time.sleep(100)
main()
"""


@pytest.mark.parametrize("second_signal", [None, signal.SIGTERM])
def test_server_exits_in_time_whatever_it_is_doing(folders, second_signal):
    # The only thread sleeps in a translation, and a client waits for it without reading.
    command = [sys.executable, "-c", SLOW_SERVER, "serve", str(folders[0]), "--port", "0"]
    timeout = "1" if second_signal is None else "1000"
    arguments = ["--timeout", "1000", "--stop-timeout", timeout]
    with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE) as process:
        try:
            url = json.loads(process.stderr.readline())["url"]
            with closing(connect(url)) as connection, closing(connect(url)) as other:
                connection.request("POST", "/translate", "q=the+dog&target=de")
                file = (
                    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nthe dog\r\n--x--\r\n'
                )
                other.request("POST", "/v1/files", file, {"Content-Type": "multipart/form-data; boundary=x"})
                assert other.getresponse().status == 202
                process.send_signal(signal.SIGTERM)
                assert json.loads(process.stderr.readline())["event"] in ("request", "stopping")
                if second_signal is not None:
                    time.sleep(0.3)
                    process.send_signal(second_signal)
                start_time = time.monotonic()
                assert process.wait(20) == (1 if second_signal is None else 128 + second_signal)
                assert time.monotonic() - start_time < 10
        finally:
            process.kill()


def test_signal_under_load_loses_no_accepted_request(folders):
    arguments = [sys.executable, "-m", "rnnsearch", "serve", *map(str, folders), "--port", "0", "--preload"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}) as server:
        try:
            first = json.loads(server.stderr.readline())
            assert (first["event"], first["models"]) == ("listening", ["en-de", "de-en"])
            assert first["url"].startswith("http://127.0.0.1:"), "the default is the loopback address"
            later_lines: list[bytes] = []
            reader = threading.Thread(target=lambda: later_lines.extend(server.stderr or ()))
            reader.start()
            load = Load(first["url"])
            clients = [threading.Thread(target=load.client, args=(n,)) for n in range(12)]
            for client in clients:
                client.start()
            while load.answered < 40 and any(client.is_alive() for client in clients):
                time.sleep(0.005)
            server.send_signal(signal.SIGTERM)
            for client in clients:
                client.join(60)
            assert server.wait(60) == 0
            reader.join(60)
        finally:
            server.kill()
    rows: list[dict[str, Any]] = [json.loads(line) for line in later_lines]
    assert load.errors == []
    [stopped] = [row for row in rows if row["event"] == "stopped"]
    assert load.answered >= 40
    assert stopped["accepted"] == stopped["answered"] == load.answered
    requests = [row for row in rows if row["event"] == "request"]
    assert len(requests) == load.answered
    assert {(row["route"], row["status"]) for row in requests} == {("/translate", 200)}
    assert not any(row["level"] == "error" for row in rows)
    assert b"the cat" not in b"".join(later_lines), "texts are not logged"
