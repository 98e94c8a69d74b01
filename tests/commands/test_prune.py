"""`rnnsearch prune`, and retraining with the pruned weights fixed at zero."""

from rnnsearch.systems.folder import load_system
from rnnsearch.systems.pruning import read_pruned
from rnnsearch.utils.weights import read_weights

LINES = "the small cat sees the dog.\n\nthe old tree finds the bird.\n"


def test_pruned_model_is_retrained_with_fixed_zeros(cli, corpus, model, user_error, tmp_path):
    pruned = tmp_path / "out"
    retrained = tmp_path / "again"
    result = cli("prune", model, "-o", pruned, "--share", 0.7, "--scheme", "class-distribution")
    assert result.code == 0, result.err
    head, *rows = result.lines
    assert head.split() == ["class", "weights", "zeros", "fraction"]
    cells = {row.split()[0]: row.split()[1:] for row in rows if row}
    assert cells["all"][2] == "70.0%" and "source_embedding" in cells and " ".join(cells["biases,"][2:]) == "not pruned"
    assert int(cells["fp32"][0].replace(",", "")) == 4 * load_system(model).num_parameters
    assert int(cells["bf16"][0].replace(",", "")) * 2 == int(cells["fp32"][0].replace(",", ""))
    assert "70.0% of the weights are zero (class-distribution; up to " in result.err
    assert "of them pruned" in cli("inspect", pruned).out and "of them pruned" not in cli("inspect", model).out
    settings = [f'folder="{retrained}"', f'training.begin_from="{pruned}"']
    settings += [f'data.prepared="{tmp_path / "data"}"', "training.keep_zeros=true", "training.max_updates=20"]
    result = cli("train", corpus / "run.toml", "--set", *settings)
    assert result.code == 0, result.err
    tensors = read_weights(retrained / "model.safetensors")
    for name, mask in read_pruned(pruned, load_system(pruned).model).items():
        assert bool((tensors[name][mask] == 0).all()), name
    for folder in (pruned, retrained):
        assert cli("translate", folder, stdin=LINES).out.count("\n") == 3
    assert "must be at least 0 and below 1; got 1" in cli("prune", model, "-o", tmp_path / "none", "--share", 1).err
    assert user_error("prune", retrained, "-o", tmp_path / "none", "--share", 0.5) == (
        f"{retrained}: 70.0% of its weights are pruned already; got a fraction of 50.0%"
    )
    assert user_error("prune", model, "-o", pruned) == f"{pruned}: already exists; name another folder"
