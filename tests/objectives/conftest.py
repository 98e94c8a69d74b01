"""A tiny model with attention in float64, and a batch of pairs of different lengths with links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from rnnsearch import config as run_config
from rnnsearch.config import BatchConfig, ModelConfig, ObjectiveConfig, RunConfig
from rnnsearch.data.batches import Batch, Batches
from rnnsearch.data.links import ragged_links
from rnnsearch.data.parallel import ParallelIds
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.systems.build import build

SOURCE = [[5, 6, 7, 4], [7, 5], [6]]
TARGET = [[4, 5], [6, 7, 5, 4], [8, 4]]
LINKS = [{(0, 0), (1, 1), (3, 1)}, {(0, 0), (1, 3), (0, 3), (1, 1)}, {(0, 0)}]
"""(source symbol, target symbol)"""
SOURCES, TARGETS = 9, 10


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


Make = Callable[..., TranslationModel]


@pytest.fixture
def make() -> Make:
    """Makes a model in float64, its weights large; keywords go into `[objective]`, `attention` into the model's."""

    def made(
        attention: dict[str, Any] | None = None, seed: int = 1, turned: bool = False, **objective: Any
    ) -> TranslationModel:
        config = ModelConfig.model_validate(
            {
                "embedding": 5,
                "encoder": {"type": "bidirectional", "cell": "gru", "size": 4},
                "attention": {"score": "additive", "size": 6, **(attention or {})},
                "decoder": {"type": "bahdanau", "cell": "gru", "size": 5, "maxout": 4},
            }
        )
        sizes = (TARGETS, SOURCES) if turned else (SOURCES, TARGETS)
        model = build(config, *sizes, seed, ObjectiveConfig.model_validate(objective)).double()
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data.normal_(std=0.6, generator=generator)
        return model

    return made


def batch_of(numbers: list[int]) -> Batch:
    sides = {"en": [SOURCE[n] for n in numbers], "de": [TARGET[n] for n in numbers]}
    ids = ParallelIds.of(sides, ragged_links(LINKS[n] for n in numbers))
    [batch] = Batches(ids, BatchConfig(sentences=len(numbers)), None, 1).epoch(0)
    return batch


@pytest.fixture
def batches() -> Callable[[list[int]], Batch]:
    """The batch of these pairs' numbers; its `indices` count within them."""
    return batch_of


RUN = {
    "data": {
        "source": "aa", "target": "bb", "train": ["train.aa|train.bb"], "alignments": ["train.align"],
        "dev": "dev.aa|dev.bb", "test_size": 0,
    },
    "text": {"type": "words", "vocabulary": 20},
    "model": {
        "embedding": 8,
        "encoder": {"type": "bidirectional", "cell": "gru", "size": 6},
        "attention": {"score": "additive", "size": 7},
        "decoder": {"type": "bahdanau", "cell": "gru", "size": 9, "maxout": 5},
        "dropout": {"embedding": 0.1, "readout": 0.1},
    },
    "training": {
        "batch": {"sentences": 8}, "optimiser": {"type": "adam", "learning_rate": 0.01}, "dev_bleu": False,
        "threads": 1, "device": "cpu",
    },
}  # fmt: skip


@pytest.fixture(scope="session")
def configure() -> Callable[..., RunConfig]:
    """Makes a run's config: an `[objective]`, `[training]` by keywords, `tables` over the whole."""

    def made(objective: dict[str, Any], tables: dict[str, Any] | None = None, **training: Any) -> RunConfig:
        whole = run_config.merge(RUN, {"objective": objective, "training": training})
        return run_config.resolve(run_config.merge(whole, tables or {}))

    return made
