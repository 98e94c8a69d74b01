"""Fixtures: a tiny prepared corpus, and training runs on it."""

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
from rnnsearch.training.loop import Trainer
from rnnsearch.training.optimisers import make_optimiser
from rnnsearch.training.run import check, train
from rnnsearch.training.tasks import Task
from rnnsearch.utils.distributed import Processes
from rnnsearch.utils.weights import read_weights
from tests.training.toys import ALIGNED, Recorder, do_nothing, random_sentences, toy_config, write_split


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """44 training pairs (6 batches of 8) and 12 dev pairs."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = random_sentences(1, 100, 2, 6)
    write_split(folder, "train", rows[:44])
    write_split(folder, "dev", rows[44:56])
    return folder


Configure = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def configure(corpus: Path) -> Configure:
    """Return a function that makes a config: `tables` override the default tables, keywords `[training]`."""

    def make(tables: dict[str, Any] | None = None, **training: Any) -> RunConfig:
        return toy_config(corpus, {"training": training}, tables or {})

    return make


@pytest.fixture(scope="session")
def prepared(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(configure(max_updates=1), tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="session")
def aligned(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Return the corpus prepared with word alignments."""
    return prepare(configure(ALIGNED, max_updates=1), tmp_path_factory.mktemp("aligned") / "data")


CheckpointContent = tuple[dict[str, torch.Tensor], dict[str, Any]]


@pytest.fixture
def read_checkpoint(tmp_path: Path) -> Callable[[str], CheckpointContent]:
    """Return a function that reads the last checkpoint of the run `name`: tensors and state, without durations."""

    def read(name: str = "run") -> CheckpointContent:
        last = tmp_path / name / "checkpoints" / "last"
        tensors = {}
        for file in ("model", "optimiser"):
            tensors |= {f"{file} {key}": t for key, t in read_weights(last / f"{file}.safetensors").items()}
        state = json.loads((last / "state.json").read_text())
        del state["seconds"], state["waited"]
        for row in state["history"]:
            del row["seconds"]
        return tensors, state

    return read


@pytest.fixture
def assert_same(read_checkpoint: Callable[[str], CheckpointContent]) -> Callable[[str, str], None]:
    """Return a function that checks that the last checkpoints of two runs are equal bit for bit."""

    def compare(run: str, other_run: str) -> None:
        tensors, state = read_checkpoint(run)
        other_tensors, other_state = read_checkpoint(other_run)
        assert state == other_state
        assert tensors.keys() == other_tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, other_tensors[name]), name

    return compare


@pytest.fixture
def learn(configure: Configure, prepared: Prepared, tmp_path: Path) -> Callable[..., Recorder]:
    """Return a function that trains in the folder `name` and returns the recorded reports.

    Keywords override `[training]`, `tables` the other tables. `after` is called with the number of each update, `data`
    replaces `prepared`.
    """

    def run(
        name: str = "run",
        tables: dict[str, Any] | None = None,
        *,
        resume: bool = False,
        after: Callable[[int], None] = do_nothing,
        data: Prepared = prepared,
        processes: Processes | None = None,
        **training: Any,
    ) -> Recorder:
        recorder = Recorder(after)
        config = configure(tables, **training)
        assert check(config) == []
        recorder.reason = train(config, data, tmp_path / name, recorder, resume=resume, processes=processes)
        return recorder

    return run


@pytest.fixture
def make_trainer(prepared: Prepared, tmp_path: Path) -> Callable[..., Trainer[TranslationModel]]:
    """Return a function that makes a Trainer without a dev set, with checkpoints in the folder `name`.

    `groups` returns the parameter groups of the model.
    """

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
        optimiser = make_optimiser(groups(model), training.optimiser)
        task = Task(model, optimiser, objective or Likelihood(), None)
        batches = Batches(prepared.train, training.batch, None, training.seed)
        return Trainer(training, task, batches, torch.device("cpu"), tmp_path / name, Recorder(), lambda: None)

    return make
