"""Combinations of `[model]`: every fault with its path, an unknown name with what was meant."""

import pytest

from rnnsearch.config import attention, decoders, encoders, model, names, objective, optimisers, resolve, schedules
from rnnsearch.errors import ConfigError
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
from rnnsearch.systems.build import build
from rnnsearch.training.optimisers import OPTIMISERS
from rnnsearch.training.schedules import SCHEDULES

BASE = {"preset": "small", "data": {"source": "en", "target": "de", "corpus": "x"}}
PLAIN = {
    "embedding": 8,
    "encoder": {"type": "unidirectional", "cell": "gru", "size": 8},
    "decoder": {"type": "rnnencdec", "cell": "gru", "size": 8, "maxout": 8},
}


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


def test_presets_and_plain_models_have_no_fault(faults):
    assert faults(BASE) == faults({"model": PLAIN}) == []


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("model.encoder={type='stakced', cell='gru', size=4}", "encoder.type: must be one of bidirectional, unidirec"),
        ("model.encoder.cell=GRU", "encoder.cell: must be one of gru, cho-gru"),
        ("model.decoder={type='badanau', size=4}", "decoder.type: must be one of bahdanau, bahdanau-tanh"),
        ("model.attention.score=aditive", "attention.score: must be one of additive, concat"),
        ("model.attention.window=locale", "attention.window: must be one of global, local-m"),
        ("model.attention.normaliser=softmaks", "attention.normaliser: must be one of softmax, sparsemax"),
        ("model.init.scale=0.1", "init.scale: has no effect with the glorot init; remove it"),
        ("model.init.type=uniform", "init.scale: must be given for the uniform init"),
        (
            "model.init={type='normal', scale=0.1}",
            "init.alignment_scale: must be given for the normal init",
        ),
        (
            "model.decoder.maxout=100",
            'tie: "target" shares the embeddings with the output rows, so model.decoder',
        ),
        ("model.lexical=true", None),
    ],
)
def test_one_fault(setting, fault, faults):
    found = faults(BASE, setting)
    assert [text[: len(fault or "") + 6] for text in found] == ([f"model.{fault}"] if fault else [])


def test_a_name_that_is_almost_right_is_suggested(faults):
    [fault] = faults(BASE, "model.decoder={type='badanau', size=4}")
    assert fault.endswith('; got "badanau" (did you mean "bahdanau"?)')


def test_all_unknown_names_at_once(faults):
    found = faults(BASE, "model.encoder.type=a", "model.decoder.cell=c", "model.attention.score=d", "model.tie=e")
    assert [fault.partition(":")[0] for fault in found] == [
        *("model.encoder.type", "model.attention.score", "model.decoder.cell", "model.tie")
    ]


def test_a_decoder_without_attention_refuses_what_attention_needs(faults):
    found = faults(
        {"model": PLAIN | {"encoder": PLAIN["encoder"] | {"type": "bidirectional"}, "attention": {"size": 4}}},
        "model.init={type='normal', scale=0.1, alignment_scale=0.1}",
        "model.dropout.annotations=0.2",
        "model.lexical=true",
    )
    assert [fault.partition(":")[0] for fault in found] == [
        *("model.init.alignment_scale", "model.attention", "model.lexical", "model.dropout.annotations"),
        "model.encoder.type",
    ]
    assert found[-1].startswith("model.encoder.type: must be unidirectional, stacked for the rnnencdec decoder")
    assert faults({"model": PLAIN | {"decoder": PLAIN["decoder"] | {"type": "bahdanau"}}}) == [
        "model.attention: must be given for the bahdanau decoder"
    ]


def test_ties_need_one_vocabulary(faults):
    assert faults(BASE, "model.tie=all") == []
    assert faults(BASE, "model.tie=all", "text.joint=false") == [
        'model.tie: "all" needs one vocabulary for both languages: set text.joint = true'
    ]
    assert faults(BASE, "text={type='words', joint=true}") == [
        'text.joint: has no effect with text.type = "words"; remove it'
    ]
    with pytest.raises(ConfigError, match=r'model\.tie: "all" needs equal vocabularies; got 20 and 21 symbols'):
        build(resolve(BASE, ["model.tie=all"]).model, 20, 21, seed=1)
