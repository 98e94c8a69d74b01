"""A multi-way model on a server: one model per direction, with weights that are loaded once."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import rnnsearch
from rnnsearch.serve import registry as registry_module
from rnnsearch.serve.app import create_app
from rnnsearch.serve.limits import Settings
from rnnsearch.serve.registry import Registry
from rnnsearch.systems.folder import save_system
from tests.untrained import TEXT, untrained_multiway

NAMES = ["europe:en-de", "europe:fr-de", "europe:de-fr"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "europe"
    save_system(folder, untrained_multiway("en-de", "fr-de", "de-fr", text_type="bpe"))
    return folder


@pytest.fixture(scope="module")
def http(folder: Path) -> Iterator[TestClient]:
    app = create_app([folder], Settings())
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        yield client


def test_each_direction_is_a_model(http: TestClient):
    models = http.get("/v1/models").json()["models"]
    assert [(model["name"], model["source"], model["target"]) for model in models] == [
        ("europe:en-de", "en", "de"),
        ("europe:fr-de", "fr", "de"),
        ("europe:de-fr", "de", "fr"),
    ]
    languages = {row["code"]: row["targets"] for row in http.get("/languages").json()}
    assert languages == {"en": ["de"], "fr": ["de"], "de": ["fr"]}


@pytest.mark.parametrize("direction", [("en", "de"), ("fr", "de"), ("de", "fr")], ids="-".join)
def test_request_is_translated_in_its_direction(http: TestClient, folder: Path, direction: tuple[str, str]):
    source, target = direction
    text = TEXT[source][0]
    expected = rnnsearch.load(folder).translate(text, source=source, target=target).text
    answer = http.post("/translate", json={"q": text, "source": source, "target": target}).json()
    assert answer["translatedText"] == expected
    for model in (f"europe:{source}-{target}", "europe"):
        body = {"text": text, "source": source, "target": target, "model": model}
        answer = http.post("/v1/translate", json=body).json()
        assert answer["model"] == f"europe:{source}-{target}"
        assert answer["translations"][0]["text"] == expected


def test_detected_language_selects_the_direction(http: TestClient):
    text = "Le petit chat voit le chien, et le chien voit un grand oiseau."
    answer = http.post("/translate", json={"q": text, "source": "auto", "target": "de"}).json()
    assert answer["detectedLanguage"]["language"] == "fr"


def test_direction_that_is_not_served_is_an_error(http: TestClient):
    answer = http.post("/translate", json={"q": "the cat", "source": "en", "target": "fr"})
    assert answer.status_code == 400
    directions = "en to de, fr to de, de to fr"
    message = f"source and target must be a direction served here ({directions}); got en to fr"
    assert answer.json()["error"] == message


def test_weights_are_loaded_once_and_freed_with_the_last_direction(folder: Path, monkeypatch: pytest.MonkeyPatch):
    loads: list[Any] = []
    load = registry_module.load

    def counting_load(*arguments: Any) -> Any:
        loads.append(arguments)
        return load(*arguments)

    monkeypatch.setattr(registry_module, "load", counting_load)

    async def scenario() -> None:
        registry = Registry([folder], Settings(max_loaded=2))
        infos = list(registry.models.values())

        async def use(info: Any) -> Any:
            async with registry.lease(info) as model:
                return model.translator.system.model.decoder

        decoders = await asyncio.gather(*map(use, infos))
        assert len(loads) == 1
        assert decoders[0] is decoders[1] is not decoders[2]
        # The least recently used direction is unloaded; the others still have the weights.
        assert len(registry.loaded) == 2
        assert await use(infos[0]) is decoders[0]
        assert len(loads) == 1
        await registry.close()
        assert not registry.loaded

    asyncio.run(scenario())
    gc.collect()


def test_two_folders_of_one_name_are_an_error(folder: Path, tmp_path: Path):
    (tmp_path / "europe").symlink_to(folder)
    with pytest.raises(rnnsearch.RnnsearchError, match="must have folders of different names"):
        Registry([folder, tmp_path / "europe"], Settings())
