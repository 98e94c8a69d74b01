"""Clients for `serving.py`: a minimal HTTP client over kept connections, and load that is measured or rude."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes


class Connection:
    """One kept connection. Opens again where the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> Answer:
        """A request and its whole answer. Errors: ConnectionError, IncompleteReadError where there is none."""
        await self.send(method, path, body, kind)
        return await self.answer()

    async def send(self, method: str, path: str, body: bytes, kind: str) -> None:
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"{method} {path} HTTP/1.1\r\nHost: t\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def answer(self) -> Answer:
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body = await self._chunks()
        else:
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            self.close()
        return Answer(int(first.split(" ")[1]), body)

    async def _chunks(self) -> bytes:
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


def measure(port: int, sentences: Sequence[str], clients: int, seconds: float) -> tuple[list[tuple[float, int]], int]:
    """`clients` ask for one sentence after another for so long: (seconds to the answer, sentence) of each request that
    was answered in that time, and how many were asked in all.

    A first part of the time warms everything up and is not counted.
    """
    return asyncio.run(_measure(port, sentences, clients, seconds))


async def _measure(
    port: int, sentences: Sequence[str], clients: int, seconds: float
) -> tuple[list[tuple[float, int]], int]:
    bodies = [json.dumps({"text": sentence}).encode() for sentence in sentences]
    rows: list[tuple[float, int]] = []
    begin = time.perf_counter() + min(5.0, 0.25 * seconds)
    end = begin + seconds
    turn = 0

    async def client() -> None:
        nonlocal turn
        connection = Connection(port)
        while (start := time.perf_counter()) < end:
            number = turn % len(sentences)
            turn += 1
            answer = await connection.ask("POST", "/v1/translate", bodies[number])
            now = time.perf_counter()
            if answer.status != 200:
                raise RuntimeError(f"the server answered {answer.status}: {answer.body[:200]!r}")
            if begin <= now <= end:
                rows.append((now - start, number))
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return rows, turn


@dataclass
class Soak:
    """Mixed load: what polite clients asked and got, what rude ones did."""

    port: int
    sentences: Sequence[str]
    until: float
    """As `time.monotonic` tells it."""
    draw: random.Random = field(default_factory=lambda: random.Random(1))
    asked: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """All clients until the time is over."""
        polite: list[tuple[str, Callable[[Connection], Awaitable[Answer]], int]] = [
            ("sentence", self._sentence, 6),
            ("paragraph", self._paragraph, 2),
            ("html", self._html, 1),
            ("complete", self._complete, 1),
            ("alternatives", self._alternatives, 1),
            ("stream", self._stream, 1),
            ("file", self._file, 1),
        ]
        rude = [self._leave, self._half, self._garbage, self._huge, self._invalid]
        clients = [self._polite(name, ask) for name, ask, count in polite for _ in range(count)]
        await asyncio.gather(*clients, *(self._rude(act) for act in rude))

    async def _polite(self, name: str, ask: Callable[[Connection], Awaitable[Answer]]) -> None:
        connection = Connection(self.port)
        while time.monotonic() < self.until:
            try:
                answer = await ask(connection)
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                self.faults.append(f"{name}: {error!r}")
                connection.close()
                continue
            self.asked[name] = self.asked.get(name, 0) + 1
            if answer.status not in (200, 204):
                self.faults.append(f"{name}: {answer.status} {answer.body[:200]!r}")
        connection.close()

    async def _rude(self, act: Callable[[], Awaitable[str]]) -> None:
        while time.monotonic() < self.until:
            try:
                name = await act()
                self.asked[name] = self.asked.get(name, 0) + 1
            except (OSError, asyncio.IncompleteReadError):
                # The server may close a connection of which it has read enough.
                self.asked["closed on"] = self.asked.get("closed on", 0) + 1
            await asyncio.sleep(0.05)

    def _some(self) -> str:
        return self.draw.choice(self.sentences)

    async def _json(self, connection: Connection, path: str, row: dict[str, Any]) -> Answer:
        return await connection.ask("POST", path, json.dumps(row).encode())

    async def _sentence(self, connection: Connection) -> Answer:
        return await self._json(connection, "/v1/translate", {"text": self._some(), "attention": True, "n_best": 2})

    async def _paragraph(self, connection: Connection) -> Answer:
        text = "\n\n".join(self._some() for _ in range(self.draw.randrange(1, 8)))
        return await self._json(connection, "/v1/translate", {"text": text})

    async def _html(self, connection: Connection) -> Answer:
        text = f"<p>{self._some()}</p><b>{self._some()}</b>"
        return await self._json(connection, "/v1/translate", {"text": [text, self._some()]})

    async def _complete(self, connection: Connection) -> Answer:
        prefix = self.draw.choice(["", "D", "Ein M", "Zwei ", "x"])
        return await self._json(connection, "/v1/complete", {"text": self._first(), "prefix": prefix})

    async def _alternatives(self, connection: Connection) -> Answer:
        row = {"text": self._first(), "translation": "Ein Mann geht.", "word": self.draw.randrange(3)}
        return await self._json(connection, "/v1/alternatives", row)

    def _first(self) -> str:
        return self._some().replace(".", "").replace("!", "").replace("?", "").strip() or "a"

    async def _stream(self, connection: Connection) -> Answer:
        answer = await self._json(connection, "/v1/translate", {"text": self._some(), "stream": True})
        if b'"type": "done"' not in answer.body:
            self.faults.append(f"stream: {answer.body[-200:]!r}")
        return answer

    async def _file(self, connection: Connection) -> Answer:
        text = "\n".join(self._some() for _ in range(40))
        mark = "x" * 24
        head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
        body = f"{head}{text}\r\n--{mark}--\r\n".encode()
        sent = await connection.ask("POST", "/v1/files", body, f"multipart/form-data; boundary={mark}")
        if sent.status != 202:
            return sent
        id = json.loads(sent.body)["id"]
        while json.loads((await connection.ask("GET", f"/v1/files/{id}")).body)["state"] not in ("done", "failed"):
            await asyncio.sleep(0.2)
        result = await connection.ask("GET", f"/v1/files/{id}/result")
        if result.status != 200 or result.body.count(b"\n") != 39:
            self.faults.append(f"file: {result.status}")
        return await connection.ask("DELETE", f"/v1/files/{id}")

    async def _leave(self) -> str:
        """Ask, and go without waiting."""
        connection = Connection(self.port)
        path = self.draw.choice(["/v1/translate", "/v1/translate", "/v1/complete"])
        more = {"prefix": ""} if path.endswith("complete") else {"stream": self.draw.random() < 0.3}
        row = {"text": self._first(), **more}
        await connection.send("POST", path, json.dumps(row).encode(), "application/json")
        await asyncio.sleep(self.draw.random() * 0.1)
        connection.close()
        return "left"

    async def _half(self) -> str:
        """Leave in the middle of a body."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b'POST /v1/translate HTTP/1.1\r\nHost: t\r\nContent-Length: 900\r\n\r\n{"text": "a')
        await writer.drain()
        writer.close()
        return "left in a body"

    async def _garbage(self) -> str:
        connection = Connection(self.port)
        body = bytes(self.draw.randrange(256) for _ in range(200))
        answer = await connection.ask("POST", "/v1/translate", body)
        connection.close()
        return self._refused("garbage", answer, 400)

    async def _huge(self) -> str:
        """A body that is too large: all of it, whose sender may find the connection closed, or its beginning, whose
        sender reads the answer."""
        if self.draw.random() < 0.5:
            connection = Connection(self.port)
            answer = await connection.ask("POST", "/v1/translate", b"x" * (11 << 20))
            connection.close()
            return self._refused("huge", answer, 413)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"POST /v1/translate HTTP/1.1\r\nHost: t\r\nContent-Length: 11534336\r\n\r\n" + b"x" * 1000)
        first = await reader.readline()
        writer.close()
        return self._refused("huge", Answer(int(first.split(b" ")[1]), first), 413)

    async def _invalid(self) -> str:
        connection = Connection(self.port)
        answer = await connection.ask("POST", "/v1/translate", b'{"text": "caf\xe9 \xff"}')
        connection.close()
        return self._refused("invalid UTF-8", answer, 400)

    def _refused(self, name: str, answer: Answer, status: int) -> str:
        if answer.status != status:
            self.faults.append(f"{name}: {answer.status} {answer.body[:200]!r}")
        return name
