"""Retraining of pruned models: pruned weights stay zero and all other weights are trained."""

import shutil
from collections.abc import Mapping

import pytest
import torch

from rnnsearch.data.batches import Batch
from rnnsearch.errors import ConfigError, Interrupted
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.loss import Loss
from rnnsearch.systems import translation
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.pruning import PRUNED_FILE, prune, read_pruned
from rnnsearch.training.run import check
from rnnsearch.utils.weights import read_weights, save_weights
from tests.training.test_resume import OPTIMISERS, InterruptAt


@pytest.fixture
def pruned(learn, tmp_path):
    """Return a model folder with 60% of its weights pruned, in which a bias and an unpruned weight are zero, too."""
    learn("first", max_updates=2)
    prune(tmp_path / "first", tmp_path / "pruned", 0.6, "class-blind")
    path = tmp_path / "pruned" / "model.safetensors"
    tensors = read_weights(path)
    tensors["output.bias"].zero_()
    unpruned_zero(tensors, read_masks(tmp_path / "pruned")).zero_()
    save_weights(path, tensors)
    return tmp_path / "pruned"


def read_masks(folder):
    return read_pruned(folder, load_system(folder).model)


def unpruned_zero(tensors, pruned):
    """Return the unpruned weight of the output layer that the fixture sets to zero."""
    row, column = (~pruned["output.weight"]).nonzero()[0].tolist()
    return tensors["output.weight"][row, column]


def assert_pruned_weights_are_zero(pruned, tensors):
    """Check that pruned weights are zero and most others have changed."""
    masks = read_masks(pruned)
    before = read_weights(pruned / "model.safetensors")
    for name, mask in masks.items():
        assert bool((tensors[name][mask] == 0).all()), name
        moved = tensors[name][~mask] != before[name][~mask]
        assert not len(moved) or moved.float().mean() > 0.5, name
    assert bool((tensors["output.bias"] != 0).all()) and unpruned_zero(tensors, masks) != 0


TRAINING = {
    "batch": {"accumulate": 2},
    "clip_norm": 1.0,
    "l2": 0.01,
    "evaluate_every": 2,
    "average": 2,
    "max_updates": 4,
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_pruned_weights_stay_zero_with_every_optimiser(learn, pruned, read_checkpoint, tmp_path, name):
    recorder = learn("run", begin_from=str(pruned), keep_zeros=True, optimiser=OPTIMISERS[name], **TRAINING)
    assert any("mean of the last 2 weights" in text for text in recorder.messages)
    tensors, _ = read_checkpoint()
    assert_pruned_weights_are_zero(
        pruned, {key.removeprefix("model "): t for key, t in tensors.items() if key.startswith("model ")}
    )
    saved = [*(tmp_path / "run" / "checkpoints").glob("evaluated-*.safetensors")]
    assert len(saved) == 2
    for path in [*saved, tmp_path / "run" / "model.safetensors"]:
        assert_pruned_weights_are_zero(pruned, read_weights(path))


def test_resumed_run_is_identical_without_the_pruned_folder(learn, pruned, assert_same, tmp_path):
    training = {"begin_from": str(pruned), "keep_zeros": True, "optimiser": OPTIMISERS["momentum"], **TRAINING}
    learn("straight", **training)
    with pytest.raises(Interrupted):
        learn("broken", after=InterruptAt(3), **training)
    moved = shutil.move(pruned, tmp_path / "elsewhere")
    learn("broken", resume=True, **training)
    assert_same("straight", "broken")
    for folder in ("straight", "broken"):
        assert (tmp_path / folder / PRUNED_FILE).read_bytes() == (moved / PRUNED_FILE).read_bytes()
        assert_pruned_weights_are_zero(moved, read_weights(tmp_path / folder / "model.safetensors"))


class DisturbingLikelihood(Likelihood):
    """Memory for three sentences only; changes all of W_o after an update."""

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        if rng is not None and batch.sentences > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().__call__(model, batch, rng)

    def after_update(self, model: TranslationModel, parts: Mapping[str, torch.Tensor]) -> None:
        model.output.weight.add_(0.01)


def test_pruned_weights_stay_zero_with_split_batches_and_after_update(learn, pruned, tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.training.run.estimate", lambda *_: None)
    monkeypatch.setattr(translation, "Likelihood", lambda *_, **__: DisturbingLikelihood())
    recorder = learn("halved", begin_from=str(pruned), keep_zeros=True, max_updates=2)
    assert any("split and tried again" in text for text in recorder.messages)
    assert_pruned_weights_are_zero(pruned, read_weights(tmp_path / "halved" / "model.safetensors"))


def test_gradient_norm_excludes_pruned_weights(learn, pruned):
    norms = []
    for keep_zeros in (True, False):
        recorder = learn(str(keep_zeros), begin_from=str(pruned), keep_zeros=keep_zeros, max_updates=1)
        norms.append(recorder.updates[0]["gradient_norm"])
    assert 0 < norms[0] < norms[1]


def test_pruned_weights_are_trained_without_keep_zeros(learn, pruned, tmp_path):
    learn("free", begin_from=str(pruned), max_updates=1)
    tensors = read_weights(tmp_path / "free" / "model.safetensors")
    assert not (tmp_path / "free" / PRUNED_FILE).exists()
    assert any(bool((tensors[name][mask] != 0).any()) for name, mask in read_masks(pruned).items())


def test_retrained_model_can_be_pruned_again(learn, pruned, tmp_path):
    learn("again", begin_from=str(pruned), keep_zeros=True, max_updates=2)
    result = prune(tmp_path / "again", tmp_path / "more", 0.8, "class-uniform")
    assert result.all.zeros == pytest.approx(0.8 * result.all.weights, abs=0.05 * result.all.weights)
    learn("last", begin_from=str(tmp_path / "more"), keep_zeros=True, max_updates=2)
    tensors = read_weights(tmp_path / "last" / "model.safetensors")
    for folder in (pruned, tmp_path / "more"):
        assert all(bool((tensors[name][mask] == 0).all()) for name, mask in read_masks(folder).items())


def test_invalid_combinations_are_rejected(learn, configure, tmp_path):
    with pytest.raises(ConfigError, match="keep_zeros = true needs begin_from, the folder of a pruned model"):
        configure(keep_zeros=True, max_updates=1)
    learn("first", max_updates=1)
    with pytest.raises(ConfigError) as error:
        learn("second", begin_from=str(tmp_path / "first"), keep_zeros=True, max_updates=1)
    assert str(error.value) == (
        "training.keep_zeros: needs a training.begin_from that was written by `rnnsearch prune`, or trained with "
        f"keep_zeros; {tmp_path / 'first'} has no pruned weights"
    )
    symmetric = configure({"objective": {"symmetry": 0.1}}, begin_from="x", keep_zeros=True, max_updates=1)
    message = "training.begin_from: cannot be combined with objective.symmetry"
    assert any(problem.startswith(message) for problem in check(symmetric))
