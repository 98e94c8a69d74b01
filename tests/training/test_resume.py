"""Resumed runs equal uninterrupted ones bit for bit, and a run never continues in the folder of another."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import Interrupted, ModelError, RnnsearchError, TrainingError
from rnnsearch.systems.dev_scores import DevScore, NllEvaluator
from rnnsearch.training.run import train
from tests.training.toys import Recorder

OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd": {"type": "sgd", "learning_rate": 0.5},
    "momentum": {"type": "sgd", "learning_rate": 0.2, "momentum": 0.9},
    "adadelta": {"type": "adadelta", "rho": 0.95, "epsilon": 1e-4},
    "adam": {"type": "adam", "learning_rate": 0.01},
    "adamw": {"type": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
}
PLATEAU = {"type": "plateau", "patience": 0, "factor": 0.5, "warmup": 2}


class InterruptAt:
    """Raises SIGINT right after an update."""

    def __init__(self, update: int) -> None:
        self.update = update

    def __call__(self, update: int) -> None:
        if update == self.update:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def assert_resume_is_identical(learn: Any, read_checkpoint: Any, assert_same: Any, tmp_path: Path) -> Any:
    """Return a function that trains without and with interruptions after some updates, and compares the results."""

    def run(interruptions: list[int], **training: Any) -> Any:
        straight = tmp_path / "straight"
        broken = tmp_path / "broken"
        recorder = learn("straight", **training)
        for update in interruptions:
            with pytest.raises(Interrupted) as error:
                learn("broken", after=InterruptAt(update), resume=True, **training)
            assert str(error.value) == (
                f"training was interrupted at update {update}; its state is saved in "
                f"{broken / 'checkpoints' / 'last'}; continue with --resume"
            )
            assert read_checkpoint("broken")[1]["update"] == update
        learn("broken", resume=True, **training)
        assert_same("straight", "broken")
        for name in ("model.safetensors", "config.toml", "tokenizers/aa.json", "tokenizers/bb.json"):
            assert (straight / name).read_bytes() == (broken / name).read_bytes()
        return recorder

    return run


@pytest.mark.parametrize("name", OPTIMISERS)
def test_resumed_run_equals_uninterrupted_run(assert_resume_is_identical, name):
    assert_resume_is_identical(
        [3], optimiser=OPTIMISERS[name], schedule=PLATEAU, max_updates=6, evaluate_every=2, clip_norm=1.0
    )


def test_resume_within_epoch_of_accumulated_batches(assert_resume_is_identical):
    """Six batches per epoch, four per update: 4 + 2, 4 + 2."""
    batch = {"accumulate": 4}
    recorder = assert_resume_is_identical([1, 3], batch=batch, max_updates=4)
    assert [row["epoch"] for row in recorder.updates] == pytest.approx([4 / 6, 1.0, 1 + 4 / 6, 2.0])


def test_resume_at_end_of_epoch_before_evaluation(assert_resume_is_identical):
    recorder = assert_resume_is_identical([6, 11, 12], schedule=PLATEAU, max_epochs=3)
    assert [row["update"] for row in recorder.evaluations] == [6, 12, 18]


def test_resume_with_bleu_bf16_and_averaging(assert_resume_is_identical):
    assert_resume_is_identical([3], precision="bf16", dev_bleu=True, average=2, evaluate_every=2, max_updates=6)


def test_resume_with_adaptive_clipping_and_l2(assert_resume_is_identical, read_checkpoint):
    assert_resume_is_identical([3], clip_deviations=4.0, l2=0.01, max_updates=6)
    norms = read_checkpoint("broken")[1]["norms"]
    assert norms == read_checkpoint("straight")[1]["norms"]
    assert norms["weight"] == pytest.approx(1 - 0.995**6)


def test_interrupted_evaluation_is_repeated_on_resume(learn, read_checkpoint, assert_same, monkeypatch):
    training = {"schedule": PLATEAU, "evaluate_every": 2, "max_updates": 6}
    learn("straight", **training)
    score = NllEvaluator.score
    calls = []

    def interrupted(self: NllEvaluator, model: Any, stop: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return score(self, model, stop)

    monkeypatch.setattr(NllEvaluator, "score", interrupted)
    with pytest.raises(Interrupted, match="at update 4"):
        learn("broken", **training)
    pending = read_checkpoint("broken")[1]
    assert (pending["pending"], len(pending["history"])) == (True, 1)
    learn("broken", resume=True, **training)
    assert_same("straight", "broken")


def test_resume_restores_schedule(learn, assert_same, monkeypatch):
    """The dev scores only get worse: the rate is lowered before and after the interruption."""
    plateau = {"type": "plateau", "patience": 1, "factor": 0.5}
    training = {"optimiser": OPTIMISERS["sgd"], "schedule": plateau, "evaluate_every": 1, "max_updates": 8}
    scores = iter(range(1, 9))
    monkeypatch.setattr(NllEvaluator, "score", lambda *_: DevScore(float(next(scores)), 1.0))
    straight = learn("straight", **training)
    assert [row["learning_rate"] for row in straight.updates] == [0.5] * 3 + [0.25] * 2 + [0.125] * 2 + [0.0625]
    scores = iter(range(1, 9))
    with pytest.raises(Interrupted):
        learn("broken", after=InterruptAt(4), **training)
    rest = learn("broken", resume=True, **training)
    assert [row["learning_rate"] for row in rest.updates] == [0.25] + [0.125] * 2 + [0.0625]
    assert_same("straight", "broken")


def test_resume_with_higher_limit_continues(learn, tmp_path):
    first = learn(max_updates=3, evaluate_every=3)
    assert first.reason == "3 updates done (training.max_updates)"
    again = learn(max_updates=3, evaluate_every=3, resume=True)
    assert again.updates == [], "a finished run has nothing to do"
    longer = learn(max_updates=5, evaluate_every=3, save_minutes=1, patience=9, resume=True)
    assert [row["update"] for row in longer.updates] == [4, 5]
    assert f"resuming from update 3 ({tmp_path / 'run' / 'checkpoints' / 'last'})" in longer.messages


@pytest.fixture
def finished(learn: Any, tmp_path: Path) -> Path:
    learn(max_updates=2)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("resume", "tables", "training", "message"),
    [
        (False, {}, {}, "holds a training run already; continue with --resume, or name another folder"),
        (
            True,
            {"model": {"encoder": {"size": 7}}},
            {"optimiser": {"learning_rate": 0.5}, "seed": 2},
            "its run differs from this config in model.encoder.size, training.optimiser.learning_rate, "
            "training.seed; change it back, or name another folder",
        ),
        (False, None, {}, "holds a model without a checkpoint to resume from; name another folder"),
        (True, None, {}, "holds a model without a checkpoint to resume from; name another folder"),
    ],
)
def test_folder_of_another_run_is_rejected_and_unchanged(learn, finished, resume, tables, training, message):
    """If `tables` is None, the checkpoint is missing."""
    if tables is None:
        (finished / "checkpoints").rename(finished.parent / "elsewhere")
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(TrainingError) as error:
        learn(tables=tables, **{"max_updates": 4, **training}, resume=resume)
    assert str(error.value) == f"{finished}: {message}"
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("finished")
def test_resume_rejects_other_corpus_of_same_name(learn, prepared):
    other = Prepared(prepared.folder, prepared.facts | {"sha256": "f" * 64})
    with pytest.raises(TrainingError, match=r"its run used a corpus with SHA-256 .*got one with f{16}\.\.\. in"):
        learn(max_updates=4, data=other, resume=True)


def test_resume_rejects_other_corpus_before_first_evaluation(learn, prepared, tmp_path):
    """Checkpoints of versions that did not record the corpus are resumed."""
    with pytest.raises(Interrupted):
        learn(max_updates=4, after=InterruptAt(1))
    state = tmp_path / "run" / "checkpoints" / "last" / "state.json"
    assert not (tmp_path / "run" / "training.json").exists()
    other = Prepared(prepared.folder, prepared.facts | {"sha256": "f" * 64})
    with pytest.raises(TrainingError, match=r"its run used a corpus with SHA-256 .*got one with f{16}\.\.\. in"):
        learn(max_updates=4, data=other, resume=True)
    values = json.loads(state.read_text())
    assert values.pop("corpus") == prepared.facts["sha256"]
    state.write_text(json.dumps(values))
    recorder = learn(max_updates=4, resume=True)
    assert [row["update"] for row in recorder.updates] == [2, 3, 4]


@pytest.mark.parametrize("folder", ["run", "run-reverse"])
def test_foreign_config_is_not_overwritten(learn, tmp_path, folder):
    path = tmp_path / folder
    path.mkdir()
    (path / "config.toml").write_text("[mine]\n")
    with pytest.raises(TrainingError) as error:
        learn(tables={"objective": {"symmetry": 0.1}}, max_updates=1)
    assert str(error.value) == (
        f"{path}: its config.toml does not belong to a run, and this run would overwrite it; name another folder"
    )
    assert [file.name for file in path.iterdir()] == ["config.toml"]
    assert (path / "config.toml").read_text() == "[mine]\n"


def test_run_killed_before_first_checkpoint_restarts(learn, tmp_path):
    class Killed(Exception):
        """Raised after the first update."""

    def kill(_update: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        learn(max_updates=1, after=kill)
    assert (tmp_path / "run" / "config.toml").is_file()
    assert [row["update"] for row in learn(max_updates=1).updates] == [1]


def test_only_temporary_files_of_the_run_are_removed(learn, tmp_path):
    user_files = [tmp_path / "run" / "notes" / ".a.tmp", tmp_path / "run" / "notes" / ".run.1.tmp" / "a"]
    for path in user_files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("notes")
    temporary = tmp_path / "run" / "checkpoints" / ".last.1.tmp"
    temporary.mkdir(parents=True)
    learn(max_updates=1)
    assert all(path.is_file() for path in user_files)
    assert not temporary.exists()


def test_both_directions_train_in_current_folder(configure, prepared, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    config = configure({"objective": {"symmetry": 0.1}}, max_updates=1)
    train(config, prepared, Path(), Recorder())
    for folder in ("here", "here-reverse"):
        assert (tmp_path / folder / "model.safetensors").is_file()


def test_weights_of_an_earlier_run_are_not_averaged(learn, tmp_path):
    learn(max_updates=4, evaluate_every=1, average=3)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "last")
    (tmp_path / "run" / "model.safetensors").unlink()
    recorder = learn(max_updates=2, evaluate_every=1, average=3)
    assert any(message.startswith("mean of the last 2 weights") for message in recorder.messages)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("evaluated-*"))
    assert names == ["evaluated-1.safetensors", "evaluated-2.safetensors"]


def test_resume_without_checkpoint_starts_run(learn):
    assert [row["update"] for row in learn(max_updates=1, resume=True).updates] == [1]


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("state.json", b'{"epoch": 1,', TrainingError, r"state\.json: is damaged \(.*\); remove .*last to start again"),
        ("state.json", b'{"unknown": 1}', TrainingError, r"state\.json: is damaged"),
        ("model.safetensors", b"\x00" * 40, ModelError, r"model\.safetensors: is truncated or damaged"),
        ("optimiser.safetensors", b"", ModelError, r"optimiser\.safetensors: is truncated or damaged"),
    ],
)
def test_damaged_checkpoint_raises(learn, finished, name, content, error, message):
    (finished / "checkpoints" / "last" / name).write_bytes(content)
    with pytest.raises(error, match=message):
        learn(max_updates=4, resume=True)


def test_folder_that_cannot_be_created_raises(learn, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    folder = tmp_path / "file" / "run"
    with pytest.raises(RnnsearchError) as error:
        learn("file/run", max_updates=1)
    assert str(error.value) == f"{folder}: must be a folder that can be written to; got: Not a directory"


def test_other_seed_gives_another_run(learn, read_checkpoint):
    """Otherwise the comparisons above would prove nothing."""
    for name, seed in (("one", 1), ("two", 2)):
        learn(name, max_updates=2, seed=seed)
    one, two = read_checkpoint("one")[0], read_checkpoint("two")[0]
    assert not any(torch.equal(one[name], two[name]) for name in one if name.endswith("exp_avg"))
