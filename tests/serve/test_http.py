"""What holds for every route: limits of size and time, faults of our own, metrics, logs, the API's own page."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rnnsearch.serve.http import create_app, observed
from rnnsearch.serve.limits import Settings
from rnnsearch.serve.logs import LOGGER, JsonFormatter
from rnnsearch.serve.registry import Registry
from rnnsearch.translate import Translator

Talk = Callable[..., Any]


def test_an_answer_that_takes_too_long_is_given_up(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        go.wait(20)
        raise RuntimeError("never wanted")

    async def conversation(http: httpx.AsyncClient) -> httpx.Response:
        monkeypatch.setattr(Translator, "n_best", slow)
        try:
            return await http.post("/v1/translate", json={"text": "the cat"})
        finally:
            go.set()

    response = talk(conversation, timeout=0.3)
    assert response.status_code == 504
    assert response.json() == {"error": "an answer must be ready in 0.3 seconds; it was not"}


def test_a_fault_of_our_own_is_a_sentence_and_is_logged(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    async def conversation(http: httpx.AsyncClient) -> list[httpx.Response]:
        monkeypatch.setattr(Translator, "n_best", broken)
        first = await http.post("/v1/translate", json={"text": "the cat"})
        monkeypatch.undo()
        return [first, await http.post("/v1/translate", json={"text": "the cat"})]

    first, second = talk(conversation)
    assert first.status_code == 500
    assert first.json() == {"error": "the server has met a fault of its own; its log says more"}
    assert "a bug" in caplog.text
    assert second.status_code == 200, "it goes on"


def test_a_damaged_model_is_said_to_be(folders: list[Path], talk: Talk) -> None:
    async def conversation(http: httpx.AsyncClient) -> httpx.Response:
        folder = folders[0]
        weights = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(weights[:100])
        try:
            return await http.post("/v1/translate", json={"text": "the cat"})
        finally:
            (folder / "model.safetensors").write_bytes(weights)

    response = talk(conversation)
    assert response.status_code == 503
    assert "is truncated or damaged" in response.json()["error"]


def test_a_body_that_is_too_large(talk: Talk) -> None:
    async def chunks() -> Any:
        for _ in range(30):
            yield b"x" * 100

    async def conversation(http: httpx.AsyncClient) -> list[httpx.Response]:
        declared = await http.post("/v1/translate", content=b"x" * 2000)
        counted = await http.post("/v1/translate", content=chunks())
        form = await http.post("/translate", data={"q": "x" * 2000, "target": "de"})
        return [declared, counted, form]

    for response in talk(conversation, max_body=1000):
        assert response.status_code == 413
        assert response.json() == {"error": "the body must have at most 1,000 bytes; got more"}


def test_metrics_count_requests_and_batches(folders: list[Path]) -> None:
    async def conversation() -> str:
        app = create_app(folders, Settings())
        transport = httpx.ASGITransport(app=observed(app))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://t") as http,
        ):
            await http.post("/v1/translate", json={"text": "the cat. The dog."})
            await http.get("/nobody/has/this")
            await http.post("/translate", json={"q": "a", "target": "xx"})
            return (await http.get("/metrics")).text

    text = asyncio.run(conversation())
    rows = dict(line.rpartition(" ")[::2] for line in text.splitlines() if not line.startswith("#"))
    assert rows['rnnsearch_requests_total{route="/v1/translate",status="200"}'] == "1.0"
    assert rows['rnnsearch_requests_total{route="/translate",status="400"}'] == "1.0"
    assert rows['rnnsearch_requests_total{route="other",status="404"}'] == "1.0"
    assert rows['rnnsearch_batch_sentences_sum{model="en-de"}'] == "2.0"
    assert rows["rnnsearch_loaded_models"] == "1.0"
    assert float(rows["process_resident_memory_bytes"]) > 1e6
    assert "nobody" not in text, "what a user makes up is no label"


def test_a_record_is_one_line_of_json() -> None:
    record = logging.LogRecord(LOGGER, logging.INFO, "", 0, "a\nb", (), None)
    record.fields = {"status": 200}
    line = JsonFormatter().format(record)
    assert "\n" not in line
    row = json.loads(line)
    assert (row["event"], row["status"], row["level"]) == ("a\nb", 200, "info")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["time"])


def test_models_unused_for_longest_leave_the_memory(folders: list[Path]) -> None:
    async def conversation() -> list[list[str]]:
        registry = Registry(folders, Settings(max_loaded=1))
        names = []
        for name in ("en-de", "de-en", "en-de"):
            async with registry.lease(registry.find(name)):
                pass
            names.append([served.about.name for served in registry.loaded])
        await registry.close()
        return names

    assert asyncio.run(conversation()) == [["en-de"], ["de-en"], ["en-de"]]


def test_the_apis_own_page_asks_nobody_else(talk: Talk) -> None:
    async def conversation(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [await http.get("/docs"), await http.get("/openapi.json")]

    page, document = talk(conversation)
    for path in document.json()["paths"]:
        assert path in page.text
    assert "//" not in re.sub(r"<!--.*?-->", "", page.text).replace("application/", "")
    assert "HTTPValidationError" not in document.text
    assert "422" not in document.json()["paths"]["/v1/translate"]["post"]["responses"]
