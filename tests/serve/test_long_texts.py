"""Parsing, splitting and filling of long texts in processes."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rnnsearch.serve import long_texts
from rnnsearch.serve.limits import ServeError
from rnnsearch.serve.long_texts import LongTexts
from rnnsearch.text.long_texts import Filling, Markup, ParsedText, fill, parse, split

LARGE = 10**6
SLOW_TEXT = "<b>" * 60_000
HTML = Markup("html")


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def run(function: Callable[[LongTexts], Any]) -> Any:
    """Return the result of a coroutine with `LongTexts`, whose processes end."""

    async def run_and_close() -> Any:
        texts = LongTexts(50_000)
        try:
            return await function(texts)
        finally:
            texts.close()

    return asyncio.run(run_and_close())


@pytest.mark.parametrize(
    "markup", [HTML, Markup("xml", ["i"], ["p"]), Markup("codes", ["i"], ["p"]), Markup("segment")], ids=str
)
def test_process_and_function_have_equal_results(markup):
    texts = ["<p>a <b>dog</b> \ud800 &amp; <i>x</i></p> Is it? Yes.", ""]
    parsed = parse(texts, markup)
    assert all(isinstance(text, ParsedText) for text in parsed)
    assert parsed[0].has_inline_tags
    spans = split(texts, "en")
    fillings: list[list[Filling]] = []
    for text in parsed:
        first = [(part.upper(), [(0, 0), (1, 1)]) for part in text.texts]
        fillings.append([first, [(f"x {part}", []) for part in text.texts]])
    filled = fill(texts, markup, fillings)
    assert filled[0][0] != filled[0][1]

    async def in_process(long: LongTexts) -> None:
        assert await long.parse(texts, markup, LARGE, "a") == parsed
        assert await long.split(texts, "en", LARGE, "a") == spans
        assert await long.fill(texts, markup, fillings, LARGE, "a") == filled
        assert len(long._idle) == 1, "one process has answered all requests"

    run(in_process)


def test_long_markup_takes_little_time_of_the_server(http):
    """Test by the processor time of this process, which does not depend on other processes."""
    body = {"q": "<b>" * 16_000 + "dog", "source": "en", "target": "de", "format": "html"}
    assert http.post("/translate", json=body).status_code == 200  # starts the process
    start = time.process_time()
    [parsed] = parse([body["q"]], HTML)
    fill([body["q"]], HTML, [[[(text, []) for text in parsed.texts]]])
    parse_seconds = time.process_time() - start
    start = time.process_time()
    response = http.post("/translate", json=body)
    seconds = time.process_time() - start
    assert response.json()["translatedText"].count("<b>") == 16_000
    assert seconds < 0.5 * parse_seconds


def test_killed_process_affects_only_its_request():
    async def kill_one_of_two(long: LongTexts) -> None:
        killed = asyncio.create_task(long.parse([SLOW_TEXT], HTML, LARGE, "a"))
        await wait_until(lambda: len(long._busy) == 1)
        [process] = long._busy
        other = asyncio.create_task(long.parse(["<p>a"], HTML, LARGE, "b"))
        process.kill()
        with pytest.raises(ServeError, match="the process of the text has ended unexpectedly") as error:
            await killed
        assert error.value.status == 503
        assert [text.texts for text in await other] == [["a"]]
        assert [text.texts for text in await long.parse(["<p>b"], HTML, LARGE, "a")] == [["b"]]
        assert process.returncode is not None
        assert not long._busy

    run(kill_one_of_two)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"MAX_SECONDS": 0.1}, SLOW_TEXT),
        ({"BASE_MEMORY_BYTES": 200 << 20, "MEMORY_BYTES_PER_CHARACTER": 0}, 5 * SLOW_TEXT),
        ({"MAX_RESPONSE_BYTES": 30}, "a"),
    ],
    ids=["time", "memory", "response"],
)
def test_limits_of_process(monkeypatch, limits, text):
    for name, value in limits.items():
        monkeypatch.setattr(long_texts, name, value)

    async def exceed(long: LongTexts) -> None:
        with pytest.raises(ServeError, match="takes too much time or memory") as error:
            await long.parse([text], HTML, LARGE, "a")
        assert error.value.status == 413
        assert not long._busy and not long._idle

    run(exceed)


def test_client_uses_one_process_which_continues_if_the_client_disconnects():
    async def disconnect(long: LongTexts) -> None:
        first = asyncio.create_task(long.parse([SLOW_TEXT], HTML, LARGE, "a"))
        await wait_until(lambda: len(long._busy) == 1)
        second = asyncio.create_task(long.parse(["<p>a"], HTML, LARGE, "a"))
        await asyncio.sleep(0.1)
        assert len(long._busy) == 1
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        [process] = long._busy
        assert [text.texts for text in await second] == [["a"]]
        assert long._idle == [process]
        assert not long._tasks

    run(disconnect)


def test_processes_end_with_the_application(serve):
    http = serve()
    long: LongTexts = http.app.state.service.registry.long_texts
    assert http.post("/translate", json={"q": "a<br>" * 500, "source": "en", "target": "de", "format": "html"})
    [process] = long._idle
    http.__exit__(None, None, None)
    assert process.returncode is not None


PARENT = """
import asyncio, time
from rnnsearch.serve.long_texts import LongTexts
from rnnsearch.text.long_texts import Markup
async def parse():
    texts = LongTexts(50_000)
    await texts.parse(["<p>a"], Markup("html"), 10**6, "a")
    print(texts._idle[0].pid, flush=True)
    time.sleep(60)
asyncio.run(parse())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_process_ends_with_its_parent_even_if_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        command_line = Path(f"/proc/{parent.stdout.readline().strip()}/cmdline")
        assert b"rnnsearch.text.long_texts" in command_line.read_bytes()
        parent.kill()
    deadline = time.monotonic() + 20
    while command_line.exists() and b"rnnsearch" in command_line.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)
