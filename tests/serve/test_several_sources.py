"""`POST /v1/translate` with sentences in several languages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import Settings
from rnnsearch.translator.loading import load
from tests.untrained import BAHDANAU, write_model

ENGLISH, FRENCH = "the small cat sees the dog.", "le petit chat voit le chien."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = BAHDANAU | {"sources": {"type": "mean"}}
    return write_model(tmp_path_factory.mktemp("several") / "en-fr-de", model, "bpe", ("en", "fr", "de"))


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Return the client of a server with this model and one with one source."""
    bilingual = write_model(tmp_path_factory.mktemp("bilingual") / "en-de", BAHDANAU, "bpe")
    app = create_app([folder, bilingual], Settings())
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        yield client


def translate(client: TestClient, **fields: Any) -> Any:
    return client.post("/v1/translate", json={"model": "en-fr-de", **fields})


def test_texts_are_arrays_or_objects(client: TestClient, folder: Path) -> None:
    texts = [[ENGLISH, FRENCH], {"fr": FRENCH, "en": ENGLISH}, [None, FRENCH], [ENGLISH, ""]]
    rows = translate(client, text=texts).json()["translations"]
    expected = [one.text for one in load(folder).translate([(ENGLISH, FRENCH)] * 2 + [(None, FRENCH), (ENGLISH, None)])]
    assert [row["text"] for row in rows] == expected
    both, _, french, english = [row["sentences"][0]["best"][0]["sources"] for row in rows]
    assert {name: side["text"] for name, side in both.items()} == {"en": ENGLISH, "fr": FRENCH}
    assert (list(french), list(english)) == (["fr"], ["en"])
    assert [word["text"] for word in both["fr"]["words"]] == FRENCH.split()
    assert all(0 <= source < len(FRENCH.split()) for source, _ in both["fr"]["alignment"])


def test_string_is_the_first_source(client: TestClient) -> None:
    [plain] = translate(client, text=ENGLISH).json()["translations"]
    [array] = translate(client, text=[[ENGLISH, None]]).json()["translations"]
    assert plain["text"] == array["text"]


def test_files_need_a_model_with_one_source(client: TestClient) -> None:
    for fields in ({"model": "en-fr-de"}, {"model": "en-fr-de", "source": "auto"}):
        response = client.post("/v1/files", files={"file": ("a.txt", b"a b\n")}, data=fields)
        assert response.status_code == 400
        assert response.json()["error"] == "files need a model with one source; the model en-fr-de has en and fr"
    assert client.post("/v1/files", files={"file": ("a.txt", b"a b\n")}, data={"model": "en-de"}).status_code == 202


def test_models_list_their_sources(client: TestClient) -> None:
    rows = {row["name"]: row for row in client.get("/v1/models").json()["models"]}
    assert rows["en-fr-de"]["sources"] == ["en", "fr"]
    assert rows["en-de"]["sources"] == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": [["a"]]}, "a sentence must have one text per source (en, fr); got 1"),
        ({"text": [{"es": "a"}]}, "a sentence must have texts in en and fr; got one in es"),
        ({"text": [["a", "b"]], "model": "en-de"}, "the model en-de has one source; got several"),
        ({"text": [["a", "b"]], "glossary": {"a": "b"}}, "glossary must be omitted"),
        ({"text": [["a", "b"]], "min_confidence": 0.5}, "min_confidence needs a calibrated model"),
    ],
)
def test_errors_are_sentences(client: TestClient, fields: dict[str, Any], message: str) -> None:
    response = translate(client, **fields)
    assert response.status_code == 400
    assert message in response.json()["error"]


def test_long_sentence_in_any_source_is_rejected(client: TestClient) -> None:
    response = translate(client, text=[[ENGLISH, "chat " * 3000]])
    assert response.status_code == 413
