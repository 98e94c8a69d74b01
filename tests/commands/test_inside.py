"""Deep and cold fusion, and warm starts from a trained model, from the run file to translations."""

import json
import shutil

import pytest
import torch

from rnnsearch import load
from rnnsearch.search.model_scorer import TORCH_PRODUCTS
from rnnsearch.systems.folder import load_system
from rnnsearch.utils.weights import read_weights
from tests.commands.test_language import COMPOSED, RUN

LINES = ["the small cat sees the dog.", "", "the old tree finds the bird."]
EXPECTED = ["der kleine Katze sieht der Hund.", "", "der alte Baum findet der Vogel."]


@pytest.fixture(scope="module")
def lm(cli, corpus, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inside") / "lm"
    (corpus / "inside-lm.toml").write_text(RUN)
    settings = [f'folder="{folder}"', f'text.tokenizers="{model}"', "training.max_updates=100"]
    result = cli("lm", "train", corpus / "inside-lm.toml", "--set", *settings)
    assert result.code == 0, result.err
    return folder


@pytest.fixture(scope="module")
def run(cli, corpus, model, lm, tmp_path_factory):
    """Return a function that trains a model with run.toml and other settings."""
    prepared = tmp_path_factory.mktemp("inside-data")

    def train(folder, *settings, resume=False, fusion="deep", begin=True, updates=10, lm=lm):
        all_settings = [f'folder="{folder}"', f'data.prepared="{prepared}"', "training.evaluate_every=5"]
        all_settings.append(f"training.max_updates={updates}")
        if fusion is not None:
            all_settings.append(f'model.language_model={{type="{fusion}", folder="{lm}"}}')
        if begin:
            all_settings.append(f'training.begin_from="{model}"')
        return cli("train", corpus / "run.toml", *(["--resume"] if resume else []), "--set", *all_settings, *settings)

    return train


def test_deep_fusion_trains_and_translates(cli, run, model, lm, tmp_path):
    lm_copy = shutil.copytree(lm, tmp_path / "lm")
    folder = tmp_path / "fused"
    result = run(folder, updates=5, lm=lm_copy)
    assert result.code == 0, result.err
    new_parameters = 24 + 1 + 24 * 32  # the gate, and the readout's input weights
    assert (
        f"warm start from {model}; {new_parameters} new parameters are initialised as usual" in result.err
        and "a language model inside, with" in result.err
    )
    shutil.rmtree(lm_copy)  # the run contains the language model
    result = run(folder, resume=True, lm=lm_copy)
    assert result.code == 0, result.err
    assert cli("translate", folder, "--beam", 3, stdin="".join(f"{line}\n" for line in LINES)).lines == EXPECTED
    fused_weights = read_weights(folder / "model.safetensors")
    old_weights = read_weights(model / "model.safetensors")
    for name, tensor in read_weights(lm / "model.safetensors").items():
        assert torch.equal(fused_weights[f"language_model.model.{name}"], tensor), name
    changed = {name for name, tensor in old_weights.items() if not torch.equal(fused_weights[name], tensor)}
    assert changed == {name for name in old_weights if name.startswith(("decoder.deep_output.", "output."))}
    inspected = cli("inspect", folder).out
    assert "deep fusion of recurrent (cell lstm, size 24, layers 1)" in inspected
    assert "(no native search: a language model is inside)" in inspected or TORCH_PRODUCTS in inspected


def test_composed_vectors_are_in_a_table_inside(cli, corpus, run, model, tmp_path):
    lm = tmp_path / "lm"
    settings = [f'folder="{lm}"', f'text.tokenizers="{model}"', "training.max_updates=50", *COMPOSED]
    result = cli("lm", "train", corpus / "inside-lm.toml", "--set", *settings)
    assert result.code == 0, result.err
    result = run(tmp_path / "fused", updates=5, lm=lm)
    assert result.code == 0, result.err
    weights = read_weights(tmp_path / "fused" / "model.safetensors")
    name = "language_model.model.embedding.weight"
    assert torch.equal(weights[name], load_system(lm).search_model.embedding.weight)
    lines = "".join(f"{line}\n" for line in LINES)
    assert cli("translate", tmp_path / "fused", "--beam", 3, stdin=lines).lines == EXPECTED
    config = tmp_path / "fused" / "config.toml"
    config.write_text(config.read_text() + '[model.language_model.model.characters]\ntype = "lstm"\n')
    result = cli("translate", tmp_path / "fused", stdin=lines)
    assert (
        result.code == 1 and "model.language_model.model.characters: has no effect inside a translation" in result.err
    )


def test_loaded_model_has_the_same_scores_in_search_and_scoring(run, tmp_path):
    assert run(tmp_path / "fused", updates=5).code == 0
    system = load_system(tmp_path / "fused")
    translator = load(tmp_path / "fused", precision="fp32")
    options = translator.options(beam=4, n_best=4)
    [n_best] = translator.n_best(LINES[:1], options)
    scored = translator.score([LINES[0]] * len(n_best), [t.text for t in n_best])
    for translation, other in zip(n_best, scored, strict=True):
        assert translation.log_prob == pytest.approx(other.log_prob, abs=1e-3)
    assert not system.can("posterior")


def test_cold_fusion_trains_from_scratch(cli, run, tmp_path):
    result = run(tmp_path / "cold", "training.evaluate_every=50", fusion="cold", begin=False, updates=200)
    assert result.code == 0, result.err
    assert cli("translate", tmp_path / "cold", stdin="".join(f"{line}\n" for line in LINES)).lines == EXPECTED


def test_runs_warm_start_from_a_model(cli, corpus, run, model, lm, tmp_path):
    fresh = tmp_path / "fresh"
    tuned = tmp_path / "tuned"
    assert run(fresh, fusion=None, begin=False, updates=5).code == 0
    assert run(tuned, "training.optimiser.learning_rate=1e-6", fusion=None, updates=5).code == 0
    before, after = load_system(model), load_system(tuned)
    for old, new in zip(before.model.parameters(), after.model.parameters(), strict=True):
        assert torch.allclose(old, new, atol=1e-3)
    assert last_dev_nll(tuned) < last_dev_nll(fresh) / 2
    settings = [f'folder="{tmp_path / "lm"}"', f'text.tokenizers="{model}"', "training.max_updates=1"]
    result = cli("lm", "train", corpus / "inside-lm.toml", "--set", *settings, f'training.begin_from="{lm}"')
    assert result.code == 0 and f"warm start from {lm}" in result.err, result.err


def last_dev_nll(folder):
    """Return the loss of the last dev evaluation of a run."""
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines() if '"dev"' in line]
    return rows[-1]["dev_nll"]


def test_incompatible_models_are_an_error(run, model, lm, one_vector, tmp_path):
    def error_of(*settings, **more):
        result = run(tmp_path / "none", *settings, **more)
        assert result.code == 1
        return result.err

    assert "training.begin_from: must be given for deep fusion" in error_of(begin=False)
    other = error_of("model.decoder.size=20", fusion=None)
    assert "training.begin_from: needs the [model] of" in other and "got another model.decoder.size\n" in other
    assert "must be a translation model, like this one; got a language-model" in error_of(f'training.begin_from="{lm}"')
    assert "must be a language model (model.language_model.folder); got a translation model" in error_of(lm=model)
    assert "there is no such model folder" in error_of(lm=tmp_path / "nothing")
    error = error_of(f'training.begin_from="{one_vector}"', fusion=None)
    assert "training.begin_from: must have the same tokens in en" in error and "text.tokenizers" in error
    luong = 'model.decoder={type="luong-input-feeding", cell="gru", size=24, layers=1, bridge="learned", readout=8}'
    assert "needs a decoder with a layer between state and output (bahdanau, " in error_of(luong, fusion="cold")
    assert "objective.doubly_stochastic: has no effect with deep fusion, which trains only the output" in error_of(
        "objective.doubly_stochastic=1.0"
    )
    assert "cannot be combined with objective.symmetry" in error_of("objective.symmetry=1.0", fusion=None)
