"""What `[model.attention]` may say: every piece needs its options, refuses the others', and must fit the rest."""

import pytest

from rnnsearch.config import resolve
from rnnsearch.models.attention import normalisers
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.build import check


def faults(attention, init=None, **training):
    """Those of an RNNsearch of states and annotations of 6 and 8 numbers with this attention."""
    tables = {
        "data": {"source": "en", "target": "de", "corpus": "x"},
        "model": {
            "embedding": 5,
            "encoder": {"type": "bidirectional", "cell": "gru", "size": 4},
            "decoder": {"type": "bahdanau", "cell": "gru", "size": 6, "maxout": 5},
            "attention": attention,
            **({"init": init} if init else {}),
        },
        "training": {"max_epochs": 1, **training},
    }
    return check(resolve(tables))


@pytest.mark.parametrize(
    "attention",
    [
        {"score": "additive", "size": 7},
        {"score": "concat", "size": 7, "window": "local-m", "width": 10},
        {"score": "general", "window": "local-p", "width": 10, "normaliser": "entmax15"},
        {"score": "general", "window": "local-m", "width": 10, "normaliser": "hard"},
        {"score": "multi-head-additive", "size": 6, "heads": 2, "features": ["position"]},
        {
            "score": "additive",
            "size": 7,
            "features": ["coverage-linguistic", "markov"],
            "fertility": 2.0,
            "neighbours": 1,
        },
        {"score": "additive", "size": 7, "features": ["coverage-neural", "fertility-local"]}
        | {"coverage_size": 10, "neighbours": 0},
    ],
)
def test_what_is_legal(attention):
    assert faults(attention) == []


def test_names():
    assert faults({"score": "dott"})[0] == (
        f'model.attention.score: must be one of {", ".join(SCORES)}; got "dott" (did you mean "dot"?)'
    )
    assert faults({"score": "general", "window": "local"})[0].startswith(
        f'model.attention.window: must be one of {", ".join(WINDOWS)}; got "local"'
    )
    assert faults({"score": "general", "features": ["coverage"]})[0].startswith("model.attention.features: must be one")


@pytest.mark.parametrize(
    ("attention", "fault"),
    [
        ({"score": "general", "size": 7}, "size: has no effect with the general score, the global window; remove it"),
        ({"score": "concat"}, "size: must be given for the concat score, the global window"),
        ({"score": "general", "window": "local-p"}, "width: must be given for the general score, the local-p window"),
        (
            {"score": "general", "width": 10},
            "width: has no effect with the general score, the global window; remove it",
        ),
        ({"score": "additive", "size": 7, "heads": 2}, "heads: has no effect with the additive score"),
        ({"score": "additive", "size": 7, "features": ["markov"]}, "neighbours: must be given for the additive score"),
        ({"score": "additive", "size": 7, "fertility": 2.0}, "fertility: has no effect with the additive score"),
        ({"score": "general", "features": ["position"]}, "features: enter the score's hidden layer"),
        (
            {"score": "general", "window": "local-p", "width": 3, "normaliser": "hard"},
            "window: must be global, local-m",
        ),
        ({"score": "dot"}, "score: dot must have a decoder state as long as an annotation; got 6 and 8 numbers"),
        ({"score": "scaled-dot"}, "score: scaled-dot must have a decoder state as long as an annotation"),
        (
            {"score": "multi-head-additive", "size": 6, "heads": 3},
            "heads: must divide model.attention.size and the size",
        ),
    ],
)
def test_what_is_refused(attention, fault):
    assert [given[: len(fault) + 16] for given in faults(attention)] == [f"model.attention.{fault}"]


def test_a_location_score_covers_the_training_sentences():
    location = {"score": "location", "max_source": 31}
    assert faults(location, max_length=30) == []
    rule = (
        "training.max_length: must be given and below model.attention.max_source (31), for the end symbol has a weight"
    )
    assert faults(location, max_length=31) == [f"{rule}, too; got 31"]
    assert faults(location) == [f"{rule}, too; got none"]


def test_an_init_for_alignment_matrices_needs_some():
    """A dot product has nothing that could begin in any way."""
    given = {"type": "normal", "scale": 0.01, "alignment_scale": 0.001}
    assert faults({"score": "additive", "size": 7}, given) == []
    encoder_fits = [fault for fault in faults({"score": "dot"}, given) if "init" in fault]
    assert encoder_fits == [
        'model.init.alignment_scale: has no effect with normal init of this model; remove it (or say "unset")'
    ]


def test_a_package_that_is_not_here(monkeypatch):
    monkeypatch.setattr(normalisers, "find_spec", lambda _: None)
    (fault,) = faults({"score": "general", "normaliser": "sparsemax"})
    assert fault.startswith("model.attention.normaliser: sparsemax needs the package entmax, which is not installed")
