"""Every combination of the tables, so that a class added to one of them is under these laws at once.

A test that takes `whole` runs for every legal combination; one that takes `system` runs for those whose encoder and
decoder have the same cell (each cell in each encoder and decoder, each encoder with each decoder), which is enough
where the law is about the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch

from rnnsearch.config import RunConfig, resolve
from rnnsearch.data.batches import Batch, make_batch
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.build import build, check
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.models.translation_model import TranslationModel

OPTIONS = {"size": 4, "maxout": 6}
"""A value for every option that a class may need (of `[model.attention]` and `[model.decoder]`)."""
DROPOUT = {"embedding": 0.3, "readout": 0.3, "word": 0.2}
PAIRS = [([5, 6, 7, 8], [4, 5]), ([9], [6, 7, 8, 9, 10]), ([10, 4], [11]), ([7, 7, 7, 5, 6, 11], [])]
SYMBOLS = 12


def tables(encoder: str, encoder_cell: str, decoder: str, cell: str | None, attention: dict[str, Any] | None) -> Any:
    """The run file of one combination."""
    options = {name: OPTIONS[name] for name in DECODERS[decoder].options - {"cell"}}
    model = {
        "embedding": 6,
        "encoder": {"type": encoder, "cell": encoder_cell, "size": 5},
        "decoder": {"type": decoder, "size": 7, **options, **({"cell": cell} if cell else {})},
        "dropout": DROPOUT | ({"annotations": 0.3} if DECODERS[decoder].attends else {}),
        **({"attention": attention} if attention else {}),
    }
    data = {"source": "en", "target": "de", "corpus": "x"}
    return {"data": data, "model": model, "training": {"max_epochs": 1}}


def attentions() -> Iterator[dict[str, Any]]:
    """Every score x window x normaliser, with the options that they need."""
    for score, window, normaliser in product(SCORES, WINDOWS, NORMALISERS):
        options = {name: OPTIONS[name] for name in SCORES[score].options}
        yield {"score": score, "window": window, "normaliser": normaliser, **options}


def combinations() -> Iterator[tuple[str, RunConfig]]:
    """Every combination, legal or not, with its name."""
    choices = product(ENCODERS, CELLS, DECODERS, [None, *CELLS], [None, *attentions()])
    for encoder, encoder_cell, decoder, cell, attention in choices:
        parts = [encoder, encoder_cell, decoder, cell or "no cell"]
        name = " ".join(
            [*parts, *([attention["score"], attention["window"], attention["normaliser"]] if attention else [])]
        )
        yield name, resolve(tables(encoder, encoder_cell, decoder, cell, attention))


ALL = dict(combinations())
LEGAL = {name: config for name, config in ALL.items() if not check(config)}


def same_cell(config: RunConfig) -> bool:
    return config.model.decoder.cell in {None, config.model.encoder.cell}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`whole`: every legal combination; `system`: those with one cell; `illegal`: the others."""
    sets = {
        "whole": LEGAL,
        "system": {name: config for name, config in LEGAL.items() if same_cell(config)},
        "illegal": {name: config for name, config in ALL.items() if name not in LEGAL},
    }
    for argument, chosen in sets.items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, chosen.values(), ids=chosen.keys())


def lively(model: TranslationModel) -> TranslationModel:
    """A model with larger weights than a new one has, biases too, so that no part of it is near zero."""
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.4)
    return model


@pytest.fixture
def make() -> Callable[[RunConfig], TranslationModel]:
    """The model of a combination over 12 symbols a side, its weights lively."""
    return lambda config: lively(build(config.model, SYMBOLS, SYMBOLS, seed=1))


@pytest.fixture
def pairs() -> list[tuple[list[int], list[int]]]:
    """Sentence pairs of several lengths, one with an empty target."""
    return PAIRS


@pytest.fixture
def batch() -> Batch:
    """All pairs as one batch."""
    return make_batch(PAIRS, range(len(PAIRS)))


@pytest.fixture
def choices() -> dict[str, dict[str, RunConfig]]:
    """All combinations, and the legal ones, by name."""
    return {"all": ALL, "legal": LEGAL}


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Such small products are slower on several threads, most of all beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
