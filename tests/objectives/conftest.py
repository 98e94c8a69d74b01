"""Fixtures: a tiny float64 model with attention, and a batch of pairs of different lengths with links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rnnsearch.config import BatchConfig, ModelConfig, ObjectiveConfig
from rnnsearch.data.batches import Batch, Batches
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.links import ragged_links
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.systems.translation import build
from tests.objectives.passes import SOURCE, TARGET

LINKS = [{(0, 0), (1, 1), (3, 1)}, {(0, 0), (1, 3), (0, 3), (1, 1)}, {(0, 0)}]
"""Links as (source token, target token)."""
SOURCES, TARGETS = 9, 10


@pytest.fixture
def make() -> Callable[..., TranslationModel]:
    """Return a function that builds a float64 model with large weights.

    `attention` updates the attention table; other keywords are options of `[objective]`.
    """

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
    ids = ParallelIds.from_rows(sides, ragged_links(LINKS[n] for n in numbers))
    [batch] = Batches(ids, BatchConfig(sentences=len(numbers)), None, 1).epoch(0)
    return batch


@pytest.fixture
def batches() -> Callable[[list[int]], Batch]:
    """Return a function that makes a batch of these pairs; `batch.indices` are positions in that list."""
    return batch_of
