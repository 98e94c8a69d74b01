"""A tiny corpus, a tiny model and a recording reporter for the tests of training."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig, resolve
from rnnsearch.data.batches import Batches
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood, likelihood
from rnnsearch.systems.build import build
from rnnsearch.systems.parameters import ParameterGroup
from rnnsearch.training.loop import Task, Trainer
from rnnsearch.training.run import train
from rnnsearch.weights import read_weights

WORDS = ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki"]
MODEL = {
    "embedding": 8,
    "encoder": {"type": "bidirectional", "cell": "gru", "size": 6},
    "attention": {"score": "additive", "size": 7},
    "decoder": {"type": "bahdanau", "cell": "gru", "size": 9, "maxout": 5},
    "dropout": {"embedding": 0.2, "annotations": 0.1, "readout": 0.2, "word": 0.1},
}
TRAINING = {
    "batch": {"sentences": 8, "sort_batches": 2},
    "optimiser": {"type": "adam", "learning_rate": 0.01},
    "dev_bleu": False,
    "threads": 1,
    "device": "cpu",
}


class Recorder:
    """A reporter that keeps what it is told, and calls `hook` after each update."""

    def __init__(self, hook: Callable[[int], None] = lambda _: None) -> None:
        self.hook = hook
        self.updates: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.messages: list[str] = []
        self.reason = ""
        """Why the run ended."""

    def update(self, row: dict[str, Any]) -> None:
        self.updates.append(row)
        self.hook(row["update"])

    def evaluated(self, row: dict[str, Any]) -> None:
        self.evaluations.append(row)

    def message(self, text: str) -> None:
        self.messages.append(text)


def write_corpus(folder: Path) -> None:
    """44 training pairs (6 batches of 8) and 12 dev pairs; the target is the source reversed, as their links say."""
    rng = random.Random(1)
    seen = sorted({tuple(rng.choices(WORDS, k=rng.randint(2, 6))) for _ in range(100)})
    rng.shuffle(seen)
    for part, rows in (("train", seen[:44]), ("dev", seen[44:56])):
        (folder / f"{part}.aa").write_text("".join(f"{' '.join(row)}\n" for row in rows))
        (folder / f"{part}.bb").write_text("".join(f"{' '.join(reversed(row))}\n" for row in rows))
        links = [" ".join(f"{i}-{len(row) - 1 - i}" for i in range(len(row))) for row in rows]
        (folder / f"{part}.align").write_text("".join(f"{line}\n" for line in links))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


Configure = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def configure(corpus: Path) -> Configure:
    """Makes a config: keywords go into `[training]`, `tables` over the whole."""

    def make(tables: dict[str, Any] | None = None, **training: Any) -> RunConfig:
        whole = {
            "data": {
                "source": "aa",
                "target": "bb",
                "train": ["train.aa|train.bb"],
                "dev": "dev.aa|dev.bb",
                "test_size": 0,
                "cleaning": {"drop_identical": False},
            },
            "text": {"type": "words", "vocabulary": 20},
            "model": MODEL,
            "training": run_config.merge(TRAINING, training),
        }
        return resolve(run_config.merge(whole, tables or {}), base=corpus)

    return make


@pytest.fixture(scope="session")
def prepared(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(configure(max_updates=1), tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="session")
def aligned(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The same corpus with its word alignments."""
    alignments = {"data": {"alignments": ["train.align"], "dev_alignments": "dev.align"}}
    return prepare(configure(alignments, max_updates=1), tmp_path_factory.mktemp("aligned") / "data")


@pytest.fixture(scope="session")
def recorder() -> type[Recorder]:
    return Recorder


@pytest.fixture(scope="session")
def standing() -> Callable[[Path], tuple[dict[str, torch.Tensor], dict[str, Any]]]:
    """All that a run folder's last checkpoint holds, but for the time it took."""

    def read(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        last = folder / "checkpoints" / "last"
        tensors = {}
        for name in ("model", "optimiser"):
            tensors |= {f"{name} {key}": t for key, t in read_weights(last / f"{name}.safetensors").items()}
        state = json.loads((last / "state.json").read_text())
        del state["seconds"], state["waited"]
        for row in state["history"]:
            del row["seconds"]
        return tensors, state

    return read


@pytest.fixture
def learn(configure: Configure, prepared: Prepared, tmp_path: Path) -> Callable[..., Recorder]:
    """Trains in the folder `name` by `[training]` of keywords and other `tables`; returns what its reporter was told.
    `after`: called with the number of each update; `data`: other than those of `prepared`."""

    def run(
        name: str = "run",
        tables: dict[str, Any] | None = None,
        *,
        resume: bool = False,
        after: Callable[[int], None] = lambda _: None,
        data: Prepared = prepared,
        **training: Any,
    ) -> Recorder:
        told = Recorder(after)
        told.reason = train(configure(tables, **training), data, tmp_path / name, told, resume=resume)
        return told

    return run


@pytest.fixture
def trainer(prepared: Prepared, recorder: Any, tmp_path: Path) -> Callable[..., Trainer[TranslationModel]]:
    """Makes a Trainer of a config, without a dev set, its checkpoints in a folder `name`; `groups`: of a model."""

    def make(
        config: RunConfig,
        objective: Likelihood | None = None,
        name: str = "checkpoints",
        groups: Callable[[TranslationModel], list[ParameterGroup]] = lambda model: [
            ParameterGroup([*model.parameters()])
        ],
    ) -> Trainer[TranslationModel]:
        training = config.training
        model = build(config.model, len(prepared.source), len(prepared.target), training.seed, config.objective)
        (tmp_path / name).mkdir(exist_ok=True)
        task = Task(model, groups(model), objective or likelihood(), None)
        batches = Batches(prepared.train, training.batch, None, training.seed)
        return Trainer(training, task, batches, torch.device("cpu"), tmp_path / name, recorder(), lambda: None)

    return make
