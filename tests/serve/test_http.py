"""All routes: API keys, limits of size and time, internal errors, metrics, the log and the API reference."""

import json
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rnnsearch.serve.app import create_app, observe
from rnnsearch.serve.limits import Settings
from rnnsearch.serve.observability import LOGGER_NAME, JsonFormatter
from rnnsearch.translator.translator import Translator

CAT = {"text": "the cat"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/detect", {"json": {"q": "the cat"}}),
        ("/suggest", {"json": {"q": "the cat", "s": "x", "source": "en", "target": "de"}}),
        ("/v1/complete", {"json": {**CAT, "prefix": ""}}),
        ("/v1/alternatives", {"json": {**CAT, "translation": "b", "word": 0}}),
        ("/v1/translate", {"json": CAT}),
        ("/v1/simultaneous", {"json": CAT}),
        ("/v1/files", {"data": {"model": "en-de"}, "files": {"file": ("a.txt", b"the cat")}}),
        ("/translate_file", {"data": {"target": "de", "api_key": "two"}, "files": {"file": ("a.txt", b"the cat")}}),
    ],
)
def test_routes_that_cause_work_require_a_key(serve, path, body):
    http = serve(api_keys=frozenset({"one"}))
    assert http.post(path, **body).status_code == 403
    if "data" in body:
        assert http.post("/translate_file", **body | {"data": {"target": "de", "api_key": "one"}}).status_code == 200


def test_request_is_abandoned_after_the_timeout(serve, monkeypatch):
    go = threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        go.wait(20)
        raise RuntimeError("nobody waits for this")

    monkeypatch.setattr(Translator, "n_best", slow)
    try:
        response = serve(timeout=0.3).post("/v1/translate", json=CAT)
    finally:
        go.set()
    assert response.status_code == 504
    assert response.json() == {"error": "the result must be ready within 0.3 seconds; it was not"}


def test_internal_error_is_logged_and_does_not_reveal_details(http, monkeypatch, caplog):
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(Translator, "n_best", broken)
        response = http.post("/v1/translate", json=CAT)
    assert response.status_code == 500
    assert response.json() == {"error": "internal error of the server; see its log"}
    assert "a bug" in caplog.text
    assert http.post("/v1/translate", json=CAT).status_code == 200, "the server still works"


def test_damaged_model_gets_503(folders, http):
    weights = folders[0] / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:100])
    try:
        response = http.post("/v1/translate", json=CAT)
    finally:
        weights.write_bytes(content)
    assert response.status_code == 503
    assert response.json()["error"] == "the model en-de cannot be loaded; see the server's log"


def test_too_large_bodies_are_rejected(serve):
    def chunks() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * 100

    http = serve(max_body=1000)
    declared = http.post("/v1/translate", content=b"x" * 2000)
    chunked = http.post("/v1/translate", content=chunks())
    form = http.post("/translate", data={"q": "x" * 2000, "target": "de"})
    for response in (declared, chunked, form):
        assert response.status_code == 413
        assert response.json() == {"error": "the body must have at most 1,000 bytes; got more"}


def test_metrics_count_requests_and_batches(folders):
    with TestClient(observe(create_app(folders, Settings())), "http://localhost") as http:
        http.post("/v1/translate", json={"text": "the cat. The dog."})
        http.get("/nobody/has/this")
        http.post("/translate", json={"q": "a", "target": "xx"})
        text = http.get("/metrics").text
    rows = dict(line.rpartition(" ")[::2] for line in text.splitlines() if not line.startswith("#"))
    assert rows['rnnsearch_requests_total{route="/v1/translate",status="200"}'] == "1.0"
    assert rows['rnnsearch_requests_total{route="/translate",status="400"}'] == "1.0"
    assert rows['rnnsearch_requests_total{route="other",status="404"}'] == "1.0"
    assert rows['rnnsearch_batch_sentences_sum{model="en-de"}'] == "2.0"
    assert rows["rnnsearch_loaded_models"] == "1.0"
    assert float(rows["process_resident_memory_bytes"]) > 1e6
    assert "nobody" not in text, "paths chosen by clients are not labels"


def test_log_record_is_one_line_of_json():
    record = logging.LogRecord(LOGGER_NAME, logging.INFO, "", 0, "a\nb", (), None)
    record.fields = {"status": 200}
    line = JsonFormatter().format(record)
    assert "\n" not in line
    row = json.loads(line)
    assert (row["event"], row["status"], row["level"]) == ("a\nb", 200, "info")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["time"])


def test_reference_is_complete_and_has_no_external_resources(http):
    page, document = http.get("/docs"), http.get("/openapi.json")
    for path in document.json()["paths"]:
        assert path in page.text
    assert "//" not in re.sub(r"<!--.*?-->", "", page.text).replace("application/", "")
    assert "HTTPValidationError" not in document.text
    assert "422" not in document.json()["paths"]["/v1/translate"]["post"]["responses"]
