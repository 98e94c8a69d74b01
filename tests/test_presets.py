"""The presets: all sound, and the papers' with the papers' exact settings."""

import tomllib

import pytest
import torch

from rnnsearch import config
from rnnsearch.config import preset, preset_names, resolve
from rnnsearch.systems.build import build
from rnnsearch.training.run import check

DATA = {"source": "en", "target": "fr", "corpus": "x"}
PAPERS = ["rnnencdec-30", "rnnencdec-50", "rnnsearch-30", "rnnsearch-50"]


def resolved(name, *settings):
    return resolve({"preset": name, "data": DATA}, settings)


def test_the_papers_presets_and_small_ones_are_there():
    assert {*PAPERS, "small", "demo"} <= set(preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_needs_only_data_and_has_no_fault(name):
    assert check(resolved(name)) == []


@pytest.mark.parametrize("name", preset_names())
def test_dump_and_load_is_the_identity(name):
    before = resolved(name)
    assert resolve(tomllib.loads(config.dump(before))) == before


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_exact_settings(name):
    """Bahdanau et al. 2015, sections 4.1-4.2 and appendices A and B, as a table of everything that is set."""
    searches = name.startswith("rnnsearch")
    found = resolved(name).model_dump(exclude={"data"}, exclude_none=True)
    assert found["text"] == {"type": "words", "vocabulary": 30000 + 4, "min_count": 1}
    model = {
        "embedding": 620,
        "encoder": {"type": "bidirectional" if searches else "unidirectional", "cell": "gru", "size": 1000},
        "decoder": {
            "type": "bahdanau" if searches else "rnnencdec",
            "cell": "gru",
            "size": 1000,
            "maxout": 500,
            "first": "zero",
        },
        "dropout": dict.fromkeys(("embedding", "annotations", "readout", "word", "layers", "state"), 0.0),
        "init": {"type": "normal", "scale": 0.01, "recurrent": "orthogonal"},
        "tie": "none",
        "lexical": False,
    }
    if searches:
        model["attention"] = {"score": "additive", "size": 1000, "window": "global", "normaliser": "softmax"}
        model["attention"]["features"] = []
        model["init"]["alignment_scale"] = 0.001
    assert found["model"] == model
    assert found["objective"] == {}
    training = found["training"]
    assert training["batch"] == {"sentences": 80, "sort_batches": 20, "accumulate": 1}
    assert training["optimiser"] == {"type": "adadelta", "rho": 0.95, "epsilon": 1e-6}
    assert training["schedule"] == {"type": "constant"}
    assert training["normalise"] == "sentences"
    assert training["clip_norm"] == 1.0
    assert training["max_length"] == int(name[-2:])
    assert training["label_smoothing"] == 0.0
    assert training["precision"] == "fp32"
    assert "clip_value" not in training
    assert found["search"]["beam"] == 12


def test_parameters_of_rnnsearch_in_full_size():
    """Counted by hand from appendix A: matrices of the equations, and a bias for each of their left sides."""
    E, n, A, L, V = 620, 1000, 1000, 500, 30004
    gru = 3 * (n * E + n * n + n)
    alignment = A * n + A * 2 * n + A
    decoder = gru + 3 * n * 2 * n + (n * n + n)
    output = 2 * L * (n + E + 2 * n) + 2 * L + V * L + V
    with torch.device("meta"):
        model = build(resolved("rnnsearch-50").model, V, V, seed=None)
    assert sum(p.numel() for p in model.parameters()) == 2 * V * E + 2 * gru + alignment + decoder + output


@pytest.mark.parametrize("name", PAPERS)
def test_the_two_lengths_differ_in_the_length_alone(name):
    def rest(preset_name):
        tables = preset(preset_name)
        return {**tables, "training": {**tables["training"], "max_length": None}}

    assert rest(name) == rest(f"{name[:-2]}30")


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        (
            "training.optimiser.type=adamm",
            'training.optimiser.type: must be one of sgd, adadelta, adam, adamw; got "adamm" (did you mean "adam"?)',
        ),
        ("training.optimiser.type=adam", "training.optimiser.learning_rate: must be given for adam optimiser"),
        (
            "training.optimiser.momentum=0.9",
            'training.optimiser.momentum: has no effect with adadelta optimiser; remove it (or say "unset")',
        ),
        (
            "training.schedule.patience=3",
            'training.schedule.patience: has no effect with constant schedule; remove it (or say "unset")',
        ),
        ("model.dropout.annotations=0.1", None),
    ],
)
def test_training_options_without_effect_are_refused(setting, fault):
    assert check(resolved("rnnsearch-30", setting)) == ([fault] if fault else [])


def test_faults_of_model_and_training_come_together():
    found = check(resolved("rnnsearch-30", "model.attention.score=adition", "training.schedule.type=plato"))
    assert [fault.partition(":")[0] for fault in found] == ["model.attention.score", "training.schedule.type"]
