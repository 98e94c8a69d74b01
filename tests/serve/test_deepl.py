"""DeepL's API with DeepL's client: texts, tags, glossaries, languages, usage, errors and keys."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepl
import pytest

import rnnsearch
from rnnsearch.serve import glossaries
from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import Settings

KEYS = frozenset({"one", "two"})
EN_DE = {"source_lang": "EN", "target_lang": "DE"}


@pytest.fixture(scope="module")
def url(folders: list[Path], listening: Any) -> Iterator[str]:
    with listening(create_app(folders, Settings(api_keys=KEYS))) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[deepl.DeepLClient]:
    client = deepl.DeepLClient("one", server_url=url)
    yield client
    client.close()


def test_client_translates_texts(client, folders):
    best = rnnsearch.load(folders[0]).translate("the dog sees a big bird.").text
    result = client.translate_text("the dog sees a big bird.", **EN_DE)
    assert (result.text, result.detected_source_lang, result.billed_characters) == (best, "EN", 24)
    detected = client.translate_text(["the cat is in the house", "the dog sees a big bird."], target_lang="DE")
    assert [text.detected_source_lang for text in detected] == ["EN", "EN"]
    assert detected[1].text == best


def test_tags_survive_and_ignored_elements_are_not_translated(client):
    def translate(text: str, **options: Any) -> str:
        return client.translate_text(text, **EN_DE, **options).text

    xml = translate('the <g id="1">big <y>red bird</y></g> sees <x id="29"></x>', tag_handling="xml", ignore_tags="y")
    assert xml.count('<g id="1">') == xml.count("</g>") == xml.count('<x id="29"></x>') == 1
    assert "<y>red bird</y>" in xml
    split = translate("<p>the dog</p><p>the cat</p>", tag_handling="xml", splitting_tags=["p"])
    assert split == f"<p>{translate('the dog')}</p><p>{translate('the cat')}</p>".replace("&", "&amp;")
    html = translate("<p>the dog</p>", tag_handling="html")
    assert html.startswith("<p>")
    assert html.endswith("</p>")


def test_languages_usage_and_pairs(client):
    assert [(row.code, row.name) for row in client.get_source_languages()] == [("EN", "English"), ("DE", "German")]
    targets = client.get_target_languages()
    assert [row.code for row in targets] == ["DE", "EN-GB", "EN-US"]
    assert not any(row.supports_formality for row in targets)
    pairs = [(pair.source_lang, pair.target_lang) for pair in client.get_glossary_languages()]
    assert pairs == [("en", "de"), ("de", "en")]
    count = client.get_usage().character.count
    client.translate_text("the dog", **EN_DE)
    assert client.get_usage().character.count == count + 7


def test_glossaries_belong_to_their_key(client, url):
    glossary = client.create_glossary("animals", "EN", "DE", {"dog": "Hund", "cat": "Katze"})
    assert (glossary.name, glossary.entry_count, glossary.ready) == ("animals", 2, True)
    assert [row.glossary_id for row in client.list_glossaries()] == [glossary.glossary_id]
    assert client.get_glossary_entries(glossary) == {"dog": "Hund", "cat": "Katze"}
    assert "Hund" in client.translate_text_with_glossary("the dog", glossary).text
    other = deepl.DeepLClient("two", server_url=url)
    assert other.list_glossaries() == []
    with pytest.raises(deepl.GlossaryNotFoundException):
        other.get_glossary(glossary.glossary_id)
    with pytest.raises(deepl.DeepLException, match="there is no glossary with this id"):
        other.translate_text("the dog", **EN_DE, glossary=glossary.glossary_id)
    other.close()
    with pytest.raises(deepl.DeepLException, match="the glossary is for en to de; got de to en"):
        client.translate_text("der Hund", source_lang="DE", target_lang="EN-GB", glossary=glossary.glossary_id)
    client.delete_glossary(glossary)
    with pytest.raises(deepl.GlossaryNotFoundException):
        client.get_glossary(glossary.glossary_id)


def test_errors_are_those_of_the_client(client, url):
    wrong = deepl.DeepLClient("three", server_url=url)
    for call in (wrong.get_usage, lambda: wrong.translate_text("the dog", **EN_DE)):
        with pytest.raises(deepl.AuthorizationException, match="the API key must be one of this server's"):
            call()
    wrong.close()
    with pytest.raises(deepl.DeepLException, match="source and target must be a direction served here"):
        client.translate_text("the dog", source_lang="EN", target_lang="FR")
    with pytest.raises(deepl.DeepLException, match="models have no formality"):
        client.translate_text("the dog", **EN_DE, formality="less")
    with pytest.raises(deepl.DeepLException, match="style_id is not supported"):
        client.translate_text("the dog", **EN_DE, style_rule="formal")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("dog", "entry 1 must have a source term and a target term"),
        ("dog\tHund\ndog\tKöter", "entry 2 must have a new source term"),
        ("", "a glossary must have entries"),
        ("a" * 201 + "\tb", "entry 1 must have at most 200 characters per term"),
        ("".join(f"{n}\tx\n" for n in range(5001)), "a glossary must have at most 5,000 entries; got 5,001"),
    ],
)
def test_invalid_entries_are_rejected(http, entries, message):
    body = {"name": "a", **EN_DE, "entries": entries, "entries_format": "tsv"}
    response = http.post("/v2/glossaries", json=body)
    assert response.status_code == 400
    assert response.json()["message"].startswith(message)
    assert response.json()["error"] == response.json()["message"]


def test_invalid_unicode_is_rejected(http):
    body = b'{"name": "\\ud800", "source_lang": "EN", "target_lang": "DE", "entries": "a\\tb", "entries_format": "tsv"}'
    response = http.post("/v2/glossaries", content=body)
    assert response.status_code == 400
    assert response.json()["message"].startswith("name: Input should be a valid string")


def test_number_of_glossaries_is_limited(http, monkeypatch):
    monkeypatch.setattr(glossaries, "MAX_GLOSSARIES", 1)
    body = {"name": "a", **EN_DE, "entries": 'dog,"Hund, der",en,de\n', "entries_format": "csv"}
    created = http.post("/v2/glossaries", json=body)
    assert created.status_code == 201
    assert http.get(f"/v2/glossaries/{created.json()['glossary_id']}/entries").text == "dog\tHund, der"
    assert http.post("/v2/glossaries", json=body).status_code == 456


def test_form_with_several_texts_is_translated(http):
    response = http.post("/v2/translate", data={"text": ["the dog", "the cat"], "target_lang": "DE"})
    assert len(response.json()["translations"]) == 2
    one = http.post("/v2/translate", data={"text": "the dog", "target_lang": "DE"}).json()["translations"]
    assert one[0]["text"] == response.json()["translations"][0]["text"]
