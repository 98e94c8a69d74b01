"""LibreTranslate's API: texts, lists and HTML, language detection, errors and keys."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import rnnsearch
from rnnsearch.serve import libretranslate, translation_service
from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import Settings
from rnnsearch.text import long_texts
from tests.untrained import RNNENCDEC, write_model

TEXT = "the dog sees a big bird. The small cat sees the dog!\n\n  the cat\n"
FORM = "application/x-www-form-urlencoded"
"""Content type that `curl -d` declares for any body."""
EN_DE = {"source": "en", "target": "de"}


def test_layout_of_text_is_preserved(http, folders):
    translator = rnnsearch.load(folders[0])
    sentences = ["the dog sees a big bird.", "The small cat sees the dog!", "the cat"]
    a, b, c = (t.text for t in translator.translate(sentences))
    curl = {"content": json.dumps({"q": TEXT, "target": "de"}), "headers": {"Content-Type": FORM}}
    for body in ({"json": {"q": TEXT, **EN_DE}}, {"data": {"q": TEXT, "target": "de"}}, curl):
        response = http.post("/translate", **body)
        assert response.status_code == 200
        assert response.json()["translatedText"] == f"{a} {b}\n\n  {c}\n"


def test_list_returns_list(http):
    texts = http.post("/translate", json={"q": ["the cat", "", "the dog"], **EN_DE}).json()["translatedText"]
    assert len(texts) == 3
    assert texts[1] == ""
    form = http.post("/translate", data={"q": ["the cat", "the dog"], **EN_DE})
    assert form.json()["translatedText"] == [texts[0], texts[2]]


def test_number_of_texts_is_limited_even_if_they_are_empty(http):
    response = http.post("/translate", json={"q": [""] * 5001, **EN_DE})
    assert response.status_code == 413
    assert response.json()["error"] == "a request must have at most 5,000 texts; got 5,001"


def test_many_texts_are_processed_outside_the_event_loop_even_if_they_are_empty(http, monkeypatch):
    def require_thread(function: Callable[..., Any]) -> Callable[..., Any]:
        def in_thread(*args: Any) -> Any:
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            return function(*args)

        return in_thread

    def reject(*_: Any) -> None:
        raise AssertionError("must be called in another process")

    for module, name in (
        (libretranslate, "_translate_response"),
        (translation_service, "_fillings"),
        (translation_service, "detect"),
    ):
        monkeypatch.setattr(module, name, require_thread(getattr(module, name)))
    for name in ("sentence_spans", "HtmlDocument"):
        monkeypatch.setattr(long_texts, name, reject)
    for format in ("text", "html"):
        body = {"q": [""] * 300, "source": "auto", "target": "de", "format": format, "alternatives": 2}
        fields = http.post("/translate", json=body).json()
        assert fields["translatedText"] == [""] * 300
        assert fields["alternatives"] == [[]] * 300


def test_auto_reports_detected_language(http):
    response = http.post("/translate", json={"q": "the cat is in the house", "source": "auto", "target": "de"})
    assert response.json()["detectedLanguage"]["language"] == "en"
    ranking = http.post("/detect", data={"q": "der Hund und die Katze"}).json()
    assert [row["language"] for row in ranking] == ["de", "en"]
    assert ranking[0]["confidence"] > 90


@pytest.fixture(scope="module")
def into_german(folders, tmp_path_factory):
    """Return the client of an application that translates English and French into German."""
    french = write_model(tmp_path_factory.mktemp("served") / "fr-de", RNNENCDEC, "words", ("fr", "de"))
    with TestClient(create_app([folders[0], french], Settings()), "http://localhost") as client:
        yield client


ENGLISH_TEXT = "The dog is in the garden and it is asleep on the grass."
FRENCH_TEXT = "Le chien est dans le jardin et il dort sur le gazon."


def test_each_text_of_a_list_is_translated_by_the_model_of_its_language(into_german):
    def translate(q: str | list[str], source: str) -> Any:
        return into_german.post("/translate", json={"q": q, "source": source, "target": "de"}).json()

    both = translate([ENGLISH_TEXT, FRENCH_TEXT], "auto")
    assert both["translatedText"] == [
        translate(ENGLISH_TEXT, "en")["translatedText"],
        translate(FRENCH_TEXT, "fr")["translatedText"],
    ]
    assert [language["language"] for language in both["detectedLanguage"]] == ["en", "fr"]
    body = {"text": [FRENCH_TEXT, ENGLISH_TEXT], "source": "auto", "target": "de"}
    detailed = into_german.post("/v1/translate", json=body).json()
    assert detailed["model"] == "fr-de"
    assert [text["model"] for text in detailed["translations"]] == ["fr-de", "en-de"]
    assert [text["language"] for text in detailed["translations"]] == ["fr", "en"]
    assert min(text["language_confidence"] for text in detailed["translations"]) > 0.9
    assert [text["text"] for text in detailed["translations"]] == both["translatedText"][::-1]


def test_short_texts_have_the_language_of_all_texts(into_german):
    texts = ["OK", "Non", "Le chien est dans le jardin."]
    body = {"q": texts, "source": "auto", "target": "de"}
    detected = into_german.post("/translate", json=body).json()["detectedLanguage"]
    assert [language["language"] for language in detected] == ["fr"] * 3


def test_text_in_none_of_the_languages_has_confidence_0(http):
    none = {"language": "en", "confidence": 0.0}
    for text in ("你好世界", "123 !?", " ", "Le chien est dans le jardin et il dort."):
        assert http.post("/detect", data={"q": text}).json() == [none]
    response = http.post("/translate", json={"q": "12", "source": "auto", "target": "de"})
    assert response.json()["detectedLanguage"] == none
    for options in ({"data": {"q": ""}}, {"params": {"q": ""}}, {"json": {}}, {}):
        response = http.post("/detect", **options)
        assert (response.status_code, response.json()) == (400, {"error": "q is required"})


def test_fields_may_be_in_the_query(http):
    expected = http.post("/translate", json={"q": "the dog", **EN_DE}).json()
    assert http.post("/translate", params={"q": "the dog", **EN_DE}).json() == expected
    assert http.post("/translate", params=EN_DE, json={"q": "the dog"}).json() == expected
    assert http.post("/translate", params={"q": "a", **EN_DE}, data={"q": "the dog"}).json() == expected
    assert http.post("/detect", params={"q": "the cat is in the house"}).json()[0]["language"] == "en"


def test_forms_may_contain_characters_that_are_not_escaped(http):
    for body in ("q=你好", "q=%E4%BD%A0%E5%A5%BD"):
        response = http.post("/detect", content=body.encode(), headers={"Content-Type": FORM})
        assert response.json() == [{"language": "en", "confidence": 0.0}]
    expected = http.post("/translate", json={"q": "Überall", **EN_DE}).json()
    response = http.post("/translate", content="q=Überall&target=de&source=en".encode(), headers={"Content-Type": FORM})
    assert response.json() == expected


@pytest.mark.parametrize("empty", [None, ""])
def test_fields_without_a_value_have_their_defaults(http, empty):
    body = {"q": "the dog", "source": empty, "target": "de", "format": empty, "alternatives": empty, "api_key": empty}
    expected = http.post("/translate", json={"q": "the dog", **EN_DE}).json()["translatedText"]
    assert http.post("/translate", json=body).json()["translatedText"] == expected


def test_settings_check_of_weblate_succeeds_whatever_is_served(folders):
    with TestClient(create_app(folders[1:], Settings(api_keys=frozenset({"one"}))), "http://localhost") as client:
        body = {"q": ["test"], **EN_DE, "api_key": "one"}
        assert client.post("/translate", json=body).json() == {"translatedText": ["test"]}
        assert client.post("/translate", json={**body, "q": ["the dog"]}).status_code == 400
        assert client.post("/translate", json={**body, "api_key": "two"}).status_code == 403


def test_alternatives_are_different(http):
    fields = http.post("/translate", json={"q": "the cat", **EN_DE, "alternatives": 4}).json()
    assert 1 <= len(fields["alternatives"]) <= 4
    assert len({fields["translatedText"], *fields["alternatives"]}) == len(fields["alternatives"]) + 1


def test_tags_of_html_are_preserved(http, folders):
    text = rnnsearch.load(folders[0]).translate("the cat & the dog").text
    html = '<p class="a>b">the cat &amp; the dog</p> <!-- the cat --><code>the dog</code><br>'
    response = http.post("/translate", json={"q": html, **EN_DE, "format": "html"})
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    expected = f'<p class="a>b">{escaped}</p> <!-- the cat --><code>the dog</code><br>'
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


def test_suggestions_are_saved_if_the_server_has_a_file(http, serve, tmp_path):
    body = {"q": "the cat", "s": "die Katze", **EN_DE}
    rejected = http.post("/suggest", data=body)
    assert rejected.status_code == 403
    assert "--suggestions" in rejected.json()["error"]
    accepted = serve(suggestions=tmp_path / "suggestions.jsonl").post("/suggest", json=body)
    assert accepted.json() == {"success": True}
    assert json.loads((tmp_path / "suggestions.jsonl").read_text(encoding="utf-8")) == body


def test_suggestion_that_cannot_be_saved_is_an_error(serve):
    response = serve(suggestions=Path("/dev/full")).post("/suggest", json={"q": "the cat", "s": "die Katze", **EN_DE})
    assert response.status_code == 503
    assert response.json() == {"error": "the suggestion could not be saved; try again later"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"json": {"q": "a", "source": "en", "target": "fr"}}, "source and target must be a direction served here"),
        ({"json": EN_DE}, "q is required"),
        ({"json": {"q": "a", "target": "de", "format": "rtf"}}, "format: "),
        ({"json": {"q": "a", "target": "de", "alternatives": 100}}, "alternatives: "),
        ({"json": {"q": 3, "target": "de"}}, "q.str: "),
        ({"json": [1]}, "the body must be a JSON object or a form; got list"),
        ({"content": b"{"}, "the body must be JSON or a form"),
        ({"content": b"[" * 100_000}, "the body must be JSON or a form"),
        ({"content": b'{"q": "\xff"}'}, "the body must be JSON or a form"),
        ({"content": b'{"q": "\\ud800", "target": "de"}'}, "text must be valid Unicode"),
        ({"content": b'{"q": "a", "target": "\\ud800"}'}, "source and target must be"),
    ],
)
def test_invalid_requests_get_errors(http, body, message):
    response = http.post("/translate", **body)
    assert response.status_code == 400
    assert response.json()["error"].startswith(message)


def test_key_in_headers_or_body_is_accepted(serve):
    http = serve(api_keys=frozenset({"one", "two"}))
    body = {"q": "the cat", **EN_DE}
    for options in ({}, {"headers": {"X-API-Key": "three"}}, {"headers": {"Authorization": "Bearer é".encode()}}):
        response = http.post("/translate", json=body, **options)
        assert response.status_code == 403
        assert "API key" in response.json()["error"]
    assert http.post("/translate", json={**body, "api_key": "two"}).status_code == 200
    assert http.post("/translate", data={**body, "api_key": "one"}).status_code == 200
    for headers in ({"X-API-Key": "one"}, {"Authorization": "Bearer one"}, {"Authorization": "bearer one"}):
        assert http.post("/translate", json=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("format", "text", "masks"),
    [
        ("text", "the dog %s sees [X29X]. a {name} bird", ["%s", "[X29X]", "{name}"]),
        ("html", '<p>the <x id="29"></x> dog sees %s.</p>', ['<x id="29"></x>', "%s"]),
    ],
)
def test_placeholders_and_masks_are_copied(http, format, text, masks):
    body = {"q": text, "source": "en", "target": "de", "format": format}
    translated = http.post("/translate", json=body).json()["translatedText"]
    assert translated != text
    assert all(translated.count(mask) == 1 for mask in masks), translated
