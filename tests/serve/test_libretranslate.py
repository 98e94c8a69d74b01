"""LibreTranslate's API."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import rnnsearch
from rnnsearch.serve import libretranslate, limits

TEXT = "the dog sees a big bird. The small cat sees the dog!\n\n  the cat\n"
FORM = "application/x-www-form-urlencoded"
"""What `curl -d` says of any body."""
EN_DE = {"source": "en", "target": "de"}


def test_a_text_keeps_its_layout(http, folders):
    translator = rnnsearch.load(folders[0])
    sentences = ["the dog sees a big bird.", "The small cat sees the dog!", "the cat"]
    a, b, c = (t.text for t in translator.translate(sentences))
    curl = {"content": json.dumps({"q": TEXT, "target": "de"}), "headers": {"Content-Type": FORM}}
    for body in ({"json": {"q": TEXT, **EN_DE}}, {"data": {"q": TEXT, "target": "de"}}, curl):
        response = http.post("/translate", **body)
        assert response.status_code == 200
        assert response.json()["translatedText"] == f"{a} {b}\n\n  {c}\n"


def test_a_list_gives_a_list(http):
    texts = http.post("/translate", json={"q": ["the cat", "", "the dog"], **EN_DE}).json()["translatedText"]
    assert len(texts) == 3
    assert texts[1] == ""
    form = http.post("/translate", data={"q": ["the cat", "the dog"], **EN_DE})
    assert form.json()["translatedText"] == [texts[0], texts[2]]


def test_a_list_has_no_more_texts_than_so(http):
    """Of empty texts no character counted, and as many as a body can hold were worked on."""
    answer = http.post("/translate", json={"q": [""] * 5001, **EN_DE})
    assert (answer.status_code, answer.json()["error"]) == (413, "a request must have at most 5,000 texts; got 5,001")


def test_many_texts_are_worked_on_apart_though_they_are_empty(http, monkeypatch):
    def none_here(work: Callable[..., Any]) -> Callable[..., Any]:
        def worked(*given: Any) -> Any:
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            return work(*given)

        return worked

    monkeypatch.setattr(limits, "sentence_spans", none_here(limits.sentence_spans))
    for name in ("Markup", "_texts", "detect_language"):
        monkeypatch.setattr(libretranslate, name, none_here(getattr(libretranslate, name)))
    for form in ("text", "html"):
        body = {"q": [""] * 300, "target": "de", "format": form, "alternatives": 2}
        answer = http.post("/translate", json=body).json()
        assert answer["translatedText"] == [""] * 300
        assert answer["alternatives"] == [[]] * 300


def test_auto_says_what_it_found(http):
    response = http.post("/translate", json={"q": "the cat is in the house", "source": "auto", "target": "de"})
    assert response.json()["detectedLanguage"]["language"] == "en"
    found = http.post("/detect", data={"q": "der Hund und die Katze"}).json()
    assert [row["language"] for row in found] == ["de", "en"]
    assert found[0]["confidence"] > 90


def test_alternatives_are_different(http):
    answer = http.post("/translate", json={"q": "the cat", **EN_DE, "alternatives": 4}).json()
    assert 1 <= len(answer["alternatives"]) <= 4
    assert len({answer["translatedText"], *answer["alternatives"]}) == len(answer["alternatives"]) + 1


def test_html_keeps_its_tags(http, folders):
    text = rnnsearch.load(folders[0]).translate("the cat & the dog").text
    page = '<p class="a>b">the cat &amp; the dog</p> <!-- the cat --><code>the dog</code><br>'
    response = http.post("/translate", json={"q": page, **EN_DE, "format": "html"})
    shown = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    expected = f'<p class="a>b">{shown}</p> <!-- the cat --><code>the dog</code><br>'
    assert response.json()["translatedText"] == expected


def test_languages_health_and_settings(http):
    languages, health, settings = (http.get(path).json() for path in ("/languages", "/health", "/frontend/settings"))
    assert languages == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": ["en"]},
    ]
    assert health == {"status": "ok"}
    assert settings["keyRequired"] is False
    assert settings["charLimit"] == 50_000
    assert settings["suggestions"] is False


def test_suggestions_are_kept_where_there_is_a_place(http, serve, tmp_path):
    body = {"q": "the cat", "s": "die Katze", **EN_DE}
    refused = http.post("/suggest", data=body)
    assert refused.status_code == 403
    assert "--suggestions" in refused.json()["error"]
    kept = serve(suggestions=tmp_path / "kept.jsonl").post("/suggest", json=body)
    assert kept.json() == {"success": True}
    assert json.loads((tmp_path / "kept.jsonl").read_text(encoding="utf-8")) == body


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"json": {"q": "a", "source": "en", "target": "fr"}}, "source and target must be a direction served here"),
        ({"json": EN_DE}, "q must be given"),
        ({"json": {"q": "a", "target": "de", "format": "rtf"}}, "format: "),
        ({"json": {"q": "a", "target": "de", "alternatives": 100}}, "alternatives: "),
        ({"json": {"q": 3, "target": "de"}}, "q.str: "),
        ({"json": [1]}, "the body: "),
        ({"content": b"{"}, "the body must be JSON or a form"),
        ({"content": b"[" * 100_000}, "the body must be JSON or a form"),
        ({"content": b'{"q": "\xff"}'}, "the body must be JSON or a form"),
        ({"content": b'{"q": "\\ud800", "target": "de"}'}, "text must be valid Unicode"),
        ({"content": b'{"q": "a", "target": "\\ud800"}'}, "source and target must be"),
    ],
)
def test_faults_are_one_sentence(http, body, said):
    response = http.post("/translate", **body)
    assert response.status_code == 400
    assert response.json()["error"].startswith(said)


def test_keys(serve):
    http, body = serve(api_keys=frozenset({"one", "two"})), {"q": "the cat", **EN_DE}
    for given in ({}, {"headers": {"X-API-Key": "three"}}, {"headers": {"Authorization": "Bearer é".encode()}}):
        response = http.post("/translate", json=body, **given)
        assert response.status_code == 403
        assert "API key" in response.json()["error"]
    assert http.post("/translate", json={**body, "api_key": "two"}).status_code == 200
    assert http.post("/translate", data={**body, "api_key": "one"}).status_code == 200
    for headers in ({"X-API-Key": "one"}, {"Authorization": "Bearer one"}, {"Authorization": "bearer one"}):
        assert http.post("/translate", json=body, headers=headers).status_code == 200
