"""What `[model.attention]` may say: every piece needs its options, refuses the others', and must fit the rest."""

import pytest

from rnnsearch.config import AttentionConfig
from rnnsearch.models.attention import normalisers


@pytest.fixture
def refused(faults):
    """The faults of an RNNsearch of states and annotations of 6 and 8 numbers with some attention."""

    def of(attention, init=None, **training):
        model = {
            "embedding": 5,
            "encoder": {"type": "bidirectional", "cell": "gru", "size": 4},
            "decoder": {"type": "bahdanau", "cell": "gru", "size": 6, "maxout": 5},
            "attention": attention,
            **({"init": init} if init else {}),
        }
        objective = {"reinforce": {"baseline": "learned"}} if attention.get("normaliser") == "hard" else {}
        training = {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}, **training}
        return faults({"model": model, "objective": objective, "training": training})

    return of


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
def test_what_is_legal(attention, refused):
    assert refused(attention) == []


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
        ({"score": "general", "features": ["coverage"]}, "features.0: must be one of coverage-linguistic, coverage-n"),
        (
            {"score": "additive", "size": 7, "features": ["position", "position"]},
            'features: must be different ones; got "position" twice',
        ),
        (
            {"score": "general", "window": "local-p", "width": 3, "normaliser": "hard"},
            "window: must be global, local-m",
        ),
        (
            {"score": "multi-head-additive", "size": 6, "heads": 2, "normaliser": "hard"},
            "score: must have one head with the hard normaliser",
        ),
        ({"score": "dot"}, "score: dot must have a decoder state as long as an annotation; got 6 and 8 numbers"),
        ({"score": "scaled-dot"}, "score: scaled-dot must have a decoder state as long as an annotation"),
        (
            {"score": "multi-head-additive", "size": 6, "heads": 3},
            "heads: must divide model.attention.size and the size",
        ),
    ],
)
def test_what_is_refused(attention, fault, refused):
    assert [given[: len(fault) + 16] for given in refused(attention)] == [f"model.attention.{fault}"]


def test_every_fault_of_a_flat_table_at_once(refused):
    found = refused({"score": "general", "size": 7, "window": "local-p", "widht": 3, "features": ["markov"]})
    assert found == [
        "model.attention.neighbours: must be given for the general score, the local-p window, markov",
        "model.attention.size: has no effect with the general score, the local-p window, markov; remove it "
        '(or say "unset")',
        'model.attention.widht: there is no such option (did you mean "width"?)',
        "model.attention.width: must be given for the general score, the local-p window, markov",
    ]


def test_a_flat_table_is_dumped_as_it_was():
    flat = {
        "score": "additive",
        "window": "local-m",
        "normaliser": "softmax",
        "features": ["markov", "fertility-local"],
    }
    flat |= {"size": 7, "width": 3, "neighbours": 1}
    assert AttentionConfig.model_validate(flat).model_dump() == flat


def test_a_location_score_covers_the_training_sentences(refused):
    location = {"score": "location", "max_source": 31}
    assert refused(location, max_length=30) == []
    rule = (
        "training.max_length: must be given and below model.attention.max_source (31), for the end symbol has a weight"
    )
    assert refused(location, max_length=31) == [f"{rule}, too; got 31"]
    assert refused(location) == [f"{rule}, too; got none"]


def test_an_init_for_alignment_matrices_needs_some(refused):
    """A dot product has nothing that could begin in any way."""
    given = {"type": "normal", "scale": 0.01, "alignment_scale": 0.001}
    assert refused({"score": "additive", "size": 7}, given) == []
    assert [fault.partition(";")[0] for fault in refused({"score": "dot"}, given) if "init" in fault] == [
        "model.init.alignment_scale: has no effect with the normal init of this model"
    ]


def test_a_package_that_is_not_here(monkeypatch, refused):
    monkeypatch.setattr(normalisers, "find_spec", lambda _: None)
    (fault,) = refused({"score": "general", "normaliser": "sparsemax"})
    assert fault.startswith("model.attention.normaliser: sparsemax needs the package entmax, which is not installed")
