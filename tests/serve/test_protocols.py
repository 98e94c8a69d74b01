"""Protocols of Apertium APy and OPUS-CAT, as OmegaT, Weblate and Wordfast use them."""

import http.client
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

import rnnsearch
from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import Settings

OPUS_CAT = "/MTRestService/TranslateJson"
EN_DE = {"srcLangCode": "en", "trgLangCode": "de"}


@pytest.fixture(scope="module")
def dog(folders):
    return rnnsearch.load(folders[0]).translate("the dog").text


def apertium_response(text: str) -> dict[str, Any]:
    return {"responseData": {"translatedText": text}, "responseDetails": None, "responseStatus": 200}


def test_apertium_translates_by_get_and_post(http, dog):
    expected = apertium_response(dog)
    for langpair in ("en|de", "eng|deu", "en_GB|de"):
        fields = {"q": "the dog", "langpair": langpair, "markUnknown": "no", "key": ""}
        assert http.get("/translate", params=fields).json() == expected
        assert http.post("/translate", params=fields).json() == expected
        assert http.post("/translate", data=fields).json() == expected


def test_apertium_request_of_omegat_is_answered(folders, listening, dog):
    # OmegaT does not encode the bar between the languages.
    with listening(create_app(folders, Settings())) as url:
        connection = http.client.HTTPConnection(str(urlsplit(url).netloc), timeout=60)
        connection.putrequest("GET", "/translate?q=the+dog&markUnknown=no&langpair=en|de&key=bwuxb5jS", True)
        connection.putheader("Host", "localhost")
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == 200
        assert dog.encode()[:3] in response.read() or not dog.isascii()
        connection.close()


def test_apertium_lists_pairs(http):
    response = http.get("/listPairs").json()
    assert (response["responseDetails"], response["responseStatus"]) == (None, 200)
    pairs = [f"{row['sourceLanguage']}|{row['targetLanguage']}" for row in response["responseData"]]
    assert pairs == ["en|de", "en|deu", "eng|de", "eng|deu", "de|en", "de|eng", "deu|en", "deu|eng"]


def test_apertium_preserves_tags_and_characters(http, dog):
    def translate(q: str, **fields: str) -> str:
        response = http.get("/translate", params={"q": q, "langpair": "en|de", **fields})
        return str(response.json()["responseData"]["translatedText"])

    tagged = translate("the <g1>big</g1> dog <x2/>")
    assert tagged.count("<g1>") == tagged.count("</g1>") == tagged.count("<x2/>") == 1
    assert translate("the dog", format="txt") == translate("the dog", format="html") == dog


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q": "a", "langpair": "en"}, "langpair must be two languages, like en|de"),
        ({"q": "a", "langpair": "en|fr"}, "source and target must be a direction served here"),
        ({"q": "a", "langpair": "en|de", "format": "rtf"}, "format: "),
        ({"langpair": "en|de"}, "query.q is required"),
    ],
)
def test_apertium_errors_have_its_fields(http, fields, message):
    response = http.get("/translate", params=fields)
    assert response.status_code == response.json()["code"] == response.json()["responseStatus"] == 400
    assert response.json()["status"] == "error"
    assert response.json()["explanation"].startswith(message)


def test_opus_cat_translates_with_alignment(http, dog):
    fields = http.get(OPUS_CAT, params={"tokenCode": "0", "input": "the dog", **EN_DE, "modelTag": ""}).json()
    assert fields["translation"] == fields["Translation"] == dog
    assert fields["SegmentedSourceSentence"] == ["the", "dog"]
    assert " ".join(fields["SegmentedTranslation"]) == dog
    links = [link.split("-") for link in fields["AlignmentString"].split()]
    assert all(int(i) < 2 and int(j) < len(fields["SegmentedTranslation"]) for i, j in links)
    assert http.get(OPUS_CAT, params={"input": "the dog", "srcLangCode": "eng", "trgLangCode": "deu"}).json() == fields
    named = http.get(OPUS_CAT, params={"input": "the dog", **EN_DE, "modelTag": "en-de"}).json()
    assert named == fields
    assert http.get(OPUS_CAT, params={"input": "", **EN_DE}).json()["translation"] == ""
    assert http.get(OPUS_CAT, params={"input": "a", **EN_DE, "modelTag": "other"}).status_code == 404


def test_opus_cat_lists_what_is_served(http):
    assert http.get("/MTRestService/ListSupportedLanguagePairs?tokenCode=0").json() == ["en-de", "de-en"]
    assert http.get("/MTRestService/GetLanguagePairModelTags", params=EN_DE).json() == ["en-de"]


def test_keys_and_limits_apply_to_all_protocols(folders):
    app = create_app(folders, Settings(api_keys=frozenset({"one"}), max_characters=100))
    requests: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        ("GET", "/translate", {"langpair": "en|de", "q": "TEXT", "key": "KEY"}, {}),
        ("POST", "/translate", {"langpair": "en|de", "q": "TEXT", "key": "KEY"}, {}),
        ("GET", OPUS_CAT, {**EN_DE, "input": "TEXT", "tokenCode": "KEY"}, {}),
        ("POST", "/v2/translate", {"target_lang": "DE", "text": "TEXT", "auth_key": "KEY"}, {}),
        ("POST", "/v2/translate", {"target_lang": "DE", "text": "TEXT"}, {"authorization": "DeepL-Auth-Key KEY"}),
    ]
    with TestClient(app, "http://localhost") as client:
        for method, path, fields, headers in requests:

            def status(
                text: str,
                key: str,
                method: str = method,
                path: str = path,
                fields: dict[str, Any] = fields,
                headers: dict[str, Any] = headers,
            ) -> int:
                params = {name: value.replace("TEXT", text).replace("KEY", key) for name, value in fields.items()}
                sent = {name: value.replace("KEY", key) for name, value in headers.items()}
                return client.request(method, path, params=params, headers=sent).status_code

            assert [status("the dog", "one"), status("the dog", "two"), status("a" * 101, "one")] == [200, 403, 413]


def test_pages_of_other_sites_cannot_cause_work_by_get(http):
    headers = {"sec-fetch-site": "cross-site"}
    for path in ("/translate?langpair=en|de&q=a", f"{OPUS_CAT}?srcLangCode=en&trgLangCode=de&input=a"):
        assert http.get(path, headers=headers).status_code == 403
        assert http.get(path, headers={"sec-fetch-site": "none"}).status_code == 200


def test_routes_are_counted(folders: list[Path]):
    with TestClient(create_app(folders, Settings()), "http://localhost") as client:
        client.get(OPUS_CAT, params={"input": "the dog", **EN_DE})
        assert client.app.state.service.num_characters == 7  # type: ignore[attr-defined]
