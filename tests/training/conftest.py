"""A tiny corpus, prepared, and runs on it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rnnsearch.config import RunConfig
from rnnsearch.data.batches import Batches
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.systems.system import ParameterGroup
from rnnsearch.systems.translation import build
from rnnsearch.training.loop import Task, Trainer
from rnnsearch.training.run import check, train
from rnnsearch.utils.distributed import Processes
from rnnsearch.utils.weights import read_weights
from tests.training.toys import ALIGNED, Recorder, nothing, sentences, toy_config, write_part


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """44 training pairs (6 batches of 8) and 12 dev pairs."""
    folder = tmp_path_factory.mktemp("corpus")
    drawn = sentences(1, 100, 2, 6)
    write_part(folder, "train", drawn[:44])
    write_part(folder, "dev", drawn[44:56])
    return folder


Configure = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def configure(corpus: Path) -> Configure:
    """Makes a config: `tables` go over the whole, keywords into `[training]`."""

    def make(tables: dict[str, Any] | None = None, **training: Any) -> RunConfig:
        return toy_config(corpus, {"training": training}, tables or {})

    return make


@pytest.fixture(scope="session")
def prepared(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(configure(max_updates=1), tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="session")
def aligned(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The same corpus with its word alignments."""
    return prepare(configure(ALIGNED, max_updates=1), tmp_path_factory.mktemp("aligned") / "data")


Standing = tuple[dict[str, torch.Tensor], dict[str, Any]]


@pytest.fixture
def standing(tmp_path: Path) -> Callable[[str], Standing]:
    """All that the last checkpoint of the run `name` holds, but for the time it took."""

    def read(name: str = "run") -> Standing:
        last = tmp_path / name / "checkpoints" / "last"
        tensors = {}
        for part in ("model", "optimiser"):
            tensors |= {f"{part} {key}": t for key, t in read_weights(last / f"{part}.safetensors").items()}
        state = json.loads((last / "state.json").read_text())
        del state["seconds"], state["waited"]
        for row in state["history"]:
            del row["seconds"]
        return tensors, state

    return read


@pytest.fixture
def assert_same(standing: Callable[[str], Standing]) -> Callable[[str, str], None]:
    """Two runs stand where they do bit for bit."""

    def compare(one: str, other: str) -> None:
        (tensors, state), (tensors_there, state_there) = standing(one), standing(other)
        assert state == state_there
        assert tensors.keys() == tensors_there.keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, tensors_there[name]), name

    return compare


@pytest.fixture
def learn(configure: Configure, prepared: Prepared, tmp_path: Path) -> Callable[..., Recorder]:
    """Trains in the folder `name` by `[training]` of keywords and other `tables`; returns what its reporter was told.
    `after`: called with the number of each update; `data`: other than those of `prepared`."""

    def run(
        name: str = "run",
        tables: dict[str, Any] | None = None,
        *,
        resume: bool = False,
        after: Callable[[int], None] = nothing,
        data: Prepared = prepared,
        processes: Processes | None = None,
        **training: Any,
    ) -> Recorder:
        told, config = Recorder(after), configure(tables, **training)
        assert check(config) == []
        told.reason = train(config, data, tmp_path / name, told, resume=resume, processes=processes)
        return told

    return run


@pytest.fixture
def trainer(prepared: Prepared, tmp_path: Path) -> Callable[..., Trainer[TranslationModel]]:
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
        task = Task(model, groups(model), objective or Likelihood(), None)
        batches = Batches(prepared.train, training.batch, None, training.seed)
        return Trainer(training, task, batches, torch.device("cpu"), tmp_path / name, Recorder(), lambda: None)

    return make
