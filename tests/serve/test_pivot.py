"""Directions through a third language on a server."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import rnnsearch
from rnnsearch.errors import ModelError
from rnnsearch.search.hypothesis import SearchCancelled
from rnnsearch.serve import registry as registry_module
from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import ServeError, Settings
from rnnsearch.serve.registry import Registry
from rnnsearch.serve.served_model import RequestOptions
from rnnsearch.systems.folder import save_system
from rnnsearch.text.terms import Glossary
from rnnsearch.translator.pivot import PivotTranslator
from tests.command_line import run
from tests.untrained import BAHDANAU, TEXT, untrained, untrained_multiway, with_context, write_model

NAME = "en-de+de-fr"
TEXTS = [*TEXT["en"], "42", "the dog sees https://example.org a bird."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the folders of an English-German and a German-French model."""
    root = tmp_path_factory.mktemp("served")
    return [
        write_model(root / "en-de", BAHDANAU, "bpe"),
        write_model(root / "de-fr", {**BAHDANAU, "embedding": 11}, "bpe", ("de", "fr")),
    ]


@pytest.fixture(scope="module")
def http(folders: list[Path]) -> Iterator[TestClient]:
    app = create_app(folders, Settings(pivot_languages=("de",)))
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def through(folders: list[Path]) -> PivotTranslator:
    translator = rnnsearch.pivot(*folders)
    translator.protect = ("urls", "emails", "placeholders")
    return translator


def translate(client: TestClient, text: Any, **fields: Any) -> Any:
    body = {"text": text, "source": "en", "target": "fr", **fields}
    return client.post("/v1/translate", json=body)


def test_direction_is_listed_with_its_language(http: TestClient) -> None:
    models = {model["name"]: model for model in http.get("/v1/models").json()["models"]}
    assert list(models) == ["en-de", "de-fr", NAME]
    pivot = models[NAME]
    assert (pivot["source"], pivot["target"], pivot["pivot"], pivot["pivot_name"]) == ("en", "fr", "de", "German")
    assert models["en-de"]["pivot"] is None
    languages = {row["code"]: row["targets"] for row in http.get("/languages").json()}
    assert languages == {"en": ["de", "fr"], "de": ["fr"], "fr": []}
    assert http.get("/listPairs").json()["responseData"][-1] == {"sourceLanguage": "eng", "targetLanguage": "fra"}


def test_translations_are_those_of_a_pivot_translator(http: TestClient, through: PivotTranslator) -> None:
    rows = translate(http, TEXTS, n_best=3, beam=3, attention=True).json()["translations"]
    first_options = through.models[0].options(3)
    assert len(rows) == len(TEXTS)
    for row in rows:
        assert row["model"] == NAME
        for sentence in row["sentences"]:
            source = sentence["source"]
            [intermediate] = [
                n_best[0] for n_best in through.models[0].n_best(through.segment([source]), first_options)
            ]
            expected = through.n_best([source], through.options(3, 3))[0]
            assert [best["text"] for best in sentence["best"]] == [one.text for one in expected]
            for best, one in zip(sentence["best"], expected, strict=True):
                assert best["pivot"] == one.pivot == intermediate.text
                assert best["log_prob"] == pytest.approx(one.log_prob, abs=1e-3)
                assert [tuple(link) for link in best["alignment"]] == list(one.alignment)
                assert len(best["attention"] or []) == len(one.words if one.word_attention is not None else [])
        assert row["sentences"]
    answer = http.post("/translate", json={"q": TEXTS[0], "source": "en", "target": "fr"}).json()
    assert answer["translatedText"] == through.translate_text(TEXTS[0]).text


def test_several_intermediate_translations_are_those_of_a_pivot_translator(folders: list[Path]) -> None:
    through = rnnsearch.pivot(*folders, n_best=3, beam=4)
    through.protect = ("urls", "emails", "placeholders")
    app = create_app(folders, Settings(pivot_languages=("de",), pivot_n_best=3))
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        rows = translate(client, TEXTS, n_best=2, beam=4).json()["translations"]
        prefix = client.post(
            "/v1/complete", json={"text": TEXT["en"][0], "prefix": "le ", "source": "en", "target": "fr"}
        )
    pivots = set()
    for row in rows:
        for sentence in row["sentences"]:
            [expected] = through.n_best([sentence["source"]], through.options(4, 2))
            assert [best["text"] for best in sentence["best"]] == [one.text for one in expected]
            for best, one in zip(sentence["best"], expected, strict=True):
                assert best["pivot"] == one.pivot
                assert best["log_prob"] == pytest.approx(one.log_prob, abs=1e-3)
                pivots.add(one.pivot)
    assert pivots != {translation.text for translation in through.models[0].translate(TEXTS)}
    assert all(completion["text"].startswith("le ") for completion in prefix.json()["completions"])


def test_both_models_count_the_sentences(http: TestClient) -> None:
    def counts() -> list[float]:
        lines = http.get("/metrics").text.splitlines()
        names = [f'rnnsearch_batch_sentences_sum{{model="{name}"}} ' for name in ("en-de", "de-fr")]
        return [float(line.removeprefix(name)) for name in names for line in lines if line.startswith(name)]

    translate(http, TEXT["en"][0])
    before = counts()
    translate(http, TEXT["en"][:2])
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [2, 2]
    assert all(model["loaded"] for model in http.get("/v1/models").json()["models"])


def test_streamed_translation_equals_greedy_translation(http: TestClient, through: PivotTranslator) -> None:
    text = " ".join(TEXT["en"])
    events = []
    for line in translate(http, text, stream=True).text.splitlines():
        if line:
            events.append(json.loads(line.removeprefix("data:")))
    assert {event["type"] for event in events[:-1]} == {"token"}
    [done] = events[-1]["translations"]
    for sentence in done["sentences"]:
        [best] = sentence["best"]
        [[intermediate]] = through.models[0].n_best([sentence["source"]])
        [[expected]] = through.models[1].n_best([intermediate.text], through.models[1].options(1))
        assert (best["text"], best["pivot"]) == (expected.text, intermediate.text)


def test_completions_and_alternatives_are_those_of_the_second_model(http: TestClient, through: PivotTranslator) -> None:
    text = TEXT["en"][0]
    german = through.models[0].translate(text).text
    direction = {"source": "en", "target": "fr"}
    pivot = http.post("/v1/complete", json={"text": text, "prefix": "le pe", **direction}).json()
    assert pivot["model"] == NAME
    direct = http.post("/v1/complete", json={"text": german, "prefix": "le pe", "model": "de-fr"}).json()
    texts = [[completion["text"] for completion in answer["completions"]] for answer in (pivot, direct)]
    assert texts[0] == texts[1] != []
    french = http.post("/translate", json={"q": text, **direction}).json()["translatedText"]
    body = {"translation": french, "word": 0}
    pivot = http.post("/v1/alternatives", json={"text": text, **body, **direction}).json()
    direct = http.post("/v1/alternatives", json={"text": german, **body, "model": "de-fr"}).json()
    assert pivot["alternatives"] == direct["alternatives"] != []


def test_files_are_translated_through_the_third_language(http: TestClient, through: PivotTranslator) -> None:
    lines = [TEXT["en"][0], "", TEXT["en"][1]]
    upload = {"file": ("a.txt", "".join(f"{line}\n" for line in lines).encode())}
    id = http.post("/v1/files", files=upload, data={"source": "en", "target": "fr"}).json()["id"]
    deadline = time.monotonic() + 60
    while http.get(f"/v1/files/{id}").json()["state"] != "done" and time.monotonic() < deadline:
        time.sleep(0.02)
    result = http.get(f"/v1/files/{id}/result").text.splitlines()
    assert result == [through.translate_text(line).text for line in lines]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"glossary": {"cat": "chat"}}, f"a glossary needs one model; {NAME} translates through de"),
        ({"glossary": {"cat": "chat"}, "stream": True}, f"a glossary needs one model; {NAME} translates through de"),
        ({"min_confidence": 0.5}, f"min_confidence needs a calibrated model; {NAME} is not calibrated"),
    ],
)
def test_what_needs_one_model_is_rejected(http: TestClient, fields: dict[str, Any], message: str) -> None:
    response = translate(http, TEXT["en"][0], **fields)
    assert (response.status_code, response.json()["error"]) == (400, message)


def test_glossary_of_the_server_applies_to_its_model(folders: list[Path], through: PivotTranslator) -> None:
    german = through.models[0].translate(TEXT["en"][0]).text.split()[0]
    settings = Settings(pivot_languages=("de",), glossaries={"de-fr": Glossary({german: "grand oiseau"})})
    with TestClient(create_app(folders, settings), "http://localhost", raise_server_exceptions=False) as client:
        [row] = translate(client, TEXT["en"][0]).json()["translations"]
    [best] = row["sentences"][0]["best"]
    assert "grand oiseau" in best["text"] or best["missing_terms"] == [german]


def test_multiway_model_leads_through_its_languages(tmp_path: Path) -> None:
    folder = tmp_path / "europe"
    save_system(folder, untrained_multiway("en-de", "fr-de", "de-fr", "de-en", text_type="bpe"))
    app = create_app([folder], Settings(pivot_languages=("de",)))
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        names = [model["name"] for model in client.get("/v1/models").json()["models"]]
        assert names[4:] == ["europe:en-de+europe:de-fr", "europe:fr-de+europe:de-en"]
        [row] = translate(client, TEXT["en"][0], model="europe").json()["translations"]
        expected = rnnsearch.pivot(folder, source="en", language="de", target="fr").translate(TEXT["en"][0])
        assert row["text"] == expected.text


def test_context_of_the_first_model_is_read(tmp_path: Path, folders: list[Path]) -> None:
    save_system(tmp_path / "en-de", with_context(untrained(BAHDANAU, "bpe")))
    text = " ".join(TEXT["en"])
    app = create_app([tmp_path / "en-de", folders[1]], Settings(pivot_languages=("de",)))
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        answer = client.post("/translate", json={"q": text, "source": "en", "target": "fr"}).json()
    assert answer["translatedText"] == rnnsearch.pivot(tmp_path / "en-de", folders[1]).translate_text(text).text
    save_system(tmp_path / "en-de", with_context(untrained(BAHDANAU, "bpe"), type="streams", target=True))
    with pytest.raises(ModelError, match="the first model of a pivot must not read translations"):
        Registry([tmp_path / "en-de", folders[1]], Settings(pivot_languages=("de",)))


def test_languages_without_a_new_direction_are_errors(folders: list[Path], tmp_path: Path) -> None:
    message = r"no two models lead through fr in a direction that is not served already; they have de to fr, en to de"
    with pytest.raises(ModelError, match=message):
        Registry(folders, Settings(pivot_languages=("fr",)))
    direct = write_model(tmp_path / "en-fr", BAHDANAU, "bpe", ("en", "fr"))
    with pytest.raises(ModelError, match="no two models lead through de"):
        Registry([*folders, direct], Settings(pivot_languages=("de",)))


def test_command_offers_directions_through_a_language(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Settings] = []
    monkeypatch.setattr("rnnsearch.serve.server.run", lambda _, settings, *__: used.append(settings))
    assert run("serve", *folders, "--pivot-language", "de", "--pivot-language", "es").code == 0
    assert (used[0].pivot_languages, used[0].pivot_n_best) == (("de", "es"), 1)
    assert run("serve", *folders, "--pivot-language", "de", "--pivot-n-best", "5").code == 0
    assert used[1].pivot_n_best == 5
    refused = run("serve", *folders, "--pivot-n-best", "5")
    assert refused.code == 2 and "--pivot-n-best has no effect without --pivot-language" in refused.err


# Limits, cancelling and memory.


def in_registry(folders: list[Path], scenario: Callable[[Registry], Any], **settings: Any) -> None:
    """Run a scenario with a registry that serves the pivot."""

    async def with_registry() -> None:
        registry = Registry(folders, Settings(pivot_languages=("de",), **settings))
        try:
            await scenario(registry)
        finally:
            await registry.close()

    asyncio.run(with_registry())


def test_full_queue_of_the_second_model_rejects_a_request_before_the_first_search(folders: list[Path]) -> None:
    async def scenario(registry: Registry) -> None:
        async with registry.lease(registry.find(NAME)) as model, registry.lease(registry.find("de-fr")) as second:
            second.batcher._settings = Settings(max_queue=0)
            with pytest.raises(ServeError, match="the queue has 0 free slots") as error:
                await model.translate(TEXT["en"], RequestOptions())
            assert error.value.status == 429
        async with registry.lease(registry.find("en-de")) as first:
            assert first.batcher._clock == 0, "nothing was translated"

    in_registry(folders, scenario)


def test_intermediate_translations_have_the_limit_of_sentences(folders: list[Path]) -> None:
    async def scenario(registry: Registry) -> None:
        async with registry.lease(registry.find(NAME)) as model:
            limit = len(rnnsearch.load(folders[0]).segment([TEXT["en"][0]])[0].ids)
            for served in registry.loaded:
                served._settings = Settings(max_tokens=limit if served.info.name == "en-de" else 1)
            with pytest.raises(ServeError, match="a sentence must have at most 1 tokens") as error:
                await model.translate(TEXT["en"][:1], RequestOptions())
            assert error.value.status == 413

    in_registry(folders, scenario)


@pytest.mark.parametrize("name", ["en-de", "de-fr"])
def test_cancelled_request_ends_both_searches(folders: list[Path], name: str) -> None:
    started, ended = threading.Event(), threading.Event()

    def search(_: Any, __: Any, is_cancelled: Callable[[], bool]) -> Any:
        started.set()
        while not is_cancelled():
            time.sleep(0.005)
        ended.set()
        raise SearchCancelled

    async def scenario(registry: Registry) -> None:
        async with registry.lease(registry.find(NAME)) as model, registry.lease(registry.find(name)) as step:
            step.batcher._translate = search
            task = asyncio.ensure_future(model.translate(TEXT["en"], RequestOptions()))
            assert await asyncio.to_thread(started.wait, 60)
            task.cancel()
            assert await asyncio.to_thread(ended.wait, 60)
            assert all(served.batcher.waiting == 0 for served in registry.loaded)
            await asyncio.gather(task, return_exceptions=True)

    in_registry(folders, scenario)


def test_both_models_stay_in_memory_while_one_is_used(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Any] = []
    load = registry_module.load
    monkeypatch.setattr(registry_module, "load", lambda *arguments: loads.append(arguments) or load(*arguments))

    async def scenario(registry: Registry) -> None:
        async with registry.lease(registry.find(NAME)) as model:
            assert registry.is_loaded(NAME)
            await model.translate(TEXT["en"], RequestOptions())
            assert len(loads) == 2
        async with registry.lease(registry.find("de-fr")):
            assert not registry.is_loaded(NAME), "one model is loaded at most"
            assert len(loads) == 2

    in_registry(folders, scenario, max_loaded=1)
