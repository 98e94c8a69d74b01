"""Hostile requests to a running server: no response has a 5xx status, and every error response is JSON.

`python -m tests.stress.http --count 1000000` sends that many requests: bodies with unusual values, other paths, methods
and headers, and requests with bytes changed, deleted or repeated. At the end the server must be healthy, must have
logged no error, must use at most 10% more memory than after the first fifth of the requests, and must stop on SIGTERM.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.stress import mutants
from tests.stress.run_files import garble, mutate
from tests.untrained import BAHDANAU, write_model

TEXTS = ["the dog sees the cat.", "<p>the <b>dog</b></p>", "." * 3000, "the\n\ncat\0", "\ud800", "a " * 300, ""]
JSON: list[tuple[str, dict[str, Any]]] = [
    ("/v1/translate", {"text": "the dog.", "n_best": 2, "beam": 3, "attention": True, "prefix": "der"}),
    ("/v1/translate", {"text": ["the dog.", "the cat."], "model": "en-de", "source": "en", "target": "de"}),
    ("/v1/translate", {"text": "the dog.", "stream": True}),
    ("/v1/translate", {"text": "the dog.", "glossary": {"dog": "Hund"}}),
    ("/v1/simultaneous", {"text": "the dog sees ", "complete": False, "model": "en-de"}),
    ("/v1/complete", {"text": "the dog", "prefix": "der", "n_best": 2}),
    ("/v1/alternatives", {"text": "the dog", "translation": "der Hund", "word": 1, "n_best": 2}),
    ("/translate", {"q": "the dog.", "source": "en", "target": "de", "format": "html", "alternatives": 1}),
    ("/detect", {"q": "the dog."}),
    ("/suggest", {"q": "the dog", "s": "der Hund", "source": "en", "target": "de"}),
]
FILE = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nthe dog.\nthe cat.\n\r\n'
    b'--x\r\nContent-Disposition: form-data; name="source"\r\n\r\nen\r\n'
    b'--x\r\nContent-Disposition: form-data; name="target"\r\n\r\nde\r\n--x--\r\n'
)
PATHS = [
    "/",
    "/health",
    "/v1/models",
    "/languages",
    "/metrics",
    "/static/main.js",
    "/docs",
    "/v1/files/1",
    "/openapi.json",
]
ODD_PATHS = [
    "/static/../../etc/passwd",
    "/static/%2e%2e%2fhttp.py",
    "//",
    "/v1/files/%00",
    "/" + "a" * 9000,
    "/%ff",
    "*",
]
METHODS = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"]
CONTENT_TYPES = [
    "application/json",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
    "",
    "\xff",
]
SERVE = """
from rnnsearch.cli import main
from rnnsearch.serve import files
files.FETCH_SECONDS = 1.0
main()
"""
"""Serves like `rnnsearch serve`, but stops without waiting half a minute for clients that never fetch their files."""
RESPONSE_TIMEOUT = 60.0  # seconds
PARTIAL_REQUEST_TIMEOUT = 0.05  # seconds; the server may be waiting for the rest of the request


def request(method: str, path: str, content_type: str, body: bytes) -> bytes:
    """Return a complete request that asks the server to close the connection."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


def random_request(rng: random.Random) -> bytes:
    """Return a request that is well-formed as HTTP."""
    request_type = rng.randrange(10)
    if request_type == 0:
        return request(rng.choice(METHODS), rng.choice(PATHS), rng.choice(CONTENT_TYPES), b"")
    if request_type == 1:
        body = garble(FILE, rng) if rng.random() < 0.8 else FILE
        return request("POST", rng.choice(["/v1/files", "/translate_file"]), "multipart/form-data; boundary=x", body)
    path, fields = rng.choice(JSON)
    if rng.random() < 0.3:
        fields = {**fields, rng.choice(["text", "q", "prefix", "translation"]): rng.choice(TEXTS)}
    body = json.dumps(fields if rng.random() < 0.4 else mutate(fields, rng), default=str).encode()
    if request_type == 2:
        body = garble(body, rng)
    return request("POST", path, "application/json" if request_type < 9 else rng.choice(CONTENT_TYPES), body)


def send(port: int, content: bytes, timeout: float) -> bytes:
    """Return all bytes that the server sends until it closes the connection or the timeout expires."""
    response = b""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as client:
        try:
            client.sendall(content)
            while block := client.recv(1 << 16):
                response += block
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
    return response


def succeeds(port: int, rng: random.Random) -> bool:
    """Send one request and return True if it succeeds.

    Raises:
        AssertionError: The response is one that no request may get.
    """
    sent = random_request(rng)
    well_formed = rng.random() < 0.7
    if well_formed:
        response = send(port, sent, RESPONSE_TIMEOUT)
    else:
        response = send(port, garble(sent, rng), PARTIAL_REQUEST_TIMEOUT)
        if not response:  # the server is waiting for more, or closed the connection
            return False
    head, _, body = response.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    assert status, f"no response to {sent[:2000]!r}, but {response[:200]!r}"
    assert int(status[1]) < 500, f"{response[:1000]!r} to {sent[:2000]!r}"
    if int(status[1]) >= 400 and well_formed:
        assert list(json.loads(body)) == ["error"], f"{response[:1000]!r} to {sent[:2000]!r}"
        assert b"Traceback" not in body and b"/rnnsearch/" not in body, body
    return int(status[1]) < 400


@contextmanager
def running_server(
    folder: Path, options: Sequence[str] = (), model: Path | None = None
) -> Iterator[tuple[int, subprocess.Popen[bytes], Path]]:
    """Serve a model, by default a small one that is not trained, and yield the port, the process and the log file."""
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    if model is None:
        model = write_model(folder / "en-de", BAHDANAU, "bpe")
        options = ("--threads", "1", *options)
        environment["RNNSEARCH_NATIVE"] = "0"
    log = folder / "log"
    command = [sys.executable, "-c", SERVE, "serve", str(model), "--port", "0", "--preload", *options]
    with log.open("wb") as file:
        process = subprocess.Popen([*command, "--suggestions", str(folder / "suggested")], stderr=file, env=environment)
    try:
        while not (port := re.search(rb'"url": "http://127.0.0.1:(\d+)"', log.read_bytes())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield int(port[1]), process, log
    finally:
        process.kill()
        process.wait()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(arguments: list[str] | None = None) -> int:
    """Send many requests and return the exit status."""
    options = mutants.parse_options(__doc__, 100_000, arguments)
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as (port, process, log):
        num_sent = 0
        warm_bytes = 0

        def accepts(rng: random.Random) -> bool:
            nonlocal num_sent, warm_bytes
            num_sent += 1
            if num_sent == options.count // 5:
                warm_bytes = resident_bytes(process.pid)
            return succeeds(port, rng)

        status = mutants.run(options, "requests", accepts)
        failures = [line for line in log.read_text().splitlines() if '"level": "error"' in line]
        growth = resident_bytes(process.pid) / warm_bytes - 1 if warm_bytes else 0.0
        if not send(port, request("GET", "/health", "", b""), RESPONSE_TIMEOUT).startswith(b"HTTP/1.1 200 "):
            failures.append("the server is no longer healthy")
        if growth > 0.1 and options.count >= 10_000:
            failures.append(f"memory grew by {growth:.0%}")
        process.send_signal(signal.SIGTERM)
        try:
            # The server finishes its requests and keeps results of file jobs until they can be fetched.
            if process.wait(180):
                failures.append(f"the server stopped with exit status {process.returncode}")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler writes the stack of every thread
            process.wait()
            log_end = "\n".join(log.read_text().splitlines()[-80:])
            failures.append(f"the server did not stop within three minutes: {log_end}")
    sys.stdout.write("".join(f"{failure}\n" for failure in failures))
    sys.stdout.write(f"memory {growth:+.0%} since the first fifth, {len(failures)} failures\n")
    return status or bool(failures)


if __name__ == "__main__":
    sys.exit(main())
