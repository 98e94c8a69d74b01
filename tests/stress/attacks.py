"""Hostile clients, each of one type: `python -m tests.stress.attacks TYPE PORT KEY SECONDS`.

`hostile_clients` runs it in a process per type, and reads its counts of responses and its failures from standard
output as JSON. The clients have another address than honest ones (127.0.0.2, on Linux). Imports only the standard
library, so that it starts fast.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

LOCAL_ADDRESS = ("127.0.0.2", 0) if sys.platform == "linux" else None
PO_BYTES = 8 << 20
ACCEPTABLE = frozenset({200, 202, 204, 400, 403, 408, 413, 429, 503, 504})
"""Statuses of responses to hostile requests."""

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Attacker:
    """Hostile clients of one process."""

    port: int
    key: str
    responses: Counter[str] = field(default_factory=Counter)
    """Numbers of responses by status, and of what was sent; "none" if a connection was closed without a response."""
    failures: list[str] = field(default_factory=list)
    """Responses that no request may get."""
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Stream]:
        """Open a connection, and abort it at the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=LOCAL_ADDRESS)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def request(self, method: str, path: str, body: bytes = b"", headers: str = "", key: str = "") -> bytes:
        """Return a request with the attacker's key or another one."""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key or self.key}\r\n{headers}"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def post(self, path: str, fields: dict[str, Any], key: str = "") -> bytes:
        """Return a request with a JSON body."""
        return self.request("POST", path, json.dumps(fields).encode(), "Content-Type: application/json\r\n", key)

    async def exchange(self, request: bytes, half_close: bool = False) -> tuple[int, bytes]:
        """Send a request and return the status and the body of its response; 0 if there is none."""
        async with self.connection() as (reader, writer):
            self.responses["sent"] += 1
            try:
                writer.write(request)
                if half_close:
                    writer.write_eof()
                return await self._receive(reader)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                self.responses["none"] += 1
                return 0, b""

    async def _receive(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        status = 100
        while status == 100:  # an interim response
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            status = int(head.split(" ")[1])
        self.responses[str(status)] += 1
        length = next((line[15:] for line in head.split("\r\n") if line.startswith("content-length:")), "0")
        body = await reader.readexactly(int(length))
        if status not in ACCEPTABLE:
            self.failures.append(f"{status} {body[:200]!r}")
        return status, body

    # The types of clients. Each function is called again when it returns.

    async def not_reading(self) -> None:
        """Request large responses and never read them."""
        sending = socket.socket()
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sending.setblocking(False)
        if LOCAL_ADDRESS is not None:
            sending.bind(LOCAL_ADDRESS)
        with sending:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sending, ("127.0.0.1", self.port))
            requests = self.request("GET", "/openapi.json") * 20 + self.post("/v1/translate", self.large_fields())
            await loop.sock_sendall(sending, requests)
            self.responses["not read"] += 1
            await asyncio.sleep(60)

    async def pipelining(self) -> None:
        """Send requests without waiting for the responses, which are read and dropped."""
        async with self.connection() as (reader, writer):
            block = self.post("/v1/translate", {"text": "the dog"}) * 200
            while not reader.at_eof():
                writer.write(block)
                self.responses["not counted"] += 200
                received = asyncio.ensure_future(reader.read(1 << 16))
                await writer.drain()
                await received

    async def idle_connections(self) -> None:
        """Open a connection and send nothing, until the server closes it."""
        async with self.connection() as (reader, _):
            self.responses["opened"] += 1
            await reader.read(1000)
            await asyncio.sleep(0.1)

    async def slow_heads(self) -> None:
        """Send the head of a request byte by byte."""
        await self._send_slowly(self.request("GET", "/health", headers="X-Long: " + "a" * 1000 + "\r\n"))

    async def slow_bodies(self) -> None:
        """Send the body of a request byte by byte."""
        head, _, body = self.post("/v1/translate", {"text": "a " * 1000}).partition(b"\r\n\r\n")
        await self._send_slowly(body, head + b"\r\n\r\n")

    async def _send_slowly(self, content: bytes, start: bytes = b"") -> None:
        async with self.connection() as (reader, writer):
            writer.write(start)
            self.responses["opened"] += 1
            for byte in content:
                if reader.at_eof() or writer.is_closing():
                    return
                writer.write(bytes([byte]))
                await asyncio.sleep(0.2)

    async def large_heads(self) -> None:
        """Send a head that is larger than the limit in one piece."""
        headers = "".join(f"X-{n}: {'a' * 900}\r\n" for n in range(78))
        await self.exchange(self.request("GET", "/health", headers=headers))

    async def wrong_keys(self) -> None:
        """Try API keys on one connection."""
        async with self.connection() as (reader, writer):
            while True:
                key = f"guess{self.rng.randrange(10**9)}"
                writer.write(self.post("/v1/translate", {"text": "the dog"}, key))
                status, _ = await self._receive(reader)
                if status not in (403, 429):
                    self.failures.append(f"{status} to a wrong key")

    async def uploads(self) -> None:
        """Upload a large catalogue, and remove it when it has been read."""
        status, body = await self.exchange(self.upload)
        if status == 202:
            await self.exchange(self.request("DELETE", f"/v1/files/{json.loads(body)['id']}"))
        else:
            await asyncio.sleep(0.2)

    async def large_responses(self) -> None:
        """Request the longest list of translations of a long sentence, with attention."""
        await self.exchange(self.post("/v1/translate", self.large_fields()))

    async def unclosed_tags(self) -> None:
        """Send text that is all tags without an end."""
        text = self.rng.choice(["<a ", "<a", "<!--", '<a b="', "<b>"])
        fields = {"q": (text * 20_000)[:49_000], "source": "en", "target": "de", "format": "html"}
        await self.exchange(self.post("/translate", fields))

    async def half_closed(self) -> None:
        """Close the sending direction after a request; the response must arrive."""
        request = self.post("/v1/translate", {"text": "the dog sees the cat"})
        status, _ = await self.exchange(request, half_close=True)
        if status != 200:
            self.failures.append(f"{status or 'no response'} to a half-closed connection")

    async def disconnecting(self) -> None:
        """Disconnect before the response."""
        async with self.connection() as (_, writer):
            writer.write(self.post("/v1/translate", {"text": "the dog sees the cat " * 20}))
            await writer.drain()
            self.responses["not awaited"] += 1
            await asyncio.sleep(0.1 * self.rng.random())

    async def garbage(self) -> None:
        """Send random bytes."""
        await self.exchange(self.rng.randbytes(200) + b"\r\n\r\n")

    @staticmethod
    def large_fields() -> dict[str, Any]:
        """Return a request with a large response."""
        return {"text": "the dog sees a big bird " * 60, "beam": 20, "n_best": 20, "attention": True}

    @cached_property
    def upload(self) -> bytes:
        """A request that uploads a catalogue."""
        entries = [b'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n']
        size = 0
        while size < PO_BYTES:
            entries.append(b'\n#: a.c:%d\nmsgid "the dog sees a big bird %d"\nmsgstr ""\n' % (len(entries), size))
            size += len(entries[-1])
        start = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.po"\r\n\r\n'
        end = b'\r\n--x\r\nContent-Disposition: form-data; name="target"\r\n\r\nde\r\n--x--\r\n'
        content_type = "Content-Type: multipart/form-data; boundary=x\r\n"
        return self.request("POST", "/v1/files", start + b"".join(entries) + end, content_type)


ATTACKS: dict[str, tuple[Callable[[Attacker], Awaitable[None]], int]] = {
    "not reading": (Attacker.not_reading, 32),
    "pipelining": (Attacker.pipelining, 20),
    "idle connections": (Attacker.idle_connections, 600),
    "slow heads": (Attacker.slow_heads, 64),
    "slow bodies": (Attacker.slow_bodies, 64),
    "large heads": (Attacker.large_heads, 4),
    "wrong keys": (Attacker.wrong_keys, 4),
    "uploads": (Attacker.uploads, 2),
    "large responses": (Attacker.large_responses, 4),
    "unclosed tags": (Attacker.unclosed_tags, 4),
    "half-closed": (Attacker.half_closed, 8),
    "disconnecting": (Attacker.disconnecting, 8),
    "garbage": (Attacker.garbage, 4),
}
"""Client and number of clients at the same time, by type."""


async def attack(attacker: Attacker, name: str, seconds: float) -> None:
    """Run the clients of a type for some seconds."""
    act, num_clients = ATTACKS[name]
    if name == "uploads":
        _ = attacker.upload  # made before the start

    async def repeat() -> None:
        while True:
            try:
                await act(attacker)
            except (OSError, asyncio.IncompleteReadError):
                attacker.responses["none"] += 1
                await asyncio.sleep(0.05)

    sys.stdout.write("started\n")
    sys.stdout.flush()
    clients = [asyncio.ensure_future(repeat()) for _ in range(num_clients)]
    done, _ = await asyncio.wait(clients, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for client in clients:
        client.cancel()
    for client in done:
        client.result()  # raises an error of a client itself


def main() -> None:
    """Run the clients of a type and print what happened."""
    name, port, key, seconds = sys.argv[1:]
    attacker = Attacker(int(port), key)
    start = time.monotonic()
    asyncio.run(attack(attacker, name, float(seconds)))
    result = {"responses": attacker.responses, "failures": attacker.failures, "seconds": time.monotonic() - start}
    sys.stdout.write(f"{json.dumps(result)}\n")


if __name__ == "__main__":
    main()
