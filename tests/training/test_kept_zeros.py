"""A pruned model trained on: what was pruned stays zero, everything else learns, whatever the update is made of."""

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
    """A folder with 60% of its weights pruned; besides, a bias and a weight that was not pruned are zero."""
    learn("first", max_updates=2)
    prune(tmp_path / "first", tmp_path / "pruned", 0.6, "class-blind")
    path = tmp_path / "pruned" / "model.safetensors"
    tensors = read_weights(path)
    tensors["output.bias"].zero_()
    _chance(tensors, masks(tmp_path / "pruned")).zero_()
    save_weights(path, tensors)
    return tmp_path / "pruned"


def masks(folder):
    return read_pruned(folder, load_system(folder).model)


def _chance(tensors, pruned):
    """A weight of a matrix that was not pruned."""
    row, column = (~pruned["output.weight"]).nonzero()[0].tolist()
    return tensors["output.weight"][row, column]


def assert_kept(pruned, tensors):
    """Pruned weights are zero, and of the others most are other ones than before."""
    kept, before = masks(pruned), read_weights(pruned / "model.safetensors")
    for name, mask in kept.items():
        assert bool((tensors[name][mask] == 0).all()), name
        moved = tensors[name][~mask] != before[name][~mask]
        assert not len(moved) or moved.float().mean() > 0.5, name
    assert bool((tensors["output.bias"] != 0).all()) and _chance(tensors, kept) != 0


WHOLE = {"batch": {"accumulate": 2}, "clip_norm": 1.0, "l2": 0.01, "evaluate_every": 2, "average": 2, "max_updates": 4}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_zeros_stay_through_every_optimiser(learn, pruned, standing, tmp_path, name):
    told = learn("run", begin_from=str(pruned), keep_zeros=True, optimiser=OPTIMISERS[name], **WHOLE)
    assert any("mean of the last 2 weights" in text for text in told.messages)
    tensors, _ = standing()
    assert_kept(pruned, {key.removeprefix("model "): t for key, t in tensors.items() if key.startswith("model ")})
    kept = [*(tmp_path / "run" / "checkpoints").glob("evaluated-*.safetensors")]
    assert len(kept) == 2
    for path in [*kept, tmp_path / "run" / "model.safetensors"]:
        assert_kept(pruned, read_weights(path))


def test_a_resumed_run_is_the_same_and_needs_the_first_folder_no_more(learn, pruned, assert_same, tmp_path):
    training = {"begin_from": str(pruned), "keep_zeros": True, "optimiser": OPTIMISERS["momentum"], **WHOLE}
    learn("straight", **training)
    with pytest.raises(Interrupted):
        learn("broken", after=InterruptAt(3), **training)
    own = shutil.move(pruned, tmp_path / "elsewhere")
    learn("broken", resume=True, **training)
    assert_same("straight", "broken")
    for folder in ("straight", "broken"):
        assert (tmp_path / folder / PRUNED_FILE).read_bytes() == (own / PRUNED_FILE).read_bytes()
        assert_kept(own, read_weights(tmp_path / folder / "model.safetensors"))


class Rough(Likelihood):
    """Three sentences fit into memory; and after an update all of W_o is moved."""

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        if rng is not None and batch.sentences > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().__call__(model, batch, rng)

    def after_update(self, model: TranslationModel, parts: Mapping[str, torch.Tensor]) -> None:
        model.output.weight.add_(0.01)


def test_in_halved_batches_and_whatever_an_update_does(learn, pruned, tmp_path, monkeypatch):
    monkeypatch.setattr("rnnsearch.training.run.estimate", lambda *_: None)
    monkeypatch.setattr(translation, "Likelihood", lambda *_, **__: Rough())
    told = learn("halved", begin_from=str(pruned), keep_zeros=True, max_updates=2)
    assert any("split and tried again" in text for text in told.messages)
    assert_kept(pruned, read_weights(tmp_path / "halved" / "model.safetensors"))


def test_a_gradient_of_what_is_pruned_does_not_count(learn, pruned):
    """The clipped norm is that of the weights that are left."""
    kept, all_ = (
        learn(name, begin_from=str(pruned), keep_zeros=keep, max_updates=1).updates[0]["gradient_norm"]
        for name, keep in (("kept", True), ("all", False))
    )
    assert 0 < kept < all_


def test_without_the_option_zeros_are_weights_like_others(learn, pruned, tmp_path):
    learn("free", begin_from=str(pruned), max_updates=1)
    tensors = read_weights(tmp_path / "free" / "model.safetensors")
    assert not (tmp_path / "free" / PRUNED_FILE).exists()
    assert any(bool((tensors[name][mask] != 0).any()) for name, mask in masks(pruned).items())


def test_pruned_trained_and_pruned_again(learn, pruned, tmp_path):
    learn("again", begin_from=str(pruned), keep_zeros=True, max_updates=2)
    made = prune(tmp_path / "again", tmp_path / "more", 0.8, "class-uniform")
    assert made.all.zeros == pytest.approx(0.8 * made.all.weights, abs=0.05 * made.all.weights)
    learn("last", begin_from=str(tmp_path / "more"), keep_zeros=True, max_updates=2)
    tensors = read_weights(tmp_path / "last" / "model.safetensors")
    for folder in (pruned, tmp_path / "more"):
        assert all(bool((tensors[name][mask] == 0).all()) for name, mask in masks(folder).items())


def test_what_does_not_fit_is_said(learn, configure, tmp_path):
    with pytest.raises(ConfigError, match="keep_zeros = true needs begin_from, the folder of a pruned model"):
        configure(keep_zeros=True, max_updates=1)
    learn("first", max_updates=1)
    with pytest.raises(ConfigError) as error:
        learn("second", begin_from=str(tmp_path / "first"), keep_zeros=True, max_updates=1)
    assert str(error.value) == (
        "training.keep_zeros: needs a training.begin_from that `rnnsearch prune` has made, or that was trained on from "
        f"such a one; {tmp_path / 'first'} has no pruned weights"
    )
    two = configure({"objective": {"symmetry": 0.1}}, begin_from="x", keep_zeros=True, max_updates=1)
    assert any(
        fault.startswith("training.begin_from: cannot be combined with objective.symmetry") for fault in check(two)
    )
