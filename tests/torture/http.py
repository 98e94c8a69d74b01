"""Hostile requests to a running server: each well-formed one gets an answer, never a 500; every fault is JSON.

`python -m tests.torture.http --count 1000000` sends so many: bodies with odd values, other paths, methods and headers,
and whole requests with bytes changed, left out and repeated. At the end the server is still healthy, has logged no
error, has grown by no more than a tenth since the first fifth, and stops on a signal.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.torture import mutants
from tests.torture.run_files import garbled, mutated
from tests.untrained import BAHDANAU, write_model

TEXTS = ["the dog sees the cat.", "<p>the <b>dog</b></p>", "." * 3000, "the\n\ncat\0", "\ud800", "a " * 300, ""]
JSON: list[tuple[str, dict[str, Any]]] = [
    ("/v1/translate", {"text": "the dog.", "n_best": 2, "beam": 3, "attention": True, "prefix": "der"}),
    ("/v1/translate", {"text": ["the dog.", "the cat."], "model": "en-de", "source": "en", "target": "de"}),
    ("/v1/translate", {"text": "the dog.", "stream": True}),
    ("/v1/translate", {"text": "the dog.", "glossary": {"dog": "Hund"}}),
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
KINDS = ["application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "\xff"]
PATIENCE = 60.0
"""Seconds; an answer that has not come by then never will."""


def request(method: str, path: str, kind: str, body: bytes) -> bytes:
    """A whole request, after which the server closes the connection."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


def drawn(draw: random.Random) -> bytes:
    """A request that is well-formed as HTTP."""
    kind = draw.randrange(10)
    if kind == 0:
        return request(draw.choice(METHODS), draw.choice(PATHS), draw.choice(KINDS), b"")
    if kind == 1:
        body = garbled(FILE, draw) if draw.random() < 0.8 else FILE
        return request("POST", draw.choice(["/v1/files", "/translate_file"]), "multipart/form-data; boundary=x", body)
    path, fields = draw.choice(JSON)
    if draw.random() < 0.3:
        fields = {**fields, draw.choice(["text", "q", "prefix", "translation"]): draw.choice(TEXTS)}
    body = json.dumps(fields if draw.random() < 0.4 else mutated(fields, draw), default=str).encode()
    if kind == 2:
        body = garbled(body, draw)
    return request("POST", path, "application/json" if kind < 9 else draw.choice(KINDS), body)


def answer(port: int, sent: bytes, patience: float) -> bytes:
    """All that comes back until the server closes, or as much as does in so many seconds."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as client:
        try:
            client.sendall(sent)
            while block := client.recv(1 << 16):
                found += block
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
    return found


def tried(port: int, draw: random.Random) -> bool:
    """Whether one of them was done as asked. Errors: AssertionError for an answer that no request should have."""
    sent, whole = drawn(draw), draw.random() < 0.7
    found = answer(port, sent if whole else garbled(sent, draw), PATIENCE if whole else 0.05)
    if not found and not whole:  # it may wait for more, or has been closed
        return False
    head, _, body = found.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    assert status, f"no answer to {sent[:2000]!r}, but {found[:200]!r}"
    assert int(status[1]) < 500, f"{found[:1000]!r} to {sent[:2000]!r}"
    if int(status[1]) >= 400 and whole:
        assert list(json.loads(body)) == ["error"], f"{found[:1000]!r} to {sent[:2000]!r}"
        assert b"Traceback" not in body and b"/rnnsearch/" not in body, body
    return int(status[1]) < 400


@contextmanager
def served(place: Path) -> Iterator[tuple[int, subprocess.Popen[bytes], Path]]:
    """The port, process and log of a server of a small model."""
    model, log = write_model(place / "en-de", BAHDANAU, "bpe"), place / "log"
    command = [sys.executable, "-m", "rnnsearch", "serve", str(model), "--port", "0", "--threads", "1"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--suggestions", str(place / "suggested")],
            stderr=file,
            env={**os.environ, "RNNSEARCH_NATIVE": "0", "PYTHONFAULTHANDLER": "1"},
        )
    try:
        while not (found := re.search(rb'"url": "http://127.0.0.1:(\d+)"', log.read_bytes())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield int(found[1]), process, log
    finally:
        process.kill()
        process.wait()


def resident(process: subprocess.Popen[bytes]) -> int:
    """Bytes of memory that a process has."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(given: list[str] | None = None) -> int:
    """Send many; returns the exit status."""
    chosen = mutants.options(__doc__, 100_000, given)
    with tempfile.TemporaryDirectory() as place, served(Path(place)) as (port, process, log):
        done, warm = 0, 0

        def fits(draw: random.Random) -> bool:
            nonlocal done, warm
            done += 1
            if done == chosen.count // 5:
                warm = resident(process)
            return tried(port, draw)

        status = mutants.run(chosen, "requests", fits)
        faults = [line for line in log.read_text().splitlines() if '"level": "error"' in line]
        grown = resident(process) / warm - 1 if warm else 0.0
        if not answer(port, request("GET", "/health", "", b""), PATIENCE).startswith(b"HTTP/1.1 200 "):
            faults.append("the server is not healthy any more")
        if grown > 0.1 and chosen.count >= 10_000:
            faults.append(f"its memory has grown by {grown:.0%}")
        process.send_signal(signal.SIGTERM)
        try:
            if process.wait(180):  # it does what was asked, and keeps files for those who may fetch them still
                faults.append("it did not stop in order")
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # says where all its threads are
            process.wait()
            faults.append("it did not stop within three minutes: " + "\n".join(log.read_text().splitlines()[-80:]))
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    sys.stdout.write(f"its memory: {grown:+.0%} since the first fifth; {len(faults)} faults\n")
    return status or bool(faults)


if __name__ == "__main__":
    sys.exit(main())
