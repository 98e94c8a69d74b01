"""Magnitude pruning equals NumPy loops, and prunes matrices but not biases or v_a."""

from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch import load
from rnnsearch.errors import ModelError
from rnnsearch.systems.ensemble_folder import write_ensemble
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.pruning import PRUNED_FILE, SCHEMES, prune, read_pruned, weight_classes
from rnnsearch.utils.weights import named_weights, read_weights, save_weights
from tests.untrained import BAHDANAU, untrained, write_model

SHARES = [0.1, 0.45, 0.8, 0.99]


def drawn(seed=0):
    """Return the weights of three classes of different sizes and spreads, without equal values."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0.3 * s, s, n) for name, n, s in (("a", 40, 1.0), ("b", 300, 0.1), ("c", 77, 5.0))}


def plain(scheme, classes, share):
    """Return the pruned positions and lambda, weight by weight as in the paper."""
    wanted = {name: [False] * len(own) for name, own in classes.items()}
    if scheme == "class-uniform":
        for name, own in classes.items():
            for place in sorted(range(len(own)), key=lambda n, own=own: abs(own[n]))[: round(share * len(own))]:
                wanted[name][place] = True
        return wanted, None
    sigma = dict.fromkeys(classes, 1.0)
    if scheme == "class-distribution":
        for name, own in classes.items():
            mean = sum(own) / len(own)
            sigma[name] = (sum((w - mean) ** 2 for w in own) / len(own)) ** 0.5
    low, high, count = 0.0, 1e3, round(share * sum(map(len, classes.values())))
    for _ in range(200):  # bisection for lambda, until the fraction of weights is below it
        bound = (low + high) / 2
        below = sum(abs(w) < bound * sigma[name] for name, own in classes.items() for w in own)
        low, high = (bound, high) if below < count else (low, bound)
    for name, own in classes.items():
        wanted[name] = [abs(w) < high * sigma[name] for w in own]
    return wanted, high


def chosen(scheme, classes, share, pruned=None):
    tensors = {name: torch.tensor(own) for name, own in classes.items()}
    none = {name: torch.zeros(len(own), dtype=torch.bool) for name, own in tensors.items()}
    return SCHEMES[scheme](tensors, pruned or none, share)


@pytest.mark.parametrize(("scheme", "share"), [*product(SCHEMES, SHARES)])
def test_schemes_equal_the_paper(scheme, share):
    classes = drawn()
    found, (wanted, bound) = chosen(scheme, classes, share), plain(scheme, classes, share)
    assert {name: mask.tolist() for name, mask in found.masks.items()} == wanted
    if scheme == "class-uniform":
        assert found.bound is None
        assert all(int(mask.sum()) == round(share * len(mask)) for mask in found.masks.values())
    else:
        assert sum(int(mask.sum()) for mask in found.masks.values()) == round(share * 417)
        assert found.bound == pytest.approx(bound, rel=1e-9)


def test_class_blind_prunes_narrow_classes_more_than_class_distribution():
    blind, by_spread = (chosen(name, drawn(), 0.8).masks for name in ("class-blind", "class-distribution"))
    assert blind["b"].all() and not by_spread["b"].all()
    assert int(blind["c"].sum()) < int(by_spread["c"].sum())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ties_and_zeros_keep_the_sparsity(scheme):
    classes = {"a": np.array([1.0, -1.0] * 10), "b": np.zeros(20)}
    masks = chosen(scheme, classes, 0.75).masks
    assert sum(int(mask.sum()) for mask in masks.values()) == 30
    none = chosen(scheme, classes, 0.0)
    assert not any(mask.any() for mask in none.masks.values()) and none.bound is None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pruned_weights_stay_pruned_and_count(scheme):
    first = chosen(scheme, drawn(), 0.5).masks
    moved = {name: np.where(first[name], 0.0, own) for name, own in drawn(1).items()}
    moved["c"][5:9] = 0.0  # already zero
    second = chosen(scheme, moved, 0.7, first).masks
    assert all(bool((second[name] | ~mask).all()) for name, mask in first.items())
    assert sum(int(mask.sum()) for mask in second.values()) == pytest.approx(0.7 * 417, abs=1.5)


def test_classes_are_the_models_components():
    model = untrained(BAHDANAU).model
    classes = weight_classes(model)
    assert list(classes) == [
        *("source_embedding", "target_embedding", "encoder.forward_cell", "encoder.backward_cell"),
        *("decoder.attention", "decoder.cell", "decoder", "decoder.deep_output", "output"),
    ]
    inside = {name for own in classes.values() for name in own}
    assert {name for name, p in model.named_parameters() if p.ndim > 1} == inside
    assert set(classes["encoder.forward_cell"]) == {
        f"encoder.forward_cell.{name}.weight" for name in ("input", "recurrent", "recurrent_gates")
    }
    tied = weight_classes(
        untrained(BAHDANAU | {"tie": "target", "decoder": BAHDANAU["decoder"] | {"maxout": 12}}).model
    )
    assert "target_embedding, output" in tied and "output" not in tied


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model", BAHDANAU)


def test_zero_sparsity_changes_nothing(model, tmp_path):
    made = prune(model, tmp_path / "out", 0.0, "class-blind")
    assert made.all.zeros == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert not (tmp_path / "out" / PRUNED_FILE).exists()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pruned_folder_is_a_complete_model(model, tmp_path, scheme):
    (model / "dictionary.tsv").write_text("cat\tKatze\n")
    made, out = prune(model, tmp_path / "out", 0.8, scheme), tmp_path / "out"
    before, after = read_weights(model / "model.safetensors"), read_weights(out / "model.safetensors")
    system = load_system(out)
    masks, classes = read_pruned(out, system.model), weight_classes(system.model)
    for name, tensor in before.items():
        expected = tensor.masked_fill(masks[name], 0.0) if name in masks else tensor
        assert torch.equal(after[name], expected), name
    assert masks.keys() == {name for own in classes.values() for name in own}, "biases and v_a are not pruned"
    zeros = {name: sum(int(masks[one].sum()) for one in own) for name, own in classes.items()}
    assert {one.name: one.zeros for one in made.classes} == zeros
    assert made.all.zeros == pytest.approx(0.8 * made.all.weights, abs=len(classes) / 2)
    assert made.unpruned == sum(t.numel() for t in named_weights(system.model).values()) - made.all.weights
    if scheme == "class-uniform":
        assert all(one.zeros == round(0.8 * one.weights) for one in made.classes)
    dense, sparse = made.weighed(2)
    assert dense == 2 * sum(t.numel() for t in before.values())
    nonzero = sum(int((~mask).sum()) for mask in masks.values())
    assert sparse == -(-made.all.weights // 8) + 2 * (nonzero + made.unpruned)
    assert (out / "dictionary.tsv").is_file()
    assert load(out).translate("the small cat sees the dog.").text is not None


def test_folder_can_be_pruned_again(model, tmp_path):
    prune(model, tmp_path / "some", 0.5, "class-uniform")
    made = prune(tmp_path / "some", tmp_path / "more", 0.9, "class-blind")
    system = load_system(tmp_path / "more")
    first, second = (read_pruned(tmp_path / name, system.model) for name in ("some", "more"))
    assert all(bool((second[name] | ~mask).all()) for name, mask in first.items())
    assert made.all.zeros == round(0.9 * made.all.weights)
    with pytest.raises(ModelError, match=r"some: 50\.0% of its weights are pruned already; got a fraction of 40\.0%"):
        prune(tmp_path / "some", tmp_path / "less", 0.4, "class-uniform")


def test_unprunable_models_are_rejected(model, tmp_path):
    with pytest.raises(ModelError, match="already exists; name another folder"):
        prune(model, tmp_path, 0.5, "class-blind")
    systems = [untrained(BAHDANAU), untrained(BAHDANAU)]
    write_ensemble(tmp_path / "both", [model, model], systems, None, "geometric")
    with pytest.raises(ModelError, match="is an ensemble; prune its models one by one"):
        prune(tmp_path / "both", tmp_path / "none", 0.5, "class-blind")
    for bad in ({"output.weight": torch.zeros(3, dtype=torch.uint8)}, {"no": torch.zeros(0, dtype=torch.float32)}):
        save_weights(model / PRUNED_FILE, bad)
        with pytest.raises(ModelError, match=r"pruned.safetensors: does not fit the model of its config"):
            prune(model, tmp_path / "none", 0.5, "class-blind")
    assert not (tmp_path / "none").exists()
