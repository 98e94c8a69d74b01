"""A resumed run is the uninterrupted one, bit for bit; and a run is never mixed up with another."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import Interrupted, ModelError, RnnsearchError, TrainingError
from rnnsearch.systems.validation import DevScore, Validation

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
                f"{broken / 'checkpoints' / 'last'}: go on with --resume"
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
    score = Validation.score
    calls = []

    def interrupted(self: Validation, model: Any, stop: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return score(self, model, stop)

    monkeypatch.setattr(Validation, "score", interrupted)
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
    monkeypatch.setattr(Validation, "score", lambda *_: DevScore(float(next(scores)), 1.0))
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
        (False, {}, {}, "holds a training run already; go on with --resume, or name another folder"),
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
