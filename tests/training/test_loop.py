"""What ends a run, which weights it keeps, and what is left intact where something goes wrong."""

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
from rnnsearch.utils.weights import read_weights, weights
from tests.training.toys import HARD, PLAIN, SGD


def copied(model: TranslationModel) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights(model).items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# What ends a run


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
def test_each_limit_ends_the_run_and_is_named(trainer, configure, limits, updates, reason):
    made = trainer(configure(optimiser=SGD, **limits))
    assert made.run() == reason
    assert made.state.update == updates
    assert made.state.evaluated == updates, "the end is evaluated"


class Scripted:
    """Dev scores by the evaluation's number, in place of `Validation.score`."""

    def __init__(self, nll: list[float], bleu: list[float] | None = None) -> None:
        self.nll, self.bleu = iter(nll), iter(bleu or nll)

    def __call__(self, *_: Any) -> DevScore:
        nll = next(self.nll)
        return DevScore(nll, nll / 5, {"bleu": next(self.bleu)})


@pytest.mark.parametrize(
    ("metric", "best"),
    [("nll", [True, True, False, False]), ("bleu", [True, False, True, True, False, False])],
)
def test_early_stopping_knows_which_way_is_better(learn, monkeypatch, metric, best):
    """NLL falls, BLEU rises; the two are scripted to disagree."""
    scores = Scripted([3.0, 2.0, 2.5, 2.2, 2.1, 2.4], [10.0, 8.0, 11.0, 30.0, 29.0, 30.0])
    monkeypatch.setattr(NllEvaluator, "score", scores)
    told = learn(optimiser=SGD, metric=metric, dev_bleu=True, evaluate_every=1, patience=2)
    assert told.reason == "2 evaluations without a better dev score (training.patience)"
    assert [row["best"] for row in told.evaluations] == best


def test_a_dev_score_that_is_no_number_is_never_the_best(learn, monkeypatch):
    monkeypatch.setattr(NllEvaluator, "score", Scripted([float("nan"), 5.0, float("nan"), float("inf")]))
    told = learn(optimiser=SGD, evaluate_every=1, patience=2)
    assert [row["best"] for row in told.evaluations] == [False, True, False, False]


# Which weights are kept


def test_best_last_and_periodic_checkpoints(learn, tmp_path, monkeypatch):
    monkeypatch.setattr(NllEvaluator, "score", Scripted([3.0, 2.0, 2.5]))
    folder = tmp_path / "run"
    learn(optimiser=SGD, evaluate_every=2, max_updates=6, checkpoint_every=2)
    kept = {n: read_weights(folder / "checkpoints" / f"update-{n}.safetensors") for n in (2, 4, 6)}
    assert not same(kept[4], kept[6])
    assert same(weights(load_system(folder).model), kept[4]), "the best dev score was after update 4"
    assert same(read_weights(folder / "checkpoints" / "last" / "model.safetensors"), kept[6])
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["last", *(f"update-{n}.safetensors" for n in (2, 4, 6))]


@pytest.mark.parametrize(("averaged", "verdict"), [(1.5, "saved as the model"), (2.5, "the best single weights are better")])
def test_the_mean_of_the_last_weights_is_kept_where_it_is_better(learn, tmp_path, monkeypatch, averaged, verdict):
    monkeypatch.setattr(NllEvaluator, "score", Scripted([3.0, 2.9, 2.0, 2.8, averaged]))
    folder = tmp_path / "run"
    told = learn(optimiser=SGD, evaluate_every=1, max_updates=4, checkpoint_every=1, average=3)
    kept = {n: read_weights(folder / "checkpoints" / f"update-{n}.safetensors") for n in range(1, 5)}
    names = sorted(path.name for path in (folder / "checkpoints").glob("evaluated-*"))
    assert names == [f"evaluated-{n}.safetensors" for n in (2, 3, 4)], "older ones are removed"
    model = weights(load_system(folder).model)
    if averaged < 2.0:
        for name, tensor in model.items():
            mean = torch.stack([kept[n][name] for n in (2, 3, 4)]).mean(0)
            torch.testing.assert_close(tensor.detach(), mean)
    else:
        assert same(model, kept[3])
    assert any(message.startswith(f"mean of the last 3 weights: dev NLL {averaged:.2f}") for message in told.messages)
    assert any(message.endswith(verdict) or f"; {verdict}" in message for message in told.messages)


def test_updates_on_the_cadence_are_evaluated_once_and_the_end_too(learn):
    told = learn(optimiser=SGD, evaluate_every=2, max_updates=5)
    assert [row["update"] for row in told.evaluations] == [2, 4, 5]
    train_nll = [row["train_nll_per_word"] for row in told.evaluations]
    assert train_nll[2] == pytest.approx(told.updates[4]["nll_per_word"], rel=1e-5), "sums begin anew after each"


# The loss


@pytest.mark.parametrize("normalise", ["sentences", "tokens"])
def test_a_group_of_batches_is_one_update_of_their_sum(trainer, configure, prepared, normalise):
    config = configure(PLAIN, optimiser=SGD, normalise=normalise, batch={"accumulate": 6}, max_updates=1)
    made = trainer(config)
    before = copied(made.model)
    made.run()
    plain = build(config.model, len(prepared.source), len(prepared.target), config.training.seed)
    assert same(copied(plain), before)
    total, count = torch.zeros(()), 0
    for batch in made.batches.epoch(0):
        total = total + Likelihood()(plain, batch, None).total
        count += batch.sentences if normalise == "sentences" else batch.target.tokens
    (total / count).backward()
    for name, tensor in weights(made.model).items():
        expected = before[name] - 0.2 * weights(plain)[name].grad
        torch.testing.assert_close(tensor.detach(), expected, msg=lambda text, name=name: f"{name}: {text}")
    assert count == (44 if normalise == "sentences" else prepared.train.lengths(np.arange(44))[1].sum())


def test_the_largest_seed_trains(trainer, configure):
    """And of those that fit as they are, none draws other numbers than before."""
    made = trainer(configure(optimiser=SGD, seed=2**63 - 1, max_updates=2))
    made.run()
    batch = next(made.batches.epoch(0))
    made.training = made.gradients.training = configure(seed=18 * 10**12, max_updates=1).training
    assert made.gradients._batch_rng(7, 3, batch).generator.initial_seed() == 18 * 10**12 * 1_000_003 + 7 + 3 * 500_000_003


@dataclass(frozen=True)
class OutOfMemory(Likelihood):
    """As on a GPU that `rows` sentences fit into."""

    rows: int = 0

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        loss = super().__call__(model, batch, rng)
        if batch.sentences > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_batch_too_large_is_split_and_its_update_is_that_of_the_whole(trainer, configure, rows):
    """Dropout, drawn positions, the running baseline and all; the whole pass was made once before it was split."""
    config = configure(HARD, optimiser=SGD, clip_norm=1.0, batch={"accumulate": 2}, max_updates=2)
    weighted = penalties(config.objective)
    whole = trainer(config, Likelihood(0.1, weighted), name="whole")
    parts = trainer(config, OutOfMemory(0.1, weighted, rows), name="parts")
    baseline = whole.model.auxiliary.baseline.value.item()
    assert whole.run() == parts.run()
    for name, tensor in weights(whole.model).items():
        torch.testing.assert_close(weights(parts.model)[name], tensor, rtol=1e-4, atol=1e-6)
    assert whole.model.auxiliary.baseline.value.item() != pytest.approx(baseline, abs=1e-3)
    assert parts.state.tokens == whole.state.tokens
    assert parts.state.batch == whole.state.batch == 4, "halves do not count as batches"
    assert parts.state.nll == pytest.approx(whole.state.nll, rel=1e-5)
    assert parts.reporter.messages[0] == "update 1: 8 sentences do not fit into memory; split and tried again"
    assert whole.reporter.messages == []


def test_what_a_failed_pass_held_is_free_before_the_next_try(trainer, configure):
    """The exception's traceback keeps the tensors of the pass: the retry must not run inside its handler."""
    import sys

    handled: list[bool] = []

    class Handled(OutOfMemory):
        def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
            handled.append(sys.exception() is not None)
            return super().__call__(model, batch, rng)

    trainer(configure(PLAIN, optimiser=SGD, max_updates=1), Handled(rows=4)).run()
    assert handled == [False] * 3


def test_a_pair_that_alone_does_not_fit_is_named(trainer, configure):
    made = trainer(configure(optimiser=SGD, max_updates=2), OutOfMemory(rows=0))
    before = copied(made.model)
    with pytest.raises(TrainingError) as error:
        made.run()
    batch = next(iter(made.batches.epoch(0)))
    assert str(error.value).startswith(f"training pair {batch.indices[0] + 1} (")
    assert str(error.value).endswith(
        "symbols) alone does not fit into the memory of cpu; lower training.max_length or the model's sizes"
    )
    assert same(copied(made.model), before)


# A loss that is not finite


@dataclass(frozen=True)
class NotFinite(Likelihood):
    """`value` times the loss from an update on."""

    update: int = 1
    value: float = math.nan
    calls: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        loss = super().__call__(model, batch, rng)
        if rng is not None and next(self.calls) >= self.update:
            return Loss(loss.total * self.value, loss.nll * self.value)
        return loss


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_names_and_saves_its_batch(
    learn, configure, prepared, standing, tmp_path, monkeypatch, value
):
    monkeypatch.setattr(translation, "Likelihood", lambda *_, **__: NotFinite(update=4, value=value))
    monkeypatch.setattr("rnnsearch.training.run.estimate", lambda *_: None)  # whose passes are none of the updates
    folder, updates = tmp_path / "run", list[int]()
    training = {"clip_norm": 1.0, "evaluate_every": 3, "max_updates": 6}
    with pytest.raises(TrainingError) as error:
        learn(after=updates.append, **training)
    path = folder / "checkpoints" / "not-finite-update-4.safetensors"
    message = str(error.value)
    assert message.startswith(f"the loss of update 4 is not finite (NLL {value}, gradient norm ")
    assert f"is saved in {path} and the weights were not changed by it; begin another run with a lower" in message
    assert message.endswith("(training.begin_from takes the weights of this one's folder, where a model is in it)")
    tensors = read_weights(path)
    config = configure(**training).training
    batch = list(Batches(prepared.train, config.batch, None, config.seed).epoch(0))[3]
    assert torch.equal(tensors["0.aa"], batch.sides["aa"].ids)
    assert torch.equal(tensors["0.bb"], batch.sides["bb"].ids)
    assert tensors["0.indices"].tolist() == list(batch.indices)
    assert f"(training pairs {', '.join(str(i + 1) for i in batch.indices)}, ...)" in message
    assert updates == [1, 2, 3]
    assert standing()[1]["update"] == 3, "the checkpoint before it is whole"
    # and the run can go on from there
    monkeypatch.setattr(translation, "Likelihood", Likelihood)
    learn(resume=True, **training)
    assert standing()[1]["update"] == 6


def test_the_weights_are_those_before_the_loss_that_is_not_finite(trainer, configure):
    made = trainer(configure(max_updates=6), NotFinite(update=3))
    seen: list[dict[str, torch.Tensor]] = []
    made.reporter.hook = lambda _: seen.append(copied(made.model))
    with pytest.raises(TrainingError, match="update 3"):
        made.run()
    assert len(seen) == 2
    assert same(copied(made.model), seen[-1])


# A full disk


@pytest.mark.parametrize("cut", ["model", "optimiser"])
def test_a_full_disk_leaves_the_checkpoint_before(trainer, configure, cut):
    """Files are kept from growing: whichever file of the checkpoint is cut off, the old one stays whole."""
    resource = pytest.importorskip("resource")
    config = configure(max_updates=2)
    made = trainer(config)
    made.run()
    saved = copied(made.model)
    before = {path.name: path.read_bytes() for path in made.last.iterdir()}
    size = len(before["model.safetensors"])
    assert len(before["optimiser.safetensors"]) > size + 4096
    made.state.update = 3
    with torch.no_grad():
        for tensor in weights(made.model).values():
            tensor.add_(1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2 if cut == "model" else size + 4096, hard))
    try:
        with pytest.raises(RnnsearchError) as error:
            made.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"{cut}.safetensors: cannot be written" in str(error.value)
    assert str(error.value).endswith("nothing was changed")
    assert {path.name: path.read_bytes() for path in made.last.iterdir()} == before
    assert [path.name for path in made.folder.iterdir()] == ["last"], "nothing temporary stays"
    again = trainer(config, name="again")
    again.folder = made.folder
    again.resume()
    assert again.state.update == 2
    assert same(copied(again.model), saved)


def test_a_run_without_a_dev_set_keeps_the_last_weights(learn, prepared, tmp_path):
    without = Prepared(prepared.folder, prepared.facts | {"dev": 0})
    folder = tmp_path / "run"
    learn(data=without, optimiser=SGD, max_updates=3)
    last = read_weights(folder / "checkpoints" / "last" / "model.safetensors")
    assert same(weights(load_system(folder).model), last)
    assert json.loads((folder / "training.json").read_text())["history"] == []
