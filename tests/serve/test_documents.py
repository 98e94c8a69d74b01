"""Reading and filling of uploaded files in processes with limits."""

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rnnsearch.errors import DataError
from rnnsearch.serve import documents
from rnnsearch.serve.documents import FileReader
from rnnsearch.serve.limits import ServeError
from rnnsearch.text.documents import process as document_process
from rnnsearch.text.documents.packed import PackedTexts
from rnnsearch.text.documents.process import ParsedFile

DIRECTIONS = [("en", "de"), ("fr", "de")]
PO = b'msgid "a <b>dog</b> %s"\nmsgstr ""\n\n#, no-c-format\nmsgid "100% of \xc3\xa9"\nmsgstr ""\n'
TMX = b'<tmx version="1.4"><body><tu><tuv xml:lang="fr"><seg>le chat</seg></tuv></tu></body></tmx>'


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files of any size in processes."""
    monkeypatch.setattr(documents, "MAX_INLINE_BYTES", -1)


def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each process is added that starts from here on."""
    processes: list[Any] = []
    start = documents._start

    def observed_start(num_bytes: int) -> Any:
        processes.append(start(num_bytes))
        return processes[-1]

    monkeypatch.setattr(documents, "_start", observed_start)
    return processes


def with_limits(monkeypatch: pytest.MonkeyPatch, **limits: object) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(documents, name, value)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def slow_file() -> bytes:
    """Return a file that takes many seconds to read."""
    return b"<b>" * 1_000_000


def test_packed_texts_are_those_that_were_packed():
    texts = ["", "a", "é\u2028\ud800", "", "long " * 100]
    packed = PackedTexts(texts[:2])
    packed.extend(texts[2:])
    copy = PackedTexts.from_blocks(*packed.to_blocks())
    assert (len(copy), copy.unpack(), copy.unpack(1, 3), copy.unpack(4, 9)) == (5, texts, texts[1:3], texts[4:])
    assert copy.num_bytes == 1 + 8 + 500


@pytest.mark.parametrize(("name", "content"), [("a.po", PO), ("a.tmx", TMX)])
def test_process_and_thread_have_equal_results(monkeypatch, name, content):
    async def read_and_fill() -> tuple[ParsedFile, bytes]:
        reader = FileReader()
        parsed = await reader.parse(name, content, DIRECTIONS, "a")
        return parsed, await reader.fill(parsed, PackedTexts(["<x> & y"] * len(parsed.segments)), "a")

    parsed, result = asyncio.run(read_and_fill())
    monkeypatch.setattr(documents, "MAX_INLINE_BYTES", -1)
    processes = started(monkeypatch)
    same, same_result = asyncio.run(read_and_fill())
    assert len(processes) == 2
    assert all(process.returncode is not None for process in processes)
    assert same_result == result
    assert same.segments.unpack() == parsed.segments.unpack()
    assert same.segment_grammars(0, 9) == parsed.segment_grammars(0, 9)
    assert (same.direction, same.tags, same.is_bilingual) == (parsed.direction, parsed.tags, parsed.is_bilingual)


@pytest.mark.usefixtures("in_processes")
def test_file_that_cannot_be_read_has_the_message_of_its_format():
    with pytest.raises(DataError, match=r"^a\.txt:2: must be UTF-8; got byte 0xff$"):
        asyncio.run(FileReader().parse("a.txt", b"a\n\xff", DIRECTIONS, "a"))


@pytest.mark.parametrize(
    ("limits", "content", "status"),
    [
        ({"MAX_SECONDS": 0.5}, slow_file(), 413),
        ({"MAX_CPU_SECONDS": 1}, slow_file(), 413),
        ({"MEMORY_BYTES_PER_BYTE": 0, "BASE_MEMORY_BYTES": 300 << 20}, slow_file(), 413),
        ({"MAX_RESPONSE_BYTES": 1000}, b"a " * 20_000, 413),
        ({"MAX_CPU_SECONDS": "none"}, b"a " * 20_000, 503),  # the process fails
    ],
    ids=["time", "processor time", "memory", "response", "failure"],
)
def test_limits_of_process(monkeypatch, limits, content, status):
    with_limits(monkeypatch, **limits)
    with pytest.raises(ServeError) as error:
        asyncio.run(FileReader().parse("a.html", content, DIRECTIONS, "a"))
    assert error.value.status == status


def test_killed_process_affects_only_its_client(monkeypatch):
    processes = started(monkeypatch)

    async def kill_one_of_two() -> None:
        reader = FileReader()
        killed = asyncio.create_task(reader.parse("a.html", slow_file(), DIRECTIONS, "a"))
        await wait_until(lambda: len(processes) == 1)
        second = asyncio.create_task(reader.parse("b.txt", b"the dog\n" * 5000, DIRECTIONS, "b"))
        await wait_until(lambda: len(processes) == 2)
        processes[0].kill()
        with pytest.raises(ServeError, match="the process of the file has ended unexpectedly") as error:
            await killed
        assert error.value.status == 503
        assert len((await second).segments) == 5000
        assert len((await reader.parse("c.txt", b"the dog\n" * 5000, DIRECTIONS, "a")).segments) == 5000
        assert not reader._processes

    asyncio.run(kill_one_of_two())


def test_client_has_one_process_and_cancellation_ends_it(monkeypatch):
    processes = started(monkeypatch)

    async def cancel() -> None:
        reader = FileReader()
        parses = [asyncio.create_task(reader.parse("a.html", slow_file(), DIRECTIONS, "a")) for _ in range(2)]
        await wait_until(lambda: len(processes) == 1)
        await asyncio.sleep(0.1)
        assert len(processes) == 1
        parses[1].cancel()
        parses[0].cancel()
        await asyncio.wait(parses)
        await wait_until(lambda: processes[0].poll() is not None)
        parses.clear()
        gc.collect()  # the tasks' exceptions refer to their frames
        assert not reader._client_turns

    asyncio.run(cancel())


def test_event_loop_continues_while_a_large_file_is_read():
    """Test by the processor time of this process, which does not depend on other processes."""
    content = PO * 8000

    async def read() -> float:
        start = time.process_time()
        parsed = await FileReader().parse("a.po", content, DIRECTIONS[:1], "a")
        assert len(parsed.segments) == 2 * 8000
        return time.process_time() - start

    start = time.process_time()
    document_process.parse_file("a.po", content, DIRECTIONS[:1])
    assert asyncio.run(read()) < 0.3 * (time.process_time() - start)


PARENT = """
import asyncio, os
from rnnsearch.serve import documents
async def read():
    task = asyncio.create_task(documents.FileReader().parse("a.html", b"<b>" * 1_000_000, [("en", "de")], "a"))
    while not task.done():
        await asyncio.sleep(0.3)
        print(*(p.pid for p in processes), flush=True)
processes = []
start = documents._start
def observed(size):
    processes.append(start(size))
    return processes[-1]
documents._start = observed
asyncio.run(read())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_process_ends_with_its_parent_even_if_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = ""
        while not pid:
            pid = parent.stdout.readline().strip()
        assert b"rnnsearch.text.documents.process" in _command_line(pid)
        time.sleep(0.5)  # the file has arrived
        parent.kill()
    deadline = time.monotonic() + 20
    while b"rnnsearch" in _command_line(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _command_line(pid: str) -> bytes:
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""
