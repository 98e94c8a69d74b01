"""A resumed run is the uninterrupted one, bit for bit; and a run is never mixed up with another."""

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
    """Ctrl-C right after an update."""

    def __init__(self, update: int) -> None:
        self.at = update

    def __call__(self, update: int) -> None:
        if update == self.at:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def both(learn: Any, standing: Any, assert_same: Any, tmp_path: Path) -> Any:
    """Trains straight, and again with interruptions at some updates; compares where the two end."""

    def run(interruptions: list[int], **training: Any) -> Any:
        straight, broken = tmp_path / "straight", tmp_path / "broken"
        told = learn("straight", **training)
        for update in interruptions:
            with pytest.raises(Interrupted) as error:
                learn("broken", after=InterruptAt(update), resume=True, **training)
            assert str(error.value) == (
                f"training was interrupted at update {update}; its state is saved in "
                f"{broken / 'checkpoints' / 'last'}; continue with --resume"
            )
            assert standing("broken")[1]["update"] == update
        learn("broken", resume=True, **training)
        assert_same("straight", "broken")
        for name in ("model.safetensors", "config.toml", "tokenizers/aa.json", "tokenizers/bb.json"):
            assert (straight / name).read_bytes() == (broken / name).read_bytes()
        return told

    return run


@pytest.mark.parametrize("name", OPTIMISERS)
def test_resumed_is_uninterrupted(both, name):
    both([3], optimiser=OPTIMISERS[name], schedule=PLATEAU, max_updates=6, evaluate_every=2, clip_norm=1.0)


def test_in_the_middle_of_an_epoch_of_accumulated_batches(both):
    """Six batches an epoch, four an update: 4 + 2, 4 + 2."""
    batch = {"accumulate": 4}
    told = both([1, 3], batch=batch, max_updates=4)
    assert [row["epoch"] for row in told.updates] == pytest.approx([4 / 6, 1.0, 1 + 4 / 6, 2.0])


def test_at_the_end_of_an_epoch_where_evaluation_is_due(both):
    told = both([6, 11, 12], schedule=PLATEAU, max_epochs=3)
    assert [row["update"] for row in told.evaluations] == [6, 12, 18]


def test_with_bleu_bf16_and_averaging(both):
    both([3], precision="bf16", dev_bleu=True, average=2, evaluate_every=2, max_updates=6)


def test_with_adaptive_clipping_and_l2(both, standing):
    both([3], clip_deviations=4.0, l2=0.01, max_updates=6)
    norms = standing("broken")[1]["norms"]
    assert norms == standing("straight")[1]["norms"]
    assert norms["weight"] == pytest.approx(1 - 0.995**6)


def test_during_an_evaluation_which_is_then_done_anew(learn, standing, assert_same, monkeypatch):
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
    pending = standing("broken")[1]
    assert (pending["pending"], len(pending["history"])) == (True, 1)
    learn("broken", resume=True, **training)
    assert_same("straight", "broken")


def test_the_schedule_goes_on_where_it_was(learn, assert_same, monkeypatch):
    """Dev scores that only get worse: the rate was lowered before the interruption, and is lowered after it."""
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


def test_a_run_whose_end_is_moved_goes_on(learn, tmp_path):
    first = learn(max_updates=3, evaluate_every=3)
    assert first.reason == "3 updates done (training.max_updates)"
    again = learn(max_updates=3, evaluate_every=3, resume=True)
    assert again.updates == [], "a run at its end has nothing more to do"
    longer = learn(max_updates=5, evaluate_every=3, save_minutes=1, patience=9, resume=True)
    assert [row["update"] for row in longer.updates] == [4, 5]
    assert f"going on from update 3 ({tmp_path / 'run' / 'checkpoints' / 'last'})" in longer.messages


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
        (False, None, {}, "holds a model without a checkpoint to go on from; name another folder"),
        (True, None, {}, "holds a model without a checkpoint to go on from; name another folder"),
    ],
)
def test_another_run_is_refused_and_the_folder_left_as_it_is(learn, finished, resume, tables, training, message):
    """tables = None: its checkpoint is gone."""
    if tables is None:
        (finished / "checkpoints").rename(finished.parent / "elsewhere")
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(TrainingError) as error:
        learn(tables=tables, **{"max_updates": 4, **training}, resume=resume)
    assert str(error.value) == f"{finished}: {message}"
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("finished")
def test_another_corpus_under_the_same_name_is_refused(learn, prepared):
    other = Prepared(prepared.folder, prepared.facts | {"sha256": "f" * 64})
    with pytest.raises(TrainingError, match=r"its run was on a corpus with SHA-256 .*got one with f{16}\.\.\. in"):
        learn(max_updates=4, data=other, resume=True)


def test_another_corpus_is_refused_where_nothing_was_evaluated_yet(learn, prepared, tmp_path):
    """And a checkpoint of a version that did not keep the corpus goes on."""
    with pytest.raises(Interrupted):
        learn(max_updates=4, after=InterruptAt(1))
    state = tmp_path / "run" / "checkpoints" / "last" / "state.json"
    assert not (tmp_path / "run" / "training.json").exists()
    other = Prepared(prepared.folder, prepared.facts | {"sha256": "f" * 64})
    with pytest.raises(TrainingError, match=r"its run was on a corpus with SHA-256 .*got one with f{16}\.\.\. in"):
        learn(max_updates=4, data=other, resume=True)
    kept = json.loads(state.read_text())
    assert kept.pop("corpus") == prepared.facts["sha256"]
    state.write_text(json.dumps(kept))
    told = learn(max_updates=4, resume=True)
    assert [row["update"] for row in told.updates] == [2, 3, 4]


@pytest.mark.parametrize("folder", ["run", "run-reverse"])
def test_a_config_that_is_of_no_run_is_not_written_over(learn, tmp_path, folder):
    place = tmp_path / folder
    place.mkdir()
    (place / "config.toml").write_text("[mine]\n")
    with pytest.raises(TrainingError) as error:
        learn(tables={"objective": {"symmetry": 0.1}}, max_updates=1)
    what = "its config.toml belongs to no run, and this one would write over it; name another folder"
    assert str(error.value) == f"{place}: {what}"
    assert [path.name for path in place.iterdir()] == ["config.toml"]
    assert (place / "config.toml").read_text() == "[mine]\n"


def test_a_run_that_was_killed_before_it_saved_begins_anew(learn, tmp_path):
    class Killed(Exception):
        """At the first update."""

    def kill(_update: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        learn(max_updates=1, after=kill)
    assert (tmp_path / "run" / "config.toml").is_file()
    assert [row["update"] for row in learn(max_updates=1).updates] == [1]


def test_what_is_not_the_runs_stays_in_its_folder(learn, tmp_path):
    mine = [tmp_path / "run" / "notes" / ".a.tmp", tmp_path / "run" / "notes" / ".run.1.tmp" / "a"]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("somebody's")
    left = tmp_path / "run" / "checkpoints" / ".last.1.tmp"
    left.mkdir(parents=True)
    learn(max_updates=1)
    assert all(path.is_file() for path in mine)
    assert not left.exists()


def test_two_directions_in_the_current_folder(configure, prepared, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    config = configure({"objective": {"symmetry": 0.1}}, max_updates=1)
    train(config, prepared, Path(), Recorder())
    for folder in ("here", "here-reverse"):
        assert (tmp_path / folder / "model.safetensors").is_file()


def test_kept_weights_of_an_earlier_run_are_not_averaged(learn, tmp_path):
    learn(max_updates=4, evaluate_every=1, average=3)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "last")
    (tmp_path / "run" / "model.safetensors").unlink()
    told = learn(max_updates=2, evaluate_every=1, average=3)
    assert any(message.startswith("mean of the last 2 weights") for message in told.messages)
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("evaluated-*"))
    assert kept == ["evaluated-1.safetensors", "evaluated-2.safetensors"]


def test_resume_without_a_run_starts_one(learn):
    assert [row["update"] for row in learn(max_updates=1, resume=True).updates] == [1]


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        ("state.json", b'{"epoch": 1,', TrainingError, r"state\.json: is damaged \(.*\); remove .*last to start anew"),
        ("state.json", b'{"unknown": 1}', TrainingError, r"state\.json: is damaged"),
        ("model.safetensors", b"\x00" * 40, ModelError, r"model\.safetensors: is truncated or damaged"),
        ("optimiser.safetensors", b"", ModelError, r"optimiser\.safetensors: is truncated or damaged"),
    ],
)
def test_a_damaged_checkpoint_is_said(learn, finished, name, content, kind, message):
    (finished / "checkpoints" / "last" / name).write_bytes(content)
    with pytest.raises(kind, match=message):
        learn(max_updates=4, resume=True)


def test_a_folder_that_cannot_be_made_is_said(learn, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    folder = tmp_path / "file" / "run"
    with pytest.raises(RnnsearchError) as error:
        learn("file/run", max_updates=1)
    assert str(error.value) == f"{folder}: must be a folder that can be written to; got: Not a directory"


def test_other_random_numbers_make_another_run(learn, standing):
    """So that the tests above cannot pass by comparing what does not depend on the draws."""
    for name, seed in (("one", 1), ("two", 2)):
        learn(name, max_updates=2, seed=seed)
    one, two = standing("one")[0], standing("two")[0]
    assert not any(torch.equal(one[name], two[name]) for name in one if name.endswith("exp_avg"))
