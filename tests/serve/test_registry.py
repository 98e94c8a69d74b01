"""Loading and unloading of models, and sentences that are tokenized once."""

import asyncio
import gc
import os
import shutil
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch

from rnnsearch.errors import ModelError
from rnnsearch.search.hypothesis import SearchCancelled
from rnnsearch.serve import registry as registry_module
from rnnsearch.serve.batching import TranslationJob
from rnnsearch.serve.limits import ServeError, Settings
from rnnsearch.serve.registry import Registry
from rnnsearch.serve.served_model import BatchOptions, RequestOptions, ServedModel
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator


class Loader:
    """Loads models after `go` is set, and counts how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()
        self.calls = 0
        self.released: list[bool] = []
        self._load = registry_module.load
        monkeypatch.setattr(registry_module, "load", self)

    def __call__(self, folder: Path, device: str) -> Translator:
        self.calls += 1
        self.entered.set()
        self.released.append(self.go.wait(10))
        return self._load(folder, device)


async def use(registry: Registry, name: str | None = None) -> ServedModel:
    """Lease a model for a moment and return it."""
    async with registry.lease(registry.find(name)) as model:
        return model


def run(
    folders: list[Path], scenario: Callable[[Registry], Coroutine[Any, Any, Any]], settings: Settings | None = None
) -> Any:
    """Run a scenario with a new registry and return its result."""

    async def with_registry() -> Any:
        registry = Registry(folders, settings or Settings())
        try:
            return await scenario(registry)
        finally:
            await registry.close()

    return asyncio.run(with_registry())


def test_model_in_a_folder_whose_name_is_not_utf8_can_be_found(folders, tmp_path):
    folder = tmp_path / os.fsdecode(b"m\xfcnchen")
    shutil.copytree(folders[0], folder)

    async def scenario(registry: Registry) -> None:
        [info] = registry.models.values()
        assert info.name == "m\ufffdnchen"
        assert (await use(registry, info.name)).info == info

    run([folder], scenario)


def test_loading_continues_if_the_first_request_is_cancelled(folders, monkeypatch):
    loader = Loader(monkeypatch)

    async def scenario(registry: Registry) -> None:
        first = asyncio.create_task(use(registry))
        await asyncio.to_thread(loader.entered.wait, 20)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        loader.go.set()
        model = await use(registry)
        assert registry.loaded == [model]

    run(folders, scenario)
    assert loader.released == [True], "the event loop was blocked until the model was loaded"
    assert loader.calls == 1, "the second request gets the model that the first has started to load"


def test_concurrent_requests_load_a_model_once(folders, monkeypatch):
    loader = Loader(monkeypatch)
    loader.go.set()

    async def scenario(registry: Registry) -> None:
        first, second = await asyncio.gather(use(registry), use(registry))
        assert first is second is await use(registry)

    run(folders, scenario)
    assert loader.calls == 1


def test_alignment_ends_with_its_last_request(folders, monkeypatch):
    alignments = []
    monkeypatch.setattr(Translation, "alignment", property(alignments.append))

    async def scenario(registry: Registry) -> None:
        model = await use(registry)
        [source] = await model.segment(["the dog sees the cat"])
        jobs = [TranslationJob(source, 6, beam=5)] * 2
        with pytest.raises(SearchCancelled):
            model._translate_batch(BatchOptions(5, 5, align=True), jobs, lambda: len(alignments) == 3)

    run(folders, scenario)
    assert len(alignments) == 3


def test_loading_is_tried_again_after_an_error(folders, monkeypatch):
    def broken(*_: Any) -> Any:
        raise ModelError("it is broken")

    async def scenario(registry: Registry) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(registry_module, "load", broken)
            outcomes = await asyncio.gather(use(registry), use(registry), return_exceptions=True)
            message = "the model en-de cannot be loaded; see the server's log"
            assert [str(outcome) for outcome in outcomes] == [message] * 2
        assert (await use(registry)).info.name == "en-de"

    run(folders, scenario)


def test_close_cancels_loading(folders, monkeypatch):
    loader = Loader(monkeypatch)

    async def scenario(registry: Registry) -> list[Any]:
        request = asyncio.create_task(use(registry))
        await asyncio.to_thread(loader.entered.wait, 20)
        await registry.close()
        loader.go.set()
        return await asyncio.gather(request, return_exceptions=True)

    [outcome] = run(folders, scenario)
    assert isinstance(outcome, asyncio.CancelledError)


def test_leased_models_are_not_unloaded(folders):
    async def scenario(registry: Registry) -> None:
        async with registry.lease(registry.find("en-de")) as model:
            # Another model is requested repeatedly before this one has anything to translate.
            assert await use(registry, "de-en") is await use(registry, "de-en")
            assert len(await model.translate(["the cat"], RequestOptions())) == 1
        await use(registry, "de-en")
        assert [model.info.name for model in registry.loaded] == ["de-en"], "models without leases are unloaded"

    run(folders, scenario, Settings(max_loaded=1))


def test_the_model_unused_for_the_longest_time_is_unloaded(folders, tmp_path):
    third = shutil.copytree(folders[1], tmp_path / "third")

    async def scenario(registry: Registry) -> set[str]:
        for name in ("en-de", "de-en", "en-de", "third"):
            await use(registry, name)
        return {model.info.name for model in registry.loaded}

    assert run([*folders, third], scenario, Settings(max_loaded=2)) == {"en-de", "third"}


def test_unloaded_models_are_freed(folders):
    """Every switch would otherwise need the memory of another model, until Python collects its objects."""

    async def scenario(registry: Registry) -> None:
        unloaded = []
        for name in ("en-de", "de-en", "en-de", "de-en"):
            async with registry.lease(registry.find(name)) as model:
                await model.translate(["the cat"], RequestOptions())
                unloaded.append(weakref.ref(model.translator.system.model))
            del model
            assert [freed() is None for freed in unloaded] == [True] * (len(unloaded) - 1) + [False]

    is_enabled = gc.isenabled()
    gc.disable()
    try:
        run(folders, scenario, Settings(max_loaded=1))
    finally:
        if is_enabled:
            gc.enable()


def test_closed_registry_rejects_requests(folders):
    async def scenario(registry: Registry) -> None:
        model = await use(registry)
        await registry.close()
        for request in (model.translate(["the cat"], RequestOptions()), model.call(lambda _: None, 1)):
            with pytest.raises(ServeError, match="the server is shutting down") as caught:
                await request
            assert (caught.value.status, caught.value.retry_after) == (503, 1)

    run(folders, scenario)


class TokenizerCalls:
    """Counts how often each text is tokenized by a model's source tokenizer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, translator: Translator) -> None:
        self.counts = Counter[str]()
        for name in ("ids", "segment", "fits"):
            monkeypatch.setattr(translator.source, name, self._counted(getattr(translator.source, name)))

    def _counted(self, tokenize: Callable[..., Any]) -> Callable[..., Any]:
        def counted(texts: Any, *args: Any) -> Any:
            self.counts.update([texts] if isinstance(texts, str) else texts)
            return tokenize(texts, *args)

        return counted


def test_each_sentence_is_tokenized_once(folders, monkeypatch):
    # Sentences of both requests share a batch; one has a prefix, one has n best translations.
    sentences = ["the dog sees a big bird.", "the cat", "a bird sees the dog."]

    async def scenario(registry: Registry) -> Counter[str]:
        model = await use(registry)
        calls = TokenizerCalls(monkeypatch, model.translator)
        await asyncio.gather(
            model.translate(sentences[:2], RequestOptions()),
            model.translate(sentences[2:], RequestOptions(BatchOptions(n_best=2)), prefixes=["ein V"]),
        )
        return calls.counts

    assert run(folders, scenario) == Counter(sentences)


def test_each_sentence_of_a_request_is_tokenized_once(serve, monkeypatch):
    http = serve()
    assert http.post("/v1/translate", json={"text": "the cat"}).status_code == 200  # loads the model
    [model] = http.app.state.service.registry.loaded
    requests: dict[str, dict[str, Any]] = {
        "/translate": {"q": "The cat sees. The dog!", "source": "en", "target": "de"},
        "/v1/translate": {"text": ["A bird sees the cat.", "the small dog"], "n_best": 2},
        "/v1/complete": {"text": "a big bird", "prefix": "ei"},
        "/v1/alternatives": {"text": "the big dog", "translation": "der Hund", "word": 1},
    }
    streamed = {"text": "the small cat. The bird sees.", "stream": True}
    calls = TokenizerCalls(monkeypatch, model.translator)
    for path, body in [*requests.items(), ("/v1/translate", streamed)]:
        assert http.post(path, json=body).status_code == 200
    sentences = ["The cat sees.", "The dog!", "A bird sees the cat.", "the small dog", "a big bird", "the big dog"]
    sentences += ["the small cat.", "The bird sees."]
    assert calls.counts == Counter(sentences)


def test_results_do_not_depend_on_the_number_of_threads(folders):
    # With two threads, the sentences are translated in two batches at the same time.
    sentences = [
        f"the {' '.join(['cat', 'dog', 'bird'][: n % 4])} sees {'a big red dog ' * (n % 3)}." for n in range(24)
    ]

    def translate_together(threads: int) -> tuple[list[str], list[int]]:
        torch.set_num_threads(threads)
        batch_sizes: list[int] = []

        async def translate() -> list[str]:
            registry = Registry(folders, Settings(), lambda _, batch: batch_sizes.append(batch.sentences))
            model = await use(registry)
            results = await asyncio.gather(*(model.translate([sentence], RequestOptions()) for sentence in sentences))
            await registry.close()
            return [translation.text for [[translation]] in results]

        return asyncio.run(translate()), batch_sizes

    texts_with_one, sizes_with_one = translate_together(1)
    texts_with_two, sizes_with_two = translate_together(2)
    torch.set_num_threads(1)
    assert texts_with_two == texts_with_one
    assert (sizes_with_one, sizes_with_two) == ([24], [12, 12])
