"""Clients for `serving.py`: a minimal HTTP client over kept connections, and load that is measured or rude."""

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

    async def send(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> None:
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"{method} {path} HTTP/1.1\r\n{HOST}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
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


Times = list[tuple[float, int]]
"""Seconds to the answer and number of the sentence, of each request."""


async def measure(port: int, sentences: Sequence[str], clients: int, seconds: float) -> tuple[Times, int]:
    """`clients` ask for one sentence after another for so long: the times of what was answered in that time, and how
    many were asked in all. A first part of the time warms everything up and is not counted."""
    bodies = [json.dumps({"text": sentence}).encode() for sentence in sentences]
    rows: Times = []
    begin = time.perf_counter() + min(5.0, 0.25 * seconds)
    end = begin + seconds
    turn = 0

    async def client() -> None:
        nonlocal turn
        with closing(Connection(port)) as connection:
            while (start := time.perf_counter()) < end:
                number = turn % len(sentences)
                turn += 1
                answer = await connection.ask("POST", "/v1/translate", bodies[number])
                now = time.perf_counter()
                if answer.status != 200:
                    raise RuntimeError(f"the server answered {answer.status}: {answer.body[:200]!r}")
                if begin <= now <= end:
                    rows.append((now - start, number))

    await asyncio.gather(*(client() for _ in range(clients)))
    return rows, turn


Ask = Callable[[Connection], Awaitable[Answer]]


@dataclass
class Soak:
    """Mixed load: what polite clients asked and got, what rude ones did."""

    port: int
    sentences: Sequence[str]
    until: float
    """As `time.monotonic` tells it."""
    draw: random.Random = field(default_factory=lambda: random.Random(1))
    asked: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """All clients until the time is over."""
        some, first, draw = self._some, self._first, self.draw
        texts: list[tuple[str, int, Callable[[], dict[str, Any]]]] = [
            ("sentence", 6, lambda: {"text": some(), "attention": True, "n_best": 2}),
            ("paragraph", 2, lambda: {"text": "\n\n".join(some() for _ in range(draw.randrange(1, 8)))}),
            ("html", 1, lambda: {"text": [f"<p>{some()}</p><b>{some()}</b>", some()]}),
        ]
        prefixes = ("", "D", "Ein M", "Zwei ", "x")
        complete = self._json("/v1/complete", lambda: {"text": first(), "prefix": draw.choice(prefixes)})
        word = {"translation": "Ein Mann geht."}
        alternatives = self._json("/v1/alternatives", lambda: {"text": first(), **word, "word": draw.randrange(3)})
        polite: list[tuple[str, int, Ask]] = [
            *((name, count, self._json("/v1/translate", row)) for name, count, row in texts),
            *(("complete", 1, complete), ("alternatives", 1, alternatives)),
            *(("stream", 1, self._stream), ("file", 1, self._file)),
        ]
        clients = [self._polite(name, ask) for name, count, ask in polite for _ in range(count)]
        await asyncio.gather(*clients, self.rude())

    async def rude(self) -> None:
        """The rude clients alone, until the time is over."""
        broken = (self._leave, self._half, self._garbage, self._huge, self._invalid, self._slow)
        greedy = (self._dots, self._many, self._wide)
        await asyncio.gather(*(self._rude(act) for act in (*broken, *greedy)))

    async def _polite(self, name: str, ask: Ask) -> None:
        with closing(Connection(self.port)) as connection:
            while time.monotonic() < self.until:
                try:
                    answer = await ask(connection)
                except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                    self.faults.append(f"{name}: {error!r}")
                    connection.close()
                    continue
                self.asked[name] += 1
                self._hold(name, answer, 200, 204)

    async def _rude(self, act: Callable[[], Awaitable[str]]) -> None:
        while time.monotonic() < self.until:
            try:
                self.asked[await act()] += 1
            except (OSError, asyncio.IncompleteReadError):
                # The server may close a connection of which it has read enough.
                self.asked["closed on"] += 1
            await asyncio.sleep(0.05)

    def _hold(self, name: str, answer: Answer, *expected: int) -> str:
        """An answer with another status is a fault."""
        if answer.status not in expected:
            self.faults.append(f"{name}: {answer.status} {answer.body[:200]!r}")
        return name

    def _some(self) -> str:
        return self.draw.choice(self.sentences)

    def _first(self) -> str:
        """One sentence."""
        return self._some().replace(".", "").replace("!", "").replace("?", "").strip() or "a"

    def _json(self, path: str, row: Callable[[], dict[str, Any]]) -> Ask:
        """Asks for what `row` draws anew each time."""
        return lambda connection: connection.ask("POST", path, json.dumps(row()).encode())

    async def _stream(self, connection: Connection) -> Answer:
        answer = await self._json("/v1/translate", lambda: {"text": self._some(), "stream": True})(connection)
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
        path = f"/v1/files/{json.loads(sent.body)['id']}"
        while json.loads((await connection.ask("GET", path)).body)["state"] not in ("done", "failed"):
            await asyncio.sleep(0.2)
        result = await connection.ask("GET", f"{path}/result")
        if result.status != 200 or result.body.count(b"\n") != 39:
            self.faults.append(f"file: {result.status}")
        return await connection.ask("DELETE", path)

    async def _leave(self) -> str:
        """Ask, and go without waiting."""
        path = self.draw.choice(["/v1/translate", "/v1/translate", "/v1/complete"])
        more = {"prefix": ""} if path.endswith("complete") else {"stream": self.draw.random() < 0.3}
        with closing(Connection(self.port)) as connection:
            await connection.send("POST", path, json.dumps({"text": self._first(), **more}).encode())
            await asyncio.sleep(self.draw.random() * 0.1)
        return "left"

    async def _half(self) -> str:
        """Leave in the middle of a body."""
        await self._cut(900, b'{"text": "a')
        return "left in a body"

    async def _garbage(self) -> str:
        return await self._refused("garbage", bytes(self.draw.randrange(256) for _ in range(200)), 400)

    async def _invalid(self) -> str:
        return await self._refused("invalid UTF-8", b'{"text": "caf\xe9 \xff"}', 400)

    async def _slow(self) -> str:
        """A head that never ends, a byte at a time."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with suppress(OSError):
            for byte in b"GET / HTTP/1.1\r\nHost: loc":
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.2)
        writer.close()
        return "slow"

    async def _dots(self) -> str:
        """A text that is hard to split into sentences."""
        text = self.draw.choice([".", "1. ", '."', "\n"]) * 49_000
        return await self._greedy("dots", {"text": text[:49_000]})

    async def _many(self) -> str:
        """As many texts as a request may have."""
        return await self._greedy("many texts", {"text": ["a"] * 49_000})

    async def _wide(self) -> str:
        """The longest sentences with the widest beam."""
        words = " ".join(self._first() for _ in range(60))
        return await self._greedy("wide", {"text": words[:1500], "beam": 20, "n_best": 20, "attention": True})

    async def _greedy(self, name: str, row: dict[str, Any]) -> str:
        """Ask for more than a fair share, and wait for it: a part of it, a time-out or a refusal is as good."""
        with closing(Connection(self.port)) as connection:
            answer = await connection.ask("POST", "/v1/translate", json.dumps(row).encode())
            return self._hold(name, answer, 200, 400, 413, 503, 504)

    async def _huge(self) -> str:
        """A body that is too large: all of it, whose sender may find the connection closed, or its beginning, whose
        sender reads the answer."""
        if self.draw.random() < 0.5:
            return await self._refused("huge", b"x" * (11 << 20), 413)
        first = await self._cut(11 << 20, b"x" * 1000, answered=True)
        return self._hold("huge", Answer(int(first.split(b" ")[1]), first), 413)

    async def _refused(self, name: str, body: bytes, status: int) -> str:
        with closing(Connection(self.port)) as connection:
            return self._hold(name, await connection.ask("POST", "/v1/translate", body), status)

    async def _cut(self, length: int, begun: bytes, answered: bool = False) -> bytes:
        """Send the beginning of a body of so many bytes; the answer's first line, if it is waited for."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"POST /v1/translate HTTP/1.1\r\n{HOST}Content-Length: {length}\r\n\r\n".encode() + begun)
        await writer.drain()
        first = await reader.readline() if answered else b""
        writer.close()
        return first
