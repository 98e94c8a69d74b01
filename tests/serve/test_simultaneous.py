"""`POST /v1/simultaneous`: translations of texts that are still being written."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import rnnsearch
from rnnsearch.serve import simultaneous as serve_simultaneous
from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import Settings
from rnnsearch.serve.registry import Registry, read_model_info
from rnnsearch.serve.served_model import ServedModel
from rnnsearch.translator.simultaneous import MAX_WORD_CHARACTERS, SimultaneousTranslator
from tests.command_line import run
from tests.test_simultaneous import FORWARD, MONOTONIC, WAIT_K
from tests.untrained import BAHDANAU, write_model

TEXT = "the small cat sees  the dog. A bird sees the cat!\n\nit is red"
MODELS = {"wait-k": WAIT_K, "monotonic": MONOTONIC, "ordinary": BAHDANAU}


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("simultaneous")
    folders = {name: write_model(root / name, model, "bpe") for name, model in MODELS.items()}
    return folders | {"de-fr": write_model(root / "de-fr", BAHDANAU, "bpe", ("de", "fr"))}


@pytest.fixture(scope="module")
def client(model_folders: dict[str, Path]) -> Iterator[TestClient]:
    app = create_app(list(model_folders.values()), Settings(pivot_languages=("de",)))
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        yield client


def translate(client: TestClient, text: str, **fields: Any) -> Any:
    response = client.post("/v1/simultaneous", json={"model": "wait-k", "text": text, **fields})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("model", ["wait-k", "monotonic"])
def test_translation_grows_with_the_text_and_never_changes(client, model):
    texts = [translate(client, TEXT[:length], model=model)["text"] for length in range(len(TEXT) + 1)]
    complete = translate(client, TEXT, model=model, complete=True)["text"]
    for text, longer in zip(texts, [*texts[1:], complete], strict=True):
        assert longer.startswith(text)
    assert len(set(texts)) > 3 and len(texts[-1]) < len(complete)


@pytest.mark.parametrize("model", ["wait-k", "monotonic"])
def test_complete_text_is_translated_as_by_the_command(client, model_folders, model):
    text = f"{TEXT}\n5\n{'x' * (MAX_WORD_CHARACTERS + 9)} cat"
    assert translate(client, text, model=model, complete=True)["text"] == run(
        "translate", model_folders[model], "--stream", stdin=text
    ).out.removesuffix("\n")


def test_sentences_have_offsets_delays_and_lagging(client, model_folders):
    [first, second] = translate(client, TEXT.splitlines()[0] + " It is", model="wait-k")["sentences"][:2]
    assert TEXT[first["start"] : first["end"]] == first["source"] == "the small cat sees  the dog."
    assert (first["complete"], second["complete"]) == (True, True)
    translator = SimultaneousTranslator(rnnsearch.load(model_folders["wait-k"]))
    words = iter(["the", "small", "cat", "sees", "the", "dog."])
    pieces = translator.translate(words)
    with pytest.raises(StopIteration) as end:
        while True:
            next(pieces)
    [expected] = end.value.value
    assert (first["text"], first["delays"]) == (expected.text, list(expected.delays))
    assert first["average_lagging"] == pytest.approx(expected.average_lagging, abs=1e-4)


def test_last_sentence_is_open_until_the_text_is_complete(client):
    text = "the small cat sees  the do"
    [part] = translate(client, text)["sentences"]
    assert (part["source"], part["complete"], part["average_lagging"]) == ("the small cat sees  the", False, None)
    [whole] = translate(client, text, complete=True)["sentences"]
    assert (whole["source"], whole["complete"]) == (text, True)
    assert whole["text"].startswith(part["text"]) and part["text"]


def test_request_may_start_at_the_open_sentence(client):
    text = TEXT.splitlines()[0] + " It is red and "
    whole = translate(client, text)
    *done, last = whole["sentences"]
    assert len(done) == 2
    rest = translate(client, text[last["start"] :])
    assert " ".join(sentence["text"] for sentence in done) + " " + rest["text"] == whole["text"]


def test_result_does_not_depend_on_the_length_of_calls(client, monkeypatch):
    expected = translate(client, TEXT)
    monkeypatch.setattr(serve_simultaneous, "CALL_SECONDS", 0.0)
    assert translate(client, TEXT) == expected


def test_no_work_goes_on_without_a_client(model_folders, monkeypatch):
    monkeypatch.setattr(serve_simultaneous, "CALL_SECONDS", 0.0)
    advance = serve_simultaneous.ArrivingText.advance
    calls = []

    def counting_advance(arriving: Any) -> bool:
        calls.append(arriving)
        return advance(arriving)

    monkeypatch.setattr(serve_simultaneous.ArrivingText, "advance", counting_advance)

    async def disconnect() -> int:
        registry = Registry([model_folders["wait-k"]], Settings())
        async with registry.lease(registry.find()) as model:
            assert isinstance(model, ServedModel)
            task = asyncio.create_task(serve_simultaneous.translate_arriving(model, "cat " * 200, False, ""))
            while len(calls) < 3 and not task.done():
                await asyncio.sleep(0.001)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            # Each runs in the same threads after everything that waits.
            await model.call(lambda _: None, 0)
            num_calls = len(calls)
            await model.call(lambda _: None, 0)
        await registry.close()
        return num_calls

    num_calls = asyncio.run(disconnect())
    assert len(calls) == num_calls < 100


def test_empty_text_has_an_empty_translation(client):
    for text in ("", " ", "\n", "cat"):
        result = translate(client, text)
        assert (result["text"].strip(), result["sentences"]) == ("", [])


def test_models_tell_if_they_translate_simultaneously(client, tmp_path):
    rows = client.get("/v1/models").json()["models"]
    flags = {row["name"]: row["simultaneous"] for row in rows}
    pivots = dict.fromkeys(("wait-k+de-fr",), False)
    assert flags == {"wait-k": True, "monotonic": True, "ordinary": False, "de-fr": False} | pivots
    for name, changes in {
        "reverse": {"encoder": FORWARD["encoder"] | {"reverse": True}},
        "both": {"encoder": FORWARD["encoder"] | {"direction": "both"}},
        "bridge": {"decoder": FORWARD["decoder"] | {"bridge": "learned"}},
        "position": {"attention": WAIT_K["attention"] | {"features": ["position"]}},
    }.items():
        assert not read_model_info(write_model(tmp_path / name, WAIT_K | changes)).simultaneous


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "ordinary"}, 400, "simultaneous translation needs a model with model.attention.window"),
        ({"model": "wait-k+de-fr"}, 400, "simultaneous translation needs one model"),
        ({"model": "wait-k", "source": "auto"}, 400, "source and target must be a direction served here"),
        ({"text": "a " * 2501}, 413, "the text must have at most 5,000 characters in simultaneous translation"),
        ({"text": "the \ud800 "}, 400, "surrogate"),
        ({"text": ["the"]}, 400, "text: "),
        ({"beam": 1}, 400, "beam is not an option of this request"),
    ],
)
def test_errors_are_sentences(client, fields, status, message):
    for _ in range(2):
        response = client.post(
            "/v1/simultaneous",
            content=json.dumps({"text": "the cat ", "model": "wait-k", **fields}),
            headers={"content-type": "application/json"},
        )
        assert response.status_code == status
        assert message in response.json()["error"]
