"""What `[model]` may say: every piece needs its options, refuses the others', and must fit the rest."""

import pytest

from rnnsearch.config import attention, decoders, encoders, model, names, objective, optimisers, schedules
from rnnsearch.models.attention import normalisers
from rnnsearch.models.attention.features import FEATURES
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.auxiliary import BASELINES
from rnnsearch.models.bridges import BRIDGES
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.models.initialise import INITS
from rnnsearch.objectives.supervised_attention import ALIGNMENT_LOSSES
from rnnsearch.search.ranking import LENGTH_NORMS
from rnnsearch.training.optimisers import OPTIMISERS
from rnnsearch.training.schedules import SCHEDULES

BASE = {"preset": "small", "data": {"source": "en", "target": "de", "corpus": "x"}}


MODEL = {
    "embedding": 6,
    "encoder": {"type": "bidirectional", "cell": "gru", "size": 4},
    "attention": {"size": 4},
    "decoder": {"type": "bahdanau", "cell": "gru", "size": 6, "maxout": 5},
}
"""States and annotations of 6 and 8 numbers."""


CHO = {"attention": None, "decoder": {"type": "cho", "size": 4, "maxout": 4}}
"""Without attention, from one vector."""


ADDITIVE = {"score": "additive", "size": 7}


HEADS = {"score": "multi-head-additive", "size": 6, "heads": 2}


STACKED = {"type": "stacked", "layers": 3, "direction": "forward"}


STACK = {"cell": "gru", "size": 7, "layers": 2, "bridge": "learned"}


LUONG = {"type": "luong", "readout": 6, **STACK}


SUTSKEVER = {"type": "sutskever", **STACK}


CGRU = {"type": "cgru", "cell": "gru", "size": 7, "readout": 6}


TIED = 'tie: "target" shares the embeddings with the output rows'


ONE_VECTOR = "for the cho decoder, whose context is the encoder's last state; got"


@pytest.mark.parametrize(
    ("options", "classes"),
    [
        *[(encoders.ENCODERS, ENCODERS), (decoders.DECODERS, DECODERS), (model.INITS, INITS)],
        *[(attention.SCORES, SCORES), (attention.WINDOWS, WINDOWS), (attention.FEATURES, FEATURES)],
        *[(names.CELLS, CELLS), (names.BRIDGES, BRIDGES), (names.NORMALISERS, NORMALISERS)],
        *[(objective.BASELINES, BASELINES), (names.ALIGNMENT_LOSSES, ALIGNMENT_LOSSES)],
        *[(optimisers.OPTIMISERS, OPTIMISERS), (schedules.SCHEDULES, SCHEDULES), (names.LENGTH_NORMS, LENGTH_NORMS)],
    ],
)
def test_every_name_that_may_be_given_is_that_of_a_class(options, classes):
    assert list(options) == list(classes)


@pytest.fixture
def refused(faults):
    """The faults of a model of these tables in the place of the plain ones; None: without it."""

    def of(tables, **training):
        whole = {name: table for name, table in {**MODEL, **tables}.items() if table is not None}
        hard = whole.get("attention", {}).get("normaliser") == "hard"
        training = {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}, **training}
        given = {"model": whole, "training": training}
        return faults(given | {"objective": {"reinforce": {"baseline": "learned"}} if hard else {}})

    return of


@pytest.mark.parametrize(
    "tables",
    [
        *[{"attention": given} for given in (ADDITIVE, HEADS | {"features": ["position"]})],
        {"attention": {"score": "concat", "size": 7, "window": "local-m", "width": 10}},
        {"attention": {"score": "general", "window": "local-p", "width": 10, "normaliser": "entmax15"}},
        {"attention": {"score": "general", "window": "local-m", "width": 10, "normaliser": "hard"}},
        {"attention": ADDITIVE | {"features": ["coverage-linguistic", "markov"], "fertility": 2.0, "neighbours": 1}},
        {
            "attention": ADDITIVE
            | {"features": ["coverage-neural", "fertility-local"], "coverage_size": 10, "neighbours": 0}
        },
        {"encoder": {"type": "unidirectional", "cell": "lstm", "size": 4, "reverse": True}},
        {"encoder": {"type": "pyramid", "cell": "lstm", "size": 4, "layers": 3, "reduce": 3}},
        {"encoder": STACKED | {"cell": "lstm", "size": 4, "residual_from": 3, "reverse": True}},
        *[CHO | {"encoder": STACKED | {"cell": "gru", "size": 4, "direction": way}} for way in ("forward", "bottom")],
        {"encoder": STACKED | {"cell": "lstm", "size": 4}, "dropout": {"layers": 0.2, "state": 0.2}},
        {"decoder": LUONG | {"bridge": "zero"}},
        {"decoder": CGRU, "tie": "target"},
        {"lexical": True},
    ],
)
def test_what_is_legal(tables, refused):
    assert refused(tables) == []


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"score": "general", "size": 7}, "size: has no effect with the general score, the global window; remove it"),
        ({"score": "concat"}, "size: must be given for the concat score, the global window"),
        ({"score": "general", "window": "local-p"}, "width: must be given for the general score, the local-p window"),
        (
            {"score": "general", "width": 10},
            "width: has no effect with the general score, the global window; remove it",
        ),
        (ADDITIVE | {"heads": 2}, "heads: has no effect with the additive score"),
        (ADDITIVE | {"features": ["markov"]}, "neighbours: must be given for the additive score"),
        (ADDITIVE | {"fertility": 2.0}, "fertility: has no effect with the additive score"),
        ({"score": "general", "features": ["position"]}, "features: enter the score's hidden layer"),
        ({"score": "general", "features": ["coverage"]}, "features.0: must be one of coverage-linguistic, coverage-n"),
        (ADDITIVE | {"features": ["position"] * 2}, 'features: must be different ones; got "position" twice'),
        (
            {"score": "general", "window": "local-p", "width": 3, "normaliser": "hard"},
            "window: must be global, local-m",
        ),
        (HEADS | {"normaliser": "hard"}, "score: must have one head with the hard normaliser"),
        ({"score": "dot"}, "score: dot must have a decoder state as long as an annotation; got 6 and 8 numbers"),
        ({"score": "scaled-dot"}, "score: scaled-dot must have a decoder state as long as an annotation"),
        *[
            (
                HEADS | {"heads": heads},
                f"heads: must divide model.attention.size and the size of an annotation; got {heads}, 6 and 8",
            )
            for heads in (3, 4)
        ],
        ({"score": "aditive"}, "score: must be one of additive, additive-bias, concat"),
        ({"window": "locale", "size": 4}, "window: must be one of global, local-m"),
        ({"normaliser": "softmaks", "size": 4}, "normaliser: must be one of softmax, sparsemax"),
    ],
)
def test_attention_that_does_not_fit(given, fault, refused):
    (found,) = refused({"attention": given})
    assert found.startswith(f"model.attention.{fault}")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "stakced"}, ["type: must be one of bidirectional, unidirec"]),
        ({"type": "bidirectional", "cell": "GRU"}, ["cell: must be one of gru, cho-gru"]),
        ({"type": "stacked", "layers": 2}, ["direction: must be given for the stacked encoder"]),
        ({"type": "pyramid", "layers": 2}, ["reduce: must be given for the pyramid encoder"]),
        (
            {"type": "bidirectional", "reverse": True, "layers": 2},
            [
                'layers: has no effect with the bidirectional encoder; remove it (or say "unset")',
                'reverse: has no effect with the bidirectional encoder; remove it (or say "unset")',
            ],
        ),
        (STACKED | {"reduce": 1}, ['reduce: has no effect with the stacked encoder; remove it (or say "unset")']),
        (
            STACKED | {"direction": "both", "reverse": True},
            ['reverse: has no effect with direction = "both"; remove it'],
        ),
        (
            STACKED | {"residual_from": 4},
            ["residual_from: must be a layer from 2 to 3 (model.encoder.layers); got 4"],
        ),
        (
            STACKED | {"direction": "bottom", "residual_from": 2},
            [
                "residual_from: must be a layer from 3 to 3 (model.encoder.layers); layer 2 reads both ways of the "
                "bottom layer, which is twice its own size; got 2"
            ],
        ),
        (
            STACKED | {"direction": "bottom", "layers": 1},
            ['direction: "bottom" must have model.encoder.layers of at least 2; got 1 (use type = "bidirectional")'],
        ),
        (
            {"type": "pyramid", "layers": 2, "reduce": 3},
            ["reduce: must be at most model.encoder.layers (2); got 3"],
        ),
    ],
)
def test_an_encoder_that_does_not_fit(given, expected, refused):
    found = refused({"encoder": {"cell": "lstm", "size": 4, **given}})
    assert len(found) == len(expected)
    assert all(fault.startswith(f"model.encoder.{start}") for fault, start in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("tables", "fault"),
    [
        ({"decoder": {"type": "badanau", "size": 4}}, "decoder.type: must be one of bahdanau, bahdanau-tanh"),
        ({"decoder": LUONG | {"residual_from": 3}}, "decoder.residual_from: must be at most model.decoder.layers (2)"),
        (
            {"decoder": LUONG | {"bridge": "copy"}},
            'decoder.bridge: "copy" needs as many encoder layers as decoder layers',
        ),
        ({"decoder": LUONG | {"bridge": "learnt"}}, "decoder.bridge: must be one of zero, copy, learned"),
        (
            {"attention": None, "decoder": SUTSKEVER | {"bridge": "zero"}},
            'decoder.bridge: "zero" would leave the sutskever decoder without',
        ),
        ({"decoder": CGRU | {"slots": 3}}, "decoder.slots: has no effect with the cgru decoder; remove it"),
        ({"decoder": CGRU | {"slts": 3}}, 'decoder.slts: there is no such option (did you mean "slots"?)'),
        ({"decoder": CGRU | {"readout": None}}, "decoder.readout: must be given for the cgru decoder"),
        ({"tie": "target"}, f"{TIED}, so model.decoder.maxout must equal model.embedding (6); got 5"),
        ({"decoder": CGRU | {"readout": 5}, "tie": "target"}, f"{TIED}, so model.decoder"),
        ({"attention": None, "decoder": SUTSKEVER, "tie": "target"}, f"{TIED}, so model.decoder"),
        ({"decoder": {"type": "neubig", **STACK}, "tie": "target"}, f"{TIED}, which the neubig decoder"),
        (
            CHO | {"encoder": STACKED | {"cell": "gru", "size": 4, "direction": "both"}},
            f'encoder.direction: must be forward or bottom {ONE_VECTOR} "both"',
        ),
        (CHO, f'encoder.type: must be unidirectional, stacked {ONE_VECTOR} "bidirectional"'),
        ({"attention": None}, "attention: must be given for the bahdanau decoder"),
        (
            {"dropout": {"layers": 0.2}},
            "dropout.layers: has no effect with an encoder and a decoder of one layer; remove it",
        ),
        (
            {"dropout": {"layer_outputs": 0.2}},
            "dropout.layer_outputs: has no effect with a bidirectional encoder and a bahdanau decoder; remove it",
        ),
        ({"init": {"type": "glorot", "scale": 0.1}}, "init.scale: has no effect with the glorot init; remove it"),
        ({"init": {"type": "uniform"}}, "init.scale: must be given for the uniform init"),
        ({"init": {"type": "normal", "scale": 0.1}}, "init.alignment_scale: must be given for the normal init"),
        (
            {
                "attention": {"score": "dot"},
                "decoder": MODEL["decoder"] | {"size": 8},
                "init": {"type": "normal", "scale": 0.01, "alignment_scale": 0.001},
            },
            "init.alignment_scale: has no effect with the normal init of this model",
        ),
    ],
)
def test_one_fault(tables, fault, refused):
    (found,) = refused(tables)
    assert found.startswith(f"model.{fault}")


def test_every_fault_of_a_flat_table_at_once(refused):
    found = refused(
        {"attention": {"score": "general", "size": 7, "window": "local-p", "widht": 3, "features": ["markov"]}}
    )
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
    assert attention.AttentionConfig.model_validate(flat).model_dump() == flat


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_a_package_that_is_not_here(name, monkeypatch, refused):
    monkeypatch.setattr(normalisers, "find_spec", lambda _: None)
    assert refused({"attention": {"score": "general"}}) == []
    assert refused({"attention": {"score": "general", "normaliser": name}}) == [
        f"model.attention.normaliser: {name} needs the package entmax, which is not installed; "
        "install it with pip install entmax"
    ]


def test_a_decoder_without_attention_refuses_what_attention_needs(refused):
    found = refused(
        {
            "decoder": MODEL["decoder"] | {"type": "rnnencdec"},
            "init": {"type": "normal", "scale": 0.1, "alignment_scale": 0.1},
            "dropout": {"annotations": 0.2},
            "lexical": True,
        }
    )
    assert [fault.partition(":")[0] for fault in found] == [
        *("model.init.alignment_scale", "model.attention", "model.lexical"),
        "model.dropout.annotations",
        "model.encoder.type",
    ]
