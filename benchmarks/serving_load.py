"""Clients for `serving.py`: a minimal HTTP client with persistent connections, measured load and hostile load."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

HOST = "Host: localhost\r\n"


class Response(NamedTuple):
    """A response of the server."""

    status: int
    body: bytes


class Connection:
    """A persistent connection, which is reopened if the server has closed it."""

    def __init__(self, port: int, headers: str = "") -> None:
        self._port = port
        self._headers = HOST + headers
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
    ) -> Response:
        """Send a request and return the complete response.

        Raises:
            ConnectionError: The connection failed.
            asyncio.IncompleteReadError: The server closed the connection before the end of the response.
        """
        await self.send(method, path, body, content_type)
        return await self.receive()

    async def send(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> None:
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}Content-Type: {content_type}\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await self._writer.drain()

    async def receive(self) -> Response:
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body = await self._receive_chunks()
        else:
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            self.close()
        return Response(int(status_line.split(" ")[1]), body)

    async def _receive_chunks(self) -> bytes:
        assert self._reader is not None
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()
        return body

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


Latencies = list[tuple[float, int]]
"""Seconds to the response and index of the sentence, per request."""


async def measure(
    port: int, sentences: Sequence[str], clients: int, seconds: float, headers: str = ""
) -> tuple[Latencies, int]:
    """Let clients request one sentence after another.

    A warm-up before the measured time is not counted.

    Args:
        port: Port of the server.
        sentences: The sentences.
        clients: Number of clients.
        seconds: The measured time.
        headers: Further headers of the requests.

    Returns:
        The latencies of the requests answered in the measured time, and the number of all requests.
    """
    bodies = [json.dumps({"text": sentence}).encode() for sentence in sentences]
    latencies: Latencies = []
    start = time.perf_counter() + min(5.0, 0.25 * seconds)
    end = start + seconds
    num_requests = 0

    async def client() -> None:
        nonlocal num_requests
        with closing(Connection(port, headers)) as connection:
            while (sent := time.perf_counter()) < end:
                index = num_requests % len(sentences)
                num_requests += 1
                response = await connection.request("POST", "/v1/translate", bodies[index])
                received = time.perf_counter()
                if response.status != 200:
                    raise RuntimeError(f"the server responded with {response.status}: {response.body[:200]!r}")
                if start <= received <= end:
                    latencies.append((received - sent, index))

    await asyncio.gather(*(client() for _ in range(clients)))
    return latencies, num_requests


Exchange = Callable[[Connection], Awaitable[Response]]


@dataclass
class Soak:
    """Mixed load of well-behaved and hostile clients, with counts of their requests and a list of failures."""

    port: int
    sentences: Sequence[str]
    end: float
    """End time on the clock of `time.monotonic`."""
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    requests: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Run all clients until the end."""
        text = self._random_text
        sentence = self._random_sentence
        rng = self.rng
        bodies: list[tuple[str, int, Callable[[], dict[str, Any]]]] = [
            ("sentence", 6, lambda: {"text": text(), "attention": True, "n_best": 2}),
            ("paragraph", 2, lambda: {"text": "\n\n".join(text() for _ in range(rng.randrange(1, 8)))}),
            ("html", 1, lambda: {"text": [f"<p>{text()}</p><b>{text()}</b>", text()]}),
        ]
        prefixes = ("", "D", "Ein M", "Zwei ", "x")
        complete = self._post("/v1/complete", lambda: {"text": sentence(), "prefix": rng.choice(prefixes)})
        fields = {"translation": "Ein Mann geht."}
        alternatives = self._post("/v1/alternatives", lambda: {"text": sentence(), **fields, "word": rng.randrange(3)})
        exchanges: list[tuple[str, int, Exchange]] = [
            *((name, count, self._post("/v1/translate", body)) for name, count, body in bodies),
            *(("complete", 1, complete), ("alternatives", 1, alternatives)),
            *(("stream", 1, self._stream), ("file", 1, self._file)),
        ]
        clients = [self._run_client(name, exchange) for name, count, exchange in exchanges for _ in range(count)]
        await asyncio.gather(*clients, self.run_hostile())

    async def run_hostile(self) -> None:
        """Run only the hostile clients until the end."""
        broken = (self._leave, self._leave_in_body, self._garbage, self._huge, self._invalid, self._slow)
        greedy = (self._dots, self._many, self._wide)
        await asyncio.gather(*(self._run_hostile_client(act) for act in (*broken, *greedy)))

    async def _run_client(self, name: str, exchange: Exchange) -> None:
        with closing(Connection(self.port)) as connection:
            while time.monotonic() < self.end:
                try:
                    response = await exchange(connection)
                except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                    self.failures.append(f"{name}: {error!r}")
                    connection.close()
                    continue
                self.requests[name] += 1
                self._check_status(name, response, 200, 204)

    async def _run_hostile_client(self, act: Callable[[], Awaitable[str]]) -> None:
        while time.monotonic() < self.end:
            try:
                self.requests[await act()] += 1
            except (OSError, asyncio.IncompleteReadError):
                # The server may close a connection when it has read enough.
                self.requests["closed by the server"] += 1
            await asyncio.sleep(0.05)

    def _check_status(self, name: str, response: Response, *expected: int) -> str:
        """Record a failure if the status is not expected; return the name."""
        if response.status not in expected:
            self.failures.append(f"{name}: {response.status} {response.body[:200]!r}")
        return name

    def _random_text(self) -> str:
        return self.rng.choice(self.sentences)

    def _random_sentence(self) -> str:
        """Return a text without sentence-final punctuation, so that the server does not split it."""
        return self._random_text().replace(".", "").replace("!", "").replace("?", "").strip() or "a"

    def _post(self, path: str, body: Callable[[], dict[str, Any]]) -> Exchange:
        """Return a function that posts a new random body on each call."""
        return lambda connection: connection.request("POST", path, json.dumps(body()).encode())

    async def _stream(self, connection: Connection) -> Response:
        response = await self._post("/v1/translate", lambda: {"text": self._random_text(), "stream": True})(connection)
        if b'"type": "done"' not in response.body:
            self.failures.append(f"stream: {response.body[-200:]!r}")
        return response

    async def _file(self, connection: Connection) -> Response:
        text = "\n".join(self._random_text() for _ in range(40))
        boundary = "x" * 24
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
        body = f"{head}{text}\r\n--{boundary}--\r\n".encode()
        created = await connection.request("POST", "/v1/files", body, f"multipart/form-data; boundary={boundary}")
        if created.status != 202:
            return created
        path = f"/v1/files/{json.loads(created.body)['id']}"
        while json.loads((await connection.request("GET", path)).body)["state"] not in ("done", "failed"):
            await asyncio.sleep(0.2)
        result = await connection.request("GET", f"{path}/result")
        if result.status != 200 or result.body.count(b"\n") != 39:
            self.failures.append(f"file: {result.status}")
        return await connection.request("DELETE", path)

    async def _leave(self) -> str:
        """Send a request and disconnect without waiting for the response."""
        path = self.rng.choice(["/v1/translate", "/v1/translate", "/v1/complete"])
        fields = {"prefix": ""} if path.endswith("complete") else {"stream": self.rng.random() < 0.3}
        with closing(Connection(self.port)) as connection:
            await connection.send("POST", path, json.dumps({"text": self._random_sentence(), **fields}).encode())
            await asyncio.sleep(self.rng.random() * 0.1)
        return "disconnected"

    async def _leave_in_body(self) -> str:
        """Disconnect in the middle of a body."""
        await self._send_partial_body(900, b'{"text": "a')
        return "disconnected in a body"

    async def _garbage(self) -> str:
        return await self._send_rejected("garbage", bytes(self.rng.randrange(256) for _ in range(200)), 400)

    async def _invalid(self) -> str:
        return await self._send_rejected("invalid UTF-8", b'{"text": "caf\xe9 \xff"}', 400)

    async def _slow(self) -> str:
        """Send a header that never ends, one byte at a time."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with suppress(OSError):
            for byte in b"GET / HTTP/1.1\r\nHost: loc":
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.2)
        writer.close()
        return "slow"

    async def _dots(self) -> str:
        """Send a text that is hard to split into sentences."""
        text = self.rng.choice([".", "1. ", '."', "\n"]) * 49_000
        return await self._send_expensive("dots", {"text": text[:49_000]})

    async def _many(self) -> str:
        """Send the maximum number of texts per request."""
        return await self._send_expensive("many texts", {"text": ["a"] * 49_000})

    async def _wide(self) -> str:
        """Send the longest sentence with the largest beam."""
        words = " ".join(self._random_sentence() for _ in range(60))
        fields = {"text": words[:1500], "beam": 20, "n_best": 20, "attention": True}
        return await self._send_expensive("large beam", fields)

    async def _send_expensive(self, name: str, fields: dict[str, Any]) -> str:
        """Send an expensive request and wait. A partial response, a timeout and a rejection are all acceptable."""
        with closing(Connection(self.port)) as connection:
            response = await connection.request("POST", "/v1/translate", json.dumps(fields).encode())
            return self._check_status(name, response, 200, 400, 413, 503, 504)

    async def _huge(self) -> str:
        """Announce a body that is too large.

        Either all of it is sent, and the server may close the connection before that, or only its start is sent and the
        response is read.
        """
        if self.rng.random() < 0.5:
            return await self._send_rejected("huge", b"x" * (11 << 20), 413)
        status_line = await self._send_partial_body(11 << 20, b"x" * 1000, read_status=True)
        return self._check_status("huge", Response(int(status_line.split(b" ")[1]), status_line), 413)

    async def _send_rejected(self, name: str, body: bytes, status: int) -> str:
        with closing(Connection(self.port)) as connection:
            return self._check_status(name, await connection.request("POST", "/v1/translate", body), status)

    async def _send_partial_body(self, length: int, start: bytes, read_status: bool = False) -> bytes:
        """Send the start of a body of this length; return the status line if it is to be read."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"POST /v1/translate HTTP/1.1\r\n{HOST}Content-Length: {length}\r\n\r\n".encode() + start)
        await writer.drain()
        status_line = await reader.readline() if read_status else b""
        writer.close()
        return status_line
