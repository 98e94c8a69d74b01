"""Loading: models are loaded once, whoever waits, and nobody else waits for it."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch

from rnnsearch.errors import ModelError
from rnnsearch.serve import registry as module
from rnnsearch.serve.limits import ServeError, Settings
from rnnsearch.serve.registry import Registry, Search, Served
from rnnsearch.translator.translator import Translator


class Loader:
    """Loads as ever, but only when told to; counts how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.entered = threading.Event(), threading.Event()
        self.calls = 0
        self.released: list[bool] = []
        self._load = module.load
        monkeypatch.setattr(module, "load", self)

    def __call__(self, folder: Path, device: str) -> Translator:
        self.calls += 1
        self.entered.set()
        self.released.append(self.go.wait(10))
        return self._load(folder, device)


async def used(registry: Registry, name: str | None = None) -> Served:
    """A model that somebody has worked with."""
    async with registry.lease(registry.find(name)) as served:
        return served


def run(
    folders: list[Path], conversation: Callable[[Registry], Coroutine[Any, Any, Any]], settings: Settings | None = None
) -> Any:
    async def held() -> Any:
        registry = Registry(folders, settings or Settings())
        try:
            return await conversation(registry)
        finally:
            await registry.close()

    return asyncio.run(held())


def test_who_gives_up_while_a_model_loads_holds_nobody_up(folders, monkeypatch):
    loader = Loader(monkeypatch)

    async def conversation(registry: Registry) -> None:
        first = asyncio.create_task(used(registry))
        await asyncio.to_thread(loader.entered.wait, 20)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        loader.go.set()
        served = await used(registry)
        assert registry.loaded == [served]

    run(folders, conversation)
    assert loader.released == [True], "the event loop stood still until the model was there"
    assert loader.calls == 1, "what the first had begun to load, the second got"


def test_two_first_requests_load_a_model_once(folders, monkeypatch):
    loader = Loader(monkeypatch)
    loader.go.set()

    async def conversation(registry: Registry) -> None:
        first, second = await asyncio.gather(used(registry), used(registry))
        assert first is second is await used(registry)

    run(folders, conversation)
    assert loader.calls == 1


def test_a_model_that_cannot_be_loaded_is_tried_again(folders, monkeypatch):
    def broken(*_: Any) -> Any:
        raise ModelError("it is broken")

    async def conversation(registry: Registry) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(module, "load", broken)
            outcomes = await asyncio.gather(used(registry), used(registry), return_exceptions=True)
            said = "the model en-de cannot be loaded; the server's log says why"
            assert [str(outcome) for outcome in outcomes] == [said] * 2
        assert (await used(registry)).about.name == "en-de"

    run(folders, conversation)


def test_a_server_that_closes_leaves_no_model_loading(folders, monkeypatch):
    loader = Loader(monkeypatch)

    async def conversation(registry: Registry) -> list[Any]:
        asked = asyncio.create_task(used(registry))
        await asyncio.to_thread(loader.entered.wait, 20)
        await registry.close()
        loader.go.set()
        return await asyncio.gather(asked, return_exceptions=True)

    [outcome] = run(folders, conversation)
    assert isinstance(outcome, asyncio.CancelledError)


def test_a_model_that_somebody_works_with_is_not_let_go(folders):
    async def conversation(registry: Registry) -> None:
        async with registry.lease(registry.find("en-de")) as served:
            # The other model is wanted at the same time, again and again, before this one is given anything to do.
            assert await used(registry, "de-en") is await used(registry, "de-en")
            assert len(await served.translate(["the cat"], Search())) == 1
        await used(registry, "de-en")
        assert [kept.about.name for kept in registry.loaded] == ["de-en"], "what nobody works with is let go"

    run(folders, conversation, Settings(max_loaded=1))


def test_the_model_unused_for_longest_is_let_go(folders, tmp_path):
    third = shutil.copytree(folders[1], tmp_path / "third")

    async def conversation(registry: Registry) -> set[str]:
        for name in ("en-de", "de-en", "en-de", "third"):
            await used(registry, name)
        return {served.about.name for served in registry.loaded}

    assert run([*folders, third], conversation, Settings(max_loaded=2)) == {"en-de", "third"}


def test_a_server_that_shuts_down_says_so(folders):
    async def conversation(registry: Registry) -> None:
        served = await used(registry)
        await registry.close()
        for asked in (served.translate(["the cat"], Search()), served.aside(lambda _: None, 1)):
            with pytest.raises(ServeError, match="the server is shutting down") as caught:
                await asked
            assert (caught.value.status, caught.value.retry_after) == (503, 1)

    run(folders, conversation)


def test_threads_side_by_side_find_what_one_finds(folders):
    """With two threads, many sentences that come together are searched in several batches at once."""
    sentences = [
        f"the {' '.join(['cat', 'dog', 'bird'][: n % 4])} sees {'a big red dog ' * (n % 3)}." for n in range(24)
    ]

    def together(threads: int) -> tuple[list[str], list[int]]:
        torch.set_num_threads(threads)
        formed: list[int] = []

        async def held() -> list[str]:
            registry = Registry(folders, Settings(), lambda _, batch: formed.append(batch.sentences))
            served = await used(registry)
            found = await asyncio.gather(*(served.translate([sentence], Search()) for sentence in sentences))
            await registry.close()
            return [best.text for [[best]] in found]

        return asyncio.run(held()), formed

    alone, one = together(1)
    beside, two = together(2)
    torch.set_num_threads(1)
    assert beside == alone
    assert (one, two) == ([24], [12, 12])
