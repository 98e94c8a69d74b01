"""Validation of `[model]`: missing, unused and incompatible options of each component."""

from typing import get_args

import pytest

from rnnsearch.config import (
    RunConfig,
    Table,
    attention,
    cells,
    data,
    decoders,
    encoders,
    language_model,
    model_rules,
    objective,
    outputs,
    registry,
    rules,
    search,
    sequence,
    sources,
    training,
)
from rnnsearch.config.options import Family
from rnnsearch.models.attention.features import FEATURES
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.auxiliary import BASELINES, REWARD_BASELINES
from rnnsearch.models.bridges import BRIDGES
from rnnsearch.models.cells import CELLS, SSRU
from rnnsearch.models.class_outputs import OUTPUTS
from rnnsearch.models.composition import COMPOSITIONS
from rnnsearch.models.decoders import DECODERS
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.models.fusion import FUSIONS
from rnnsearch.models.language_model import NETWORKS
from rnnsearch.models.layers import INITS
from rnnsearch.models.memory import Hidden, HiddenAndCell
from rnnsearch.models.sources import STATE_COMBINATIONS
from rnnsearch.objectives.attention_penalties import ALIGNMENT_LOSSES
from rnnsearch.objectives.contrast import CONTRASTS
from rnnsearch.objectives.sequence.objective import SEQUENCES
from rnnsearch.objectives.sequence.rewards import REWARDS
from rnnsearch.objectives.sequence.scheduled_sampling import DECAYS
from rnnsearch.search.ranking import LENGTH_NORMS
from rnnsearch.text.annotation import ANNOTATIONS
from rnnsearch.training.optimisers import OPTIMISERS
from rnnsearch.training.schedules import SCHEDULES

BASE = {"preset": "small", "data": {"source": "en", "target": "de", "corpus": "x"}}
MODEL = {
    "embedding": 6,
    "encoder": {"type": "bidirectional", "cell": "gru", "size": 4},
    "attention": {"size": 4},
    "decoder": {"type": "bahdanau", "cell": "gru", "size": 6, "maxout": 5},
}
"""A model with a decoder state of 6 units and annotations of 8."""
CHO = {"attention": None, "decoder": {"type": "cho", "size": 4, "maxout": 4}}
"""A decoder without attention, which needs a sentence vector."""
ADDITIVE = {"score": "additive", "size": 7}
HEADS = {"score": "multi-head-additive", "size": 6, "heads": 2}
STACKED = {"type": "stacked", "layers": 3, "direction": "forward"}
STACK = {"cell": "gru", "size": 7, "layers": 2, "bridge": "learned"}
LUONG = {"type": "luong", "readout": 6, **STACK}
SUTSKEVER = {"type": "sutskever", **STACK}
CGRU = {"type": "cgru", "cell": "gru", "size": 7, "readout": 6}
TIED = 'tie: "target" shares the embeddings with the output layer'
SENTENCE_VECTOR = "for the cho decoder, whose context is the encoder's last state; got"


@pytest.mark.parametrize(
    ("family", "implementations"),
    [
        (attention.SCORES, SCORES),
        (attention.WINDOWS, WINDOWS),
        (attention.NORMALISERS, NORMALISERS),
        (attention.FEATURES, FEATURES),
        (cells.BRIDGES, BRIDGES),
        (cells.CELLS, CELLS),
        (data.ANNOTATIONS, ANNOTATIONS),
        (decoders.DECODERS, DECODERS),
        (encoders.ENCODERS, ENCODERS),
        (encoders.SOURCE_CHARACTERS, COMPOSITIONS),
        (language_model.FUSIONS, FUSIONS),
        (language_model.NETWORKS, NETWORKS),
        (objective.ALIGNMENT_LOSSES, ALIGNMENT_LOSSES),
        (objective.BASELINES, BASELINES),
        (objective.CONTRASTS, CONTRASTS),
        (sequence.DECAYS, DECAYS),
        (sequence.POLICY_BASELINES, REWARD_BASELINES),
        (sequence.REWARDS, REWARDS),
        (sequence.SEQUENCES, SEQUENCES),
        (outputs.INITS, INITS),
        (outputs.OUTPUTS, OUTPUTS),
        (sources.SOURCES, STATE_COMBINATIONS),
        (training.OPTIMISERS, OPTIMISERS),
        (training.SCHEDULES, SCHEDULES),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_options_class_has_an_implementation(family, implementations):
    assert list(implementations) == list(family)
    for name, options in family.items():
        implementation = implementations[name]
        assert options.name() == name
        assert not isinstance(implementation, type) or implementation.component is options


def test_length_norms_of_the_config_have_functions():
    assert list(search.LENGTH_NORMS) == list(LENGTH_NORMS)


def test_every_implementation_belongs_to_a_component_of_a_family():
    families = [attention, cells, data, decoders, encoders, language_model]
    families += [objective, outputs, sequence, sources, training]
    declared = {
        options
        for module in families
        for family in vars(module).values()
        if isinstance(family, Family)
        for options in family.values()
    }
    # `data/context.py` reads the options of contexts.
    assert registry._IMPLEMENTATIONS.keys() == declared - {*data.CONTEXTS.values()}


def test_declared_traits_match_the_implementations():
    states = {("h",): Hidden, ("h", "c"): HiddenAndCell, ("c",): SSRU.state}
    assert all(states[cell.component.carries] is cell.state for cell in CELLS.values())
    fusing = {name for name, decoder in DECODERS.items() if decoder.readout_attribute is not None}
    assert fusing == {name for name, options in decoders.DECODERS.items() if options.supports_fusion}


def option_exists(path):
    """Return True if a path of `config.rules` is an option or a trait in the schema of a run file."""
    *parents, name = path.split(",")[0].split(" = ")[0].split(".")
    tables = [RunConfig]
    for parent in parents:
        fields = [table.model_fields[parent] for table in tables if parent in table.model_fields]
        tables = [inner for field in fields for inner in tables_in(field.annotation)]
    return any(name in table.model_fields or hasattr(table, name) for table in tables)


def tables_in(annotation):
    """Yield the classes of tables in the annotation of a field."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        yield annotation
    for argument in get_args(annotation):
        yield from tables_in(argument)


def test_rules_refer_to_existing_options():
    no_effect = (*rules.NO_EFFECT, *rules.TRANSLATION_NO_EFFECT, *rules.LANGUAGE_MODEL_NO_EFFECT)
    invalid = (*rules.INVALID, *rules.TRANSLATION_INVALID, *rules.LANGUAGE_MODEL_INVALID)
    paths = {
        *rules.CONFLICTS,
        *(other for others in rules.CONFLICTS.values() for other in others),
        *(option for rule in no_effect for option in rule.options),
        *(rule.option for rule in (*rules.REQUIRED, *invalid)),
    }
    assert [path for path in sorted(paths) if not option_exists(path)] == []
    assert not option_exists("model.decoder.copie")


@pytest.fixture
def model_problems(problems):
    """Return the problems of MODEL with some of its tables replaced, or removed by None."""

    def check_tables(tables, **training):
        model_tables = {name: table for name, table in {**MODEL, **tables}.items() if table is not None}
        hard = model_tables.get("attention", {}).get("normaliser") == "hard"
        training = {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}, **training}
        objective_tables = {"reinforce": {"baseline": "learned"}} if hard else {}
        return problems({"model": model_tables, "training": training, "objective": objective_tables})

    return check_tables


@pytest.mark.parametrize(
    "tables",
    [
        *[{"attention": table} for table in (ADDITIVE, HEADS | {"features": ["position"]})],
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
        *[
            CHO | {"encoder": STACKED | {"cell": "gru", "size": 4, "direction": direction}}
            for direction in ("forward", "bottom")
        ],
        {"encoder": STACKED | {"cell": "lstm", "size": 4}, "dropout": {"layers": 0.2, "state": 0.2}},
        {"decoder": LUONG | {"bridge": "zero"}},
        {"decoder": CGRU, "tie": "target"},
        {"lexical": True},
    ],
)
def test_valid_combinations_have_no_problems(tables, model_problems):
    assert model_problems(tables) == []


@pytest.mark.parametrize(
    ("table", "problem"),
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
        (
            {"score": "general", "features": ["position"]},
            "features: need a score with a hidden layer, which the general score does not have",
        ),
        ({"score": "general", "features": ["coverage"]}, "features.0: must be one of coverage-linguistic, coverage-n"),
        (
            ADDITIVE | {"features": ["position"] * 2},
            'features: must be different from each other; got "position" twice',
        ),
        (
            {"score": "general", "window": "local-p", "width": 3, "normaliser": "hard"},
            "window: must be global, local-m",
        ),
        (HEADS | {"normaliser": "hard"}, "score: must have one head with the hard normaliser"),
        ({"score": "dot"}, "score: dot needs a decoder state and annotations of equal size; got 6 and 8"),
        ({"score": "scaled-dot"}, "score: scaled-dot needs a decoder state and annotations of equal size"),
        *[
            (
                HEADS | {"heads": heads},
                f"heads: must divide model.attention.size (6) and the annotation size (8); got {heads}",
            )
            for heads in (3, 4)
        ],
        ({"score": "aditive"}, "score: must be one of additive, additive-bias, concat"),
        ({"window": "locale", "size": 4}, "window: must be one of global, local-m"),
        ({"normaliser": "softmaks", "size": 4}, "normaliser: must be one of softmax, sparsemax"),
    ],
)
def test_invalid_attention(table, problem, model_problems):
    [message] = model_problems({"attention": table})
    assert message.startswith(f"model.attention.{problem}")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"type": "stakced"}, ["type: must be one of bidirectional, unidirec"]),
        ({"type": "bidirectional", "cell": "GRU"}, ["cell: must be one of gru, cho-gru"]),
        ({"type": "stacked", "layers": 2}, ["direction: must be given for the stacked encoder"]),
        ({"type": "pyramid", "layers": 2}, ["reduce: must be given for the pyramid encoder"]),
        (
            {"type": "bidirectional", "reverse": True, "layers": 2},
            [
                'layers: has no effect with the bidirectional encoder; remove it (or set it to "unset")',
                'reverse: has no effect with the bidirectional encoder; remove it (or set it to "unset")',
            ],
        ),
        (STACKED | {"reduce": 1}, ['reduce: has no effect with the stacked encoder; remove it (or set it to "unset")']),
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
                "residual_from: must be a layer from 3 to 3 (model.encoder.layers), because the bidirectional bottom "
                "layer is twice as wide as layer 2; got 2"
            ],
        ),
        (
            STACKED | {"direction": "bottom", "layers": 1},
            ['direction: "bottom" needs at least 2 layers (model.encoder.layers); got 1 (use type = "bidirectional")'],
        ),
        (
            {"type": "pyramid", "layers": 2, "reduce": 3},
            ["reduce: must be at most model.encoder.layers (2); got 3"],
        ),
    ],
)
def test_invalid_encoders(table, expected, model_problems):
    messages = model_problems({"encoder": {"cell": "lstm", "size": 4, **table}})
    for message, problem in zip(messages, expected, strict=True):
        assert message.startswith(f"model.encoder.{problem}")


@pytest.mark.parametrize(
    ("tables", "problem"),
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
            'decoder.bridge: "zero" would hide the source from the sutskever decoder',
        ),
        ({"decoder": CGRU | {"slots": 3}}, "decoder.slots: has no effect with the cgru decoder; remove it"),
        ({"decoder": CGRU | {"slts": 3}}, 'decoder.slts: unknown option (did you mean "slots"?)'),
        ({"decoder": CGRU | {"readout": None}}, "decoder.readout: must be given for the cgru decoder"),
        ({"tie": "target"}, f"{TIED}, so model.decoder.maxout must equal model.embedding (6); got 5"),
        ({"decoder": CGRU | {"readout": 5}, "tie": "target"}, f"{TIED}, so model.decoder"),
        ({"attention": None, "decoder": SUTSKEVER, "tie": "target"}, f"{TIED}, so model.decoder"),
        (
            {"decoder": {"type": "neubig", **STACK}, "tie": "target"},
            f"{TIED}, which does not fit the two-part readout of the neubig decoder",
        ),
        (
            CHO | {"encoder": STACKED | {"cell": "gru", "size": 4, "direction": "both"}},
            f'encoder.direction: must be forward or bottom {SENTENCE_VECTOR} "both"',
        ),
        (CHO, f'encoder.type: must be unidirectional, stacked {SENTENCE_VECTOR} "bidirectional"'),
        ({"attention": None}, "attention: must be given for the bahdanau decoder"),
        (
            {"dropout": {"layers": 0.2}},
            "dropout.layers: has no effect with an encoder and a decoder of one layer; remove it",
        ),
        (
            {"dropout": {"layer_outputs": 0.2}},
            "dropout.layer_outputs: has no effect with a bidirectional encoder and a bahdanau decoder; remove it",
        ),
        (
            CHO | {"decoder": {"type": "sutskever", "cell": "lstm", "size": 4, "layers": 1, "bridge": "annotation"}},
            'decoder.bridge: "annotation" would hide most of the source from the sutskever decoder; use "copy" or '
            '"learned"',
        ),
        (
            {"dropout": {"feeding": 0.2}},
            "dropout.feeding: has no effect with the bahdanau decoder, which reads no vector again; remove it",
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
def test_single_problems(tables, problem, model_problems):
    [message] = model_problems(tables)
    assert message.startswith(f"model.{problem}")


def test_hidden_states_need_input_feeding(model_problems):
    problem = (
        "model.target_characters.reads_hidden: has no effect with the bahdanau decoder, which does not feed h~_t back"
    )
    assert f"{problem}; remove it" in model_problems({"target_characters": {"size": 4, "reads_hidden": True}})


def test_all_problems_of_a_flat_table_are_reported(model_problems):
    table = {"score": "general", "size": 7, "window": "local-p", "widht": 3, "features": ["markov"]}
    assert model_problems({"attention": table}) == [
        "model.attention.neighbours: must be given for the general score, the local-p window, markov",
        "model.attention.size: has no effect with the general score, the local-p window, markov; remove it "
        '(or set it to "unset")',
        'model.attention.widht: unknown option (did you mean "width"?)',
        "model.attention.width: must be given for the general score, the local-p window, markov",
    ]


def test_flat_attention_table_survives_dump():
    flat = {
        "score": "additive",
        "window": "local-m",
        "normaliser": "softmax",
        "features": ["markov", "fertility-local"],
    }
    flat |= {"size": 7, "width": 3, "neighbours": 1}
    assert attention.AttentionConfig.model_validate(flat).model_dump() == flat


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_missing_package_is_reported(name, monkeypatch, model_problems):
    monkeypatch.setattr(model_rules, "find_spec", lambda _: None)
    assert model_problems({"attention": {"score": "general"}}) == []
    assert model_problems({"attention": {"score": "general", "normaliser": name}}) == [
        f"model.attention.normaliser: {name} needs the package entmax, which is not installed; "
        "install it with pip install entmax"
    ]


def test_decoder_without_attention_rejects_attention_options(model_problems):
    messages = model_problems(
        {
            "decoder": MODEL["decoder"] | {"type": "rnnencdec"},
            "init": {"type": "normal", "scale": 0.1, "alignment_scale": 0.1},
            "dropout": {"annotations": 0.2},
            "lexical": True,
        }
    )
    assert {message.partition(":")[0] for message in messages} == {
        "model.attention",
        "model.dropout.annotations",
        "model.encoder.type",
        "model.init.alignment_scale",
        "model.lexical",
    }
