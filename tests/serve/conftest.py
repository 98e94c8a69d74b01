"""Small untrained models behind an application, and a client that talks to it without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from rnnsearch.config import resolve
from rnnsearch.serve.http import create_app
from rnnsearch.serve.limits import Settings
from rnnsearch.systems.folder import save_system
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.words import train_words

ENGLISH = ["the small cat sees the dog.", "the dog sees a big bird.", "A bird sees the cat! Is it red?"]
GERMAN = ["die kleine Katze sieht den Hund.", "der Hund sieht einen großen Vogel.", "Ein Vogel sieht die Katze!"]
ATTENTION = {
    "embedding": 12,
    "encoder": {"type": "bidirectional", "cell": "gru", "size": 10},
    "attention": {"score": "additive", "size": 9},
    "decoder": {"type": "bahdanau", "cell": "gru", "size": 11, "maxout": 7},
    "init": {"type": "uniform", "scale": 0.8},
}
ONE_VECTOR = {
    "embedding": 12,
    "encoder": {"type": "unidirectional", "cell": "gru", "size": 10},
    "decoder": {"type": "rnnencdec", "cell": "gru", "size": 11, "maxout": 7},
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def write_model(folder: Path, source: str, target: str, model: dict[str, Any], kind: str = "bpe") -> Path:
    """A model folder with drawn, untrained weights."""
    train = {"words": train_words, "bpe": train_bpe}[kind]
    config = resolve(
        {
            "data": {"source": source, "target": target, "train": ["x.tsv"]},
            "text": {"type": kind, "vocabulary": 340},
            "model": model,
            "training": {"max_updates": 1, "optimiser": {"type": "sgd", "learning_rate": 1.0}},
            "search": {"beam": 3, "max_ratio": 1.0, "max_extra": 4},
        }
    )
    sides = {"en": ENGLISH, "de": GERMAN}
    tokenizers = {side: train(sides[side], 340, 1) for side in (source, target)}
    save_system(folder, TranslationSystem.make(config, tokenizers, 7))
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """en-de with attention, de-en without."""
    place = tmp_path_factory.mktemp("served")
    return [
        write_model(place / "en-de", "en", "de", ATTENTION),
        write_model(place / "de-en", "de", "en", ONE_VECTOR, "words"),
    ]


Talk = Callable[[httpx.AsyncClient], Awaitable[Any]]


@asynccontextmanager
async def client(folders: Sequence[Path], settings: Settings | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application of its own."""
    app = create_app(folders, settings)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://t") as http:
        http.app = app  # type: ignore[attr-defined]
        yield http


@pytest.fixture
def talk(folders: list[Path]) -> Callable[..., Any]:
    """Runs a conversation, `async def talk(client)`, with an application of these settings."""

    def run(conversation: Talk, **settings: Any) -> Any:
        async def held() -> Any:
            async with client(folders, Settings(**settings)) as http:
                return await conversation(http)

        return asyncio.run(held())

    return run
