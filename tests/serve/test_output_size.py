"""Limits of the output of a request: before its search, before its response is built, and in time."""

import time
from typing import Any

import pytest

from rnnsearch.search.options import SearchOptions
from rnnsearch.serve import output_size, v1
from rnnsearch.serve.limits import ServeError
from rnnsearch.serve.output_size import OutputFields, check_output

WORDS = OutputFields(words=True)
ATTENTION = OutputFields(words=True, attention=True)


def check(source_lengths: list[int], prefix_length: int, n_best: int, fields: OutputFields) -> None:
    options = SearchOptions(beam=n_best, n_best=n_best)
    check_output(source_lengths, [prefix_length] * len(source_lengths), options, fields)


@pytest.mark.parametrize(
    ("source_lengths", "n_best", "fields"),
    [
        ([500], 5, ATTENTION),
        ([25] * 400, 1, ATTENTION),
        ([25] * 400, 5, ATTENTION),
        ([2] * 5000, 1, WORDS),
        ([500] * 50, 1, WORDS),
        ([25] * 400, 20, OutputFields()),
    ],
)
def test_usual_output_is_accepted(source_lengths, n_best, fields):
    check(source_lengths, 0, n_best, fields)


@pytest.mark.parametrize(
    ("source_lengths", "prefix_length", "n_best", "fields", "message"),
    [
        ([500] * 8, 0, 20, ATTENTION, "all translations together are too large"),
        ([500], 500, 20, ATTENTION, "a response must have at most 32 MB"),
        ([100] * 20, 500, 20, ATTENTION, "a response must have at most 32 MB"),
        ([5] * 5000, 500, 1, WORDS, "a response must have at most 32 MB"),
        ([500] * 50, 0, 20, OutputFields(), "all translations together are too large"),
    ],
)
def test_large_output_is_rejected_before_the_search(source_lengths, prefix_length, n_best, fields, message):
    with pytest.raises(ServeError, match=message) as error:
        check(source_lengths, prefix_length, n_best, fields)
    assert error.value.status == 413


def test_large_response_is_rejected_before_and_after_the_search(http, monkeypatch):
    body: dict[str, Any] = {"text": "the dog sees a bird", "n_best": 2, "attention": True}
    size = len(http.post("/v1/translate", json=body).content)
    monkeypatch.setattr(output_size, "MAX_RESPONSE_BYTES", size // 10)
    before = http.post("/v1/translate", json=body)
    # Only the translations show now that the response is too large.
    monkeypatch.setattr("rnnsearch.serve.served_model.check_output", lambda *_: None)
    after = http.post("/v1/translate", json=body)
    for response in (before, after):
        assert response.status_code == 413
        assert response.json()["error"].startswith("a response must have at most")


def test_stream_has_the_same_limit(http, monkeypatch):
    monkeypatch.setattr(output_size, "MAX_RESPONSE_BYTES", 100)
    events = http.post("/v1/translate", json={"text": "the dog sees a bird", "stream": True, "attention": True}).text
    assert events.count("data: ") == 1
    assert '"error": "a response must have at most' in events


def test_characters_of_prefixes_count(serve):
    http = serve(max_characters=20)
    assert http.post("/v1/translate", json={"text": "the dog", "prefix": "der"}).status_code == 200
    response = http.post("/v1/translate", json={"text": "the dog", "prefix": "der " * 5})
    assert (response.status_code, response.json()["error"]) == (
        413,
        "the text must have at most 20 characters; got 27",
    )


def test_timeout_includes_building_the_response(serve, monkeypatch):
    http = serve(timeout=2.0)
    body = {"text": "the dog sees a bird. " * 20}
    assert http.post("/v1/translate", json=body).status_code == 200
    monkeypatch.setattr(v1, "_translate_response", lambda *_: time.sleep(3))
    start_time = time.monotonic()
    response = http.post("/v1/translate", json=body)
    assert (response.status_code, time.monotonic() - start_time < 2.9) == (504, True)
