"""`rnnsearch prune` and a run that keeps its zeros, from the command line."""

from rnnsearch.systems.folder import load_system
from rnnsearch.systems.pruning import read_pruned
from rnnsearch.utils.weights import read_weights

LINES = "the small cat sees the dog.\n\nthe old tree finds the bird.\n"


def test_pruned_and_trained_on(cli, corpus, model, fault, tmp_path):
    out, again = tmp_path / "out", tmp_path / "again"
    result = cli("prune", model, "-o", out, "--share", 0.7, "--scheme", "class-distribution")
    assert result.code == 0, result.err
    head, *rows = result.lines
    assert head.split() == ["class", "weights", "zeros", "share"]
    shares = {row.split()[0]: row.split()[1:] for row in rows if row}
    assert shares["all"][2] == "70.0%" and "source_embedding" in shares and shares["biases,"][2] == "never"
    assert int(shares["fp32"][0].replace(",", "")) == 4 * load_system(model).num_parameters
    assert int(shares["bf16"][0].replace(",", "")) * 2 == int(shares["fp32"][0].replace(",", ""))
    assert "70.0% of the weights are zero (class-distribution; those up to " in result.err
    assert "are pruned" in cli("inspect", out).out and "are pruned" not in cli("inspect", model).out
    settings = [f'folder="{again}"', f'training.begin_from="{out}"']
    settings += [f'data.prepared="{tmp_path / "data"}"', "training.keep_zeros=true", "training.max_updates=20"]
    result = cli("train", corpus / "run.toml", "--set", *settings)
    assert result.code == 0, result.err
    tensors = read_weights(again / "model.safetensors")
    for name, mask in read_pruned(out, load_system(out).model).items():
        assert bool((tensors[name][mask] == 0).all()), name
    for folder in (out, again):
        assert cli("translate", folder, stdin=LINES).out.count("\n") == 3
    assert "must be at least 0 and below 1; got 1" in cli("prune", model, "-o", tmp_path / "none", "--share", 1).err
    assert fault("prune", again, "-o", tmp_path / "none", "--share", 0.5) == (
        f"{again}: 70.0% of its weights are pruned already; got a fraction of 50.0%"
    )
    assert fault("prune", model, "-o", out) == f"{out}: already exists; name another folder"
