"""The training loop: limits, checkpoints, accumulation, out-of-memory errors, and failures that lose nothing."""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from rnnsearch.data.batches import Batch, Batches
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import RnnsearchError, TrainingError
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives import penalties
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.loss import Loss
from rnnsearch.systems import translation
from rnnsearch.systems.dev_scores import DevScore, NllEvaluator
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.translation import build
from rnnsearch.utils.weights import named_weights, read_weights
from tests.training.toys import HARD_ATTENTION, SGD, WITHOUT_DROPOUT


def copy_weights(model: TranslationModel) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named_weights(model).items()}


def are_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# End of a run


@pytest.mark.parametrize(
    ("limits", "updates", "reason"),
    [
        ({"max_updates": 4}, 4, "4 updates done (training.max_updates)"),
        ({"max_epochs": 1.5}, 9, "1.5 epochs done (training.max_epochs)"),
        ({"max_epochs": 0.1}, 1, "0.1 epochs done (training.max_epochs)"),
        ({"max_epochs": 1.5, "batch": {"accumulate": 4}}, 3, "1.5 epochs done (training.max_epochs)"),
        ({"max_minutes": 1e-7}, 1, "1e-07 minutes of training done (training.max_minutes)"),
        ({"max_epochs": 9.0, "max_updates": 2}, 2, "2 updates done (training.max_updates)"),
    ],
)
def test_first_limit_reached_ends_run(make_trainer, configure, limits, updates, reason):
    trainer = make_trainer(configure(optimiser=SGD, **limits))
    assert trainer.run() == reason
    assert trainer.state.update == updates
    assert trainer.state.evaluated == updates, "the end is evaluated"


class Scripted:
    """Replacement of `NllEvaluator.score` that returns given scores in order."""

    def __init__(self, nll: list[float], bleu: list[float] | None = None) -> None:
        self.nll = iter(nll)
        self.bleu = iter(bleu or nll)

    def __call__(self, *_: Any) -> DevScore:
        nll = next(self.nll)
        return DevScore(nll, nll / 5, {"bleu": next(self.bleu)})


@pytest.mark.parametrize(
    ("metric", "best"),
    [("nll", [True, True, False, False]), ("bleu", [True, False, True, True, False, False])],
)
def test_early_stopping_follows_direction_of_metric(learn, monkeypatch, metric, best):
    """Lower NLL and higher BLEU are better; the two are scripted to disagree."""
    scores = Scripted([3.0, 2.0, 2.5, 2.2, 2.1, 2.4], [10.0, 8.0, 11.0, 30.0, 29.0, 30.0])
    monkeypatch.setattr(NllEvaluator, "score", scores)
    recorder = learn(optimiser=SGD, metric=metric, dev_bleu=True, evaluate_every=1, patience=2)
    assert recorder.reason == "2 evaluations without a better dev score (training.patience)"
    assert [row["best"] for row in recorder.evaluations] == best


def test_nonfinite_dev_score_is_never_best(learn, monkeypatch):
    monkeypatch.setattr(NllEvaluator, "score", Scripted([float("nan"), 5.0, float("nan"), float("inf")]))
    recorder = learn(optimiser=SGD, evaluate_every=1, patience=2)
    assert [row["best"] for row in recorder.evaluations] == [False, True, False, False]


# Saved weights


def test_best_last_and_periodic_weights_are_saved(learn, tmp_path, monkeypatch):
    monkeypatch.setattr(NllEvaluator, "score", Scripted([3.0, 2.0, 2.5]))
    folder = tmp_path / "run"
    learn(optimiser=SGD, evaluate_every=2, max_updates=6, checkpoint_every=2)
    saved = {n: read_weights(folder / "checkpoints" / f"update-{n}.safetensors") for n in (2, 4, 6)}
    assert not are_equal(saved[4], saved[6])
    assert are_equal(named_weights(load_system(folder).model), saved[4]), "the best dev score was after update 4"
    assert are_equal(read_weights(folder / "checkpoints" / "last" / "model.safetensors"), saved[6])
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["last", *(f"update-{n}.safetensors" for n in (2, 4, 6))]


@pytest.mark.parametrize(
    ("averaged", "verdict"), [(1.5, "saved as the model"), (2.5, "the best single weights are better")]
)
def test_averaged_weights_become_model_if_better(learn, tmp_path, monkeypatch, averaged, verdict):
    monkeypatch.setattr(NllEvaluator, "score", Scripted([3.0, 2.9, 2.0, 2.8, averaged]))
    folder = tmp_path / "run"
    recorder = learn(optimiser=SGD, evaluate_every=1, max_updates=4, checkpoint_every=1, average=3)
    saved = {n: read_weights(folder / "checkpoints" / f"update-{n}.safetensors") for n in range(1, 5)}
    names = sorted(path.name for path in (folder / "checkpoints").glob("evaluated-*"))
    assert names == [f"evaluated-{n}.safetensors" for n in (2, 3, 4)], "older ones are removed"
    model = named_weights(load_system(folder).model)
    if averaged < 2.0:
        for name, tensor in model.items():
            mean = torch.stack([saved[n][name] for n in (2, 3, 4)]).mean(0)
            torch.testing.assert_close(tensor.detach(), mean)
    else:
        assert are_equal(model, saved[3])
    assert any(
        message.startswith(f"mean of the last 3 weights: dev NLL {averaged:.2f}") for message in recorder.messages
    )
    assert any(message.endswith(verdict) or f"; {verdict}" in message for message in recorder.messages)


def test_evaluation_every_n_updates_and_at_end(learn):
    recorder = learn(optimiser=SGD, evaluate_every=2, max_updates=5)
    assert [row["update"] for row in recorder.evaluations] == [2, 4, 5]
    train_nll = [row["train_nll_per_word"] for row in recorder.evaluations]
    assert train_nll[2] == pytest.approx(recorder.updates[4]["nll_per_word"], rel=1e-5), (
        "the sums restart after each evaluation"
    )


# The loss


@pytest.mark.parametrize("normalise", ["sentences", "tokens"])
def test_accumulated_batches_equal_one_update_on_their_sum(make_trainer, configure, prepared, normalise):
    config = configure(WITHOUT_DROPOUT, optimiser=SGD, normalise=normalise, batch={"accumulate": 6}, max_updates=1)
    trainer = make_trainer(config)
    before = copy_weights(trainer.model)
    trainer.run()
    model = build(config.model, len(prepared.source), len(prepared.target), config.training.seed)
    assert are_equal(copy_weights(model), before)
    total = torch.zeros(())
    count = 0
    for batch in trainer.batches.epoch(0):
        total = total + Likelihood()(model, batch, None).total
        count += batch.sentences if normalise == "sentences" else batch.target.num_tokens
    (total / count).backward()
    for name, tensor in named_weights(trainer.model).items():
        expected = before[name] - 0.2 * named_weights(model)[name].grad
        torch.testing.assert_close(tensor.detach(), expected, msg=lambda text, name=name: f"{name}: {text}")
    assert count == (44 if normalise == "sentences" else prepared.train.lengths(np.arange(44))[1].sum())


def test_large_seeds_wrap_around(make_trainer, configure):
    trainer = make_trainer(configure(optimiser=SGD, seed=2**63 - 1, max_updates=2))
    trainer.run()
    batch = next(trainer.batches.epoch(0))
    # Seeds that do not overflow are not changed.
    seed = 18 * 10**12
    trainer.training = trainer.updater.gradients.training = configure(seed=seed, max_updates=1).training
    rng = trainer.updater.gradients._batch_rng(7, 3, batch)
    assert rng.generator.initial_seed() == seed * 1_000_003 + 7 + 3 * 500_000_003


@dataclass(frozen=True)
class OutOfMemory(Likelihood):
    """Behaves like a GPU with memory for `rows` sentences."""

    rows: int = 0

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        loss = super().__call__(model, batch, rng)
        if batch.sentences > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_split_batch_gives_update_of_whole_batch(make_trainer, configure, rows):
    """Also with dropout, sampled attention and a running baseline; the whole pass runs once before the split."""
    config = configure(HARD_ATTENTION, optimiser=SGD, clip_norm=1.0, batch={"accumulate": 2}, max_updates=2)
    weighted = penalties(config.objective)
    whole = make_trainer(config, Likelihood(0.1, weighted), name="whole")
    parts = make_trainer(config, OutOfMemory(0.1, weighted, rows), name="parts")
    baseline = whole.model.auxiliary.baseline.value.item()
    assert whole.run() == parts.run()
    for name, tensor in named_weights(whole.model).items():
        torch.testing.assert_close(named_weights(parts.model)[name], tensor, rtol=1e-4, atol=1e-6)
    assert whole.model.auxiliary.baseline.value.item() != pytest.approx(baseline, abs=1e-3)
    assert parts.state.tokens == whole.state.tokens
    assert parts.state.batch == whole.state.batch == 4, "halves do not count as batches"
    assert parts.state.nll == pytest.approx(whole.state.nll, rel=1e-5)
    assert parts.reporter.messages[0] == "update 1: 8 sentences do not fit into memory; split and tried again"
    assert whole.reporter.messages == []


def test_failed_pass_is_retried_outside_its_exception_handler(make_trainer, configure):
    """The traceback of the exception holds the tensors of the failed pass."""
    import sys

    handled: list[bool] = []

    class Handled(OutOfMemory):
        def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
            handled.append(sys.exception() is not None)
            return super().__call__(model, batch, rng)

    make_trainer(configure(WITHOUT_DROPOUT, optimiser=SGD, max_updates=1), Handled(rows=4)).run()
    assert handled == [False] * 3


def test_pair_that_does_not_fit_is_reported(make_trainer, configure):
    trainer = make_trainer(configure(optimiser=SGD, max_updates=2), OutOfMemory(rows=0))
    before = copy_weights(trainer.model)
    with pytest.raises(TrainingError) as error:
        trainer.run()
    batch = next(iter(trainer.batches.epoch(0)))
    assert str(error.value).startswith(f"training pair {batch.indices[0] + 1} (")
    assert str(error.value).endswith(
        "tokens) does not fit into the memory of cpu by itself; lower training.max_length or the model's sizes"
    )
    assert are_equal(copy_weights(trainer.model), before)


# A loss that is not finite


@dataclass(frozen=True)
class NotFinite(Likelihood):
    """Multiplies the loss by `value` from an update on."""

    update: int = 1
    value: float = math.nan
    calls: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        loss = super().__call__(model, batch, rng)
        if rng is not None and next(self.calls) >= self.update:
            return Loss(loss.total * self.value, loss.nll * self.value)
        return loss


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nonfinite_loss_saves_batch_and_raises(
    learn, configure, prepared, read_checkpoint, tmp_path, monkeypatch, value
):
    monkeypatch.setattr(translation, "Likelihood", lambda *_, **__: NotFinite(update=4, value=value))
    monkeypatch.setattr("rnnsearch.training.run.estimate", lambda *_: None)  # its passes would be counted, too
    folder = tmp_path / "run"
    updates: list[int] = []
    training = {"clip_norm": 1.0, "evaluate_every": 3, "max_updates": 6}
    with pytest.raises(TrainingError) as error:
        learn(after=updates.append, **training)
    path = folder / "checkpoints" / "not-finite-update-4.safetensors"
    message = str(error.value)
    assert message.startswith(f"the loss of update 4 is not finite (NLL {value}, gradient norm ")
    assert f"is saved in {path}, and no checkpoint contains it; start another run with a lower" in message
    assert message.endswith("(training.begin_from reuses the weights of this run's folder if it contains a model)")
    tensors = read_weights(path)
    config = configure(**training).training
    batch = list(Batches(prepared.train, config.batch, None, config.seed).epoch(0))[3]
    assert torch.equal(tensors["0.aa"], batch.streams["aa"].ids)
    assert torch.equal(tensors["0.bb"], batch.streams["bb"].ids)
    assert tensors["0.indices"].tolist() == list(batch.indices)
    assert f"(training pairs {', '.join(str(i + 1) for i in batch.indices)}, ...)" in message
    assert updates == [1, 2, 3]
    assert read_checkpoint()[1]["update"] == 3, "the previous checkpoint is intact"
    # The run can be resumed.
    monkeypatch.setattr(translation, "Likelihood", Likelihood)
    learn(resume=True, **training)
    assert read_checkpoint()[1]["update"] == 6


def test_nonfinite_loss_leaves_weights_unchanged(make_trainer, configure):
    trainer = make_trainer(configure(max_updates=6), NotFinite(update=3))
    seen: list[dict[str, torch.Tensor]] = []
    trainer.reporter.hook = lambda _: seen.append(copy_weights(trainer.model))
    with pytest.raises(TrainingError, match="update 3"):
        trainer.run()
    assert len(seen) == 2
    assert are_equal(copy_weights(trainer.model), seen[-1])


# A full disk


@pytest.mark.parametrize("cut", ["model", "optimiser"])
def test_full_disk_keeps_previous_checkpoint(make_trainer, configure, cut):
    """The file size is limited, so that writing one of the files fails."""
    resource = pytest.importorskip("resource")
    config = configure(max_updates=2)
    trainer = make_trainer(config)
    trainer.run()
    saved = copy_weights(trainer.model)
    before = {path.name: path.read_bytes() for path in trainer.last_checkpoint.iterdir()}
    size = len(before["model.safetensors"])
    assert len(before["optimiser.safetensors"]) > size + 4096
    trainer.state.update = 3
    with torch.no_grad():
        for tensor in named_weights(trainer.model).values():
            tensor.add_(1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2 if cut == "model" else size + 4096, hard))
    try:
        with pytest.raises(RnnsearchError) as error:
            trainer.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"{cut}.safetensors: cannot be written" in str(error.value)
    assert str(error.value).endswith("nothing was changed")
    assert {path.name: path.read_bytes() for path in trainer.last_checkpoint.iterdir()} == before
    assert [path.name for path in trainer.folder.iterdir()] == ["last"], "temporary files are removed"
    resumed = make_trainer(config, name="resumed")
    resumed.folder = trainer.folder
    resumed.resume()
    assert resumed.state.update == 2
    assert are_equal(copy_weights(resumed.model), saved)


def test_run_without_dev_set_saves_last_weights(learn, prepared, tmp_path):
    without = Prepared(prepared.folder, prepared.facts | {"dev": 0})
    folder = tmp_path / "run"
    learn(data=without, optimiser=SGD, max_updates=3)
    last = read_weights(folder / "checkpoints" / "last" / "model.safetensors")
    assert are_equal(named_weights(load_system(folder).model), last)
    assert json.loads((folder / "training.json").read_text())["history"] == []
