"""A language model inside a translation model, runs that begin from a trained one: from run files to translations."""

import json
import shutil

import pytest
import torch

from rnnsearch import load
from rnnsearch.search.model_scorer import LIBRARY
from rnnsearch.systems.folder import load_system
from rnnsearch.utils.weights import read_weights
from tests.commands.test_language import RUN

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
    """Trains a model into a folder: run.toml with other settings."""
    prepared = tmp_path_factory.mktemp("inside-data")

    def train(folder, *settings, resume=False, fusion="deep", begin=True, updates=10, lm=lm):
        own = [f'folder="{folder}"', f'data.prepared="{prepared}"', "training.evaluate_every=5"]
        own.append(f"training.max_updates={updates}")
        if fusion is not None:
            own.append(f'model.language_model={{type="{fusion}", folder="{lm}"}}')
        if begin:
            own.append(f'training.begin_from="{model}"')
        return cli("train", corpus / "run.toml", *(["--resume"] if resume else []), "--set", *own, *settings)

    return train


def test_deep_fusion_from_run_file_to_translations(cli, run, model, lm, tmp_path):
    beside, folder = shutil.copytree(lm, tmp_path / "lm"), tmp_path / "fused"
    result = run(folder, updates=5, lm=beside)
    assert result.code == 0, result.err
    drawn = 24 + 1 + 24 * 32  # the gate's, and what the readout reads by
    assert (
        f"warm start from {model}; {drawn} new parameters are initialised as usual" in result.err
        and "a language model inside, with" in result.err
    )
    shutil.rmtree(beside)  # the run has all of it
    result = run(folder, resume=True, lm=beside)
    assert result.code == 0, result.err
    assert cli("translate", folder, "--beam", 3, stdin="".join(f"{line}\n" for line in LINES)).lines == EXPECTED
    own, old, language = (read_weights(one / "model.safetensors") for one in (folder, model, lm))
    for name, tensor in language.items():
        assert torch.equal(own[f"language_model.model.{name}"], tensor), name
    moved = {name for name, tensor in old.items() if not torch.equal(own[name], tensor)}
    assert moved == {name for name in old if name.startswith(("decoder.deep_output.", "output."))}
    told = cli("inspect", folder).out
    assert "deep fusion of recurrent (cell lstm, size 24, layers 1)" in told
    assert "(no native search: a language model is inside)" in told or LIBRARY in told


def test_the_folder_is_read_as_it_was_written(run, tmp_path):
    assert run(tmp_path / "fused", updates=5).code == 0
    system = load_system(tmp_path / "fused")
    translator = load(tmp_path / "fused", precision="fp32")
    options = translator.options(beam=4, n_best=4)
    [found] = translator.n_best(LINES[:1], options)
    again = translator.score([LINES[0]] * len(found), [t.text for t in found])
    for one, other in zip(found, again, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)
    assert not system.can("posterior")


def test_cold_fusion_learns_from_the_beginning(cli, run, tmp_path):
    result = run(tmp_path / "cold", "training.evaluate_every=50", fusion="cold", begin=False, updates=200)
    assert result.code == 0, result.err
    assert cli("translate", tmp_path / "cold", stdin="".join(f"{line}\n" for line in LINES)).lines == EXPECTED


def test_any_run_may_begin_from_a_model(cli, corpus, run, model, lm, tmp_path):
    fresh, tuned = (tmp_path / name for name in ("fresh", "tuned"))
    assert run(fresh, fusion=None, begin=False, updates=5).code == 0
    assert run(tuned, "training.optimiser.learning_rate=1e-6", fusion=None, updates=5).code == 0
    before, after = load_system(model), load_system(tuned)
    assert all(torch.allclose(own, other, atol=1e-3) for own, other in _both(before, after))
    last = [json.loads(line) for line in (tuned / "log.jsonl").read_text().splitlines() if '"dev"' in line][-1]
    other = [json.loads(line) for line in (fresh / "log.jsonl").read_text().splitlines() if '"dev"' in line][-1]
    assert last["dev_nll"] < other["dev_nll"] / 2
    settings = [f'folder="{tmp_path / "lm"}"', f'text.tokenizers="{model}"', "training.max_updates=1"]
    result = cli("lm", "train", corpus / "inside-lm.toml", "--set", *settings, f'training.begin_from="{lm}"')
    assert result.code == 0 and f"warm start from {lm}" in result.err, result.err


def _both(before, after):
    return zip(before.model.parameters(), after.model.parameters(), strict=True)


def test_what_does_not_fit_is_said(run, model, lm, one_vector, tmp_path):
    def said(*settings, **more):
        result = run(tmp_path / "none", *settings, **more)
        assert result.code == 1
        return result.err

    assert "training.begin_from: must be given for deep fusion" in said(begin=False)
    other = said("model.decoder.size=20", fusion=None)
    assert "training.begin_from: needs the [model] of" in other and "got another model.decoder.size\n" in other
    assert "must be a translation model, like this one; got a language-model" in said(f'training.begin_from="{lm}"')
    assert "must be a language model (model.language_model.folder); got a translation model" in said(lm=model)
    assert "there is no such model folder" in said(lm=tmp_path / "nothing")
    others = said(f'training.begin_from="{one_vector}"', fusion=None)
    assert "training.begin_from: must have the same tokens in en" in others and "text.tokenizers" in others
    luong = 'model.decoder={type="luong-input-feeding", cell="gru", size=24, layers=1, bridge="learned", readout=8}'
    assert "needs a decoder with a layer between state and output (bahdanau, " in said(luong, fusion="cold")
    assert "objective.doubly_stochastic: has no effect with deep fusion, which trains only the output" in said(
        "objective.doubly_stochastic=1.0"
    )
    assert "cannot be combined with objective.symmetry" in said("objective.symmetry=1.0", fusion=None)
