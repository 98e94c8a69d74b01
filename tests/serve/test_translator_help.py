"""Help for translators: completion, alternatives for a word, and streaming."""

import json
from itertools import pairwise
from typing import Any

import httpx
import pytest

import rnnsearch

SENTENCE = "the dog sees a big bird."


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("prefix", ["", "der Hund s", "der Hund ", "Zebra-xyz 中"])
def test_completions_begin_with_the_prefix(http, prefix):
    response = http.post("/v1/complete", json={"text": f" {SENTENCE}\n", "prefix": prefix, "n_best": 4})
    rows = response.json()["completions"]
    assert 1 <= len(rows) <= 4
    assert len({row["text"] for row in rows}) == len(rows)
    for row in rows:
        assert row["text"] == prefix + row["rest"]
        assert row["rest"].startswith(row["next"])
        assert len(row["next"].split()) <= 1
        assert row["next"].strip() or not row["rest"].strip()
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)


def test_v1_translate_accepts_prefixes(http):
    body = {"text": [SENTENCE, "the cat"], "prefix": ["ein V", ""], "n_best": 2}
    first, second = http.post("/v1/translate", json=body).json()["translations"]
    assert all(best["text"].startswith("ein V") for best in first["sentences"][0]["best"])
    plain = http.post("/v1/translate", json={"text": "the cat"}).json()["translations"][0]
    assert second["text"] == plain["text"]


def test_alternatives_differ_in_the_word_and_keep_the_words_before_it(http, folders):
    translator = rnnsearch.load(folders[0])
    whole = translator.score([SENTENCE], ["der Hund sieht einen Vogel."])[0].text
    for word in range(5):
        body = {"text": SENTENCE, "translation": whole, "word": word, "n_best": 3}
        rows = http.post("/v1/alternatives", json=body).json()["alternatives"]
        assert 1 <= len(rows) <= 3
        for row in rows:
            words = row["text"].split()
            assert words[:word] == whole.split()[:word]
            assert words[word] == row["word"] != whole.split()[word]
            assert 0 < row["probability"] < 1
        assert len({row["word"] for row in rows}) == len(rows)
        assert [row["probability"] for row in rows] == sorted((r["probability"] for r in rows), reverse=True)


def test_alternatives_of_a_word_level_model(http):
    body = {"text": "der Hund sieht", "translation": "the zebra sees", "word": 2, "model": "de-en"}
    rows = http.post("/v1/alternatives", json=body).json()["alternatives"]
    assert rows
    assert all(row["text"].startswith("the zebra ") for row in rows), "an unknown word stays as it is"


def test_stream_ends_with_the_greedy_translation(http):
    text = f"{SENTENCE} The cat!\n"
    response = http.post("/v1/translate", json={"text": text, "stream": True, "attention": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *tokens, done = events(response)
    assert done.pop("type") == "done"
    greedy = http.post("/v1/translate", json={"text": text, "beam": 1, "attention": True}).json()
    [sentences] = [translation["sentences"] for translation in greedy["translations"]]
    for n, sentence in enumerate(sentences):
        parts = [event["text"] for event in tokens if event["sentence"] == n]
        assert len(parts) > 1
        assert parts[-1] == sentence["best"][0]["text"]
        assert all(b.startswith(a) for a, b in pairwise(parts))
    assert done["translations"][0]["text"] == greedy["translations"][0]["text"]
    assert done["translations"][0]["target_spans"] == greedy["translations"][0]["target_spans"]
    assert done.keys() == greedy.keys()


def test_error_is_the_last_event_of_a_stream(http, serve):
    [event] = events(serve(max_tokens=30).post("/v1/translate", json={"text": "x " * 50, "stream": True}))
    assert event["type"] == "error"
    assert event["error"].startswith("a sentence must have at most 30 tokens")
    [done] = events(http.post("/v1/translate", json={"text": " \n", "stream": True}))
    assert (done["type"], done["translations"][0]["text"]) == ("done", " \n")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("complete", {"text": "One. Two.", "prefix": ""}, "text must be one sentence; got 2"),
        ("complete", {"text": "", "prefix": ""}, "text must be one sentence; got 0"),
        ("complete", {"text": "One.", "prefix": "a\nb"}, "prefix must be one line"),
        ("translate", {"text": "One. Two.", "prefix": "a"}, "a text with a prefix must be one sentence; got 2"),
        ("alternatives", {"text": "One.", "translation": "a b", "word": 2}, "word must be one of the translation's 2"),
        ("alternatives", {"text": "One.", "translation": "a\rb", "word": 0}, "translation must be one line"),
        ("translate", {"text": ["a"], "stream": True}, "text must be a string if stream is true"),
        ("translate", {"text": "a", "beam": 1, "n_best": 4}, "beam must be at least n_best (4); got 1"),
        ("translate", {"text": "a", "stream": True, "n_best": 2}, "n_best and beam must be 1 if stream is true"),
        ("translate", {"text": "a", "stream": True, "prefix": "b"}, "prefix must be omitted if stream is true"),
    ],
)
def test_invalid_requests_get_errors(http, path, body, message):
    response = http.post(f"/v1/{path}", json=body)
    assert response.status_code == 400
    assert response.json()["error"].startswith(message)
