"""Names and combinations of `[model]`: every fault with its path, an unknown name with what was meant."""

import pytest

from rnnsearch.config import resolve
from rnnsearch.errors import ConfigError
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.build import check
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.systems.build import build

DATA = {"source": "en", "target": "de", "corpus": "x"}
BASE = {"preset": "small", "data": DATA}
PLAIN = {
    "data": DATA,
    "training": {"max_epochs": 1},
    "model": {
        "embedding": 8,
        "encoder": {"type": "unidirectional", "cell": "gru", "size": 8},
        "decoder": {"type": "rnnencdec", "cell": "gru", "size": 8, "maxout": 8},
    },
}


def faults(*settings, base=BASE):
    return check(resolve(base, settings))


def test_presets_and_plain_models_have_none():
    assert faults() == []
    assert faults(base=PLAIN) == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "model.encoder={type='bidirektional', cell='gru', size=4}",
            "model.encoder.type: must be one of bidirectional, unidirectional, stacked, pyramid; "
            'got "bidirektional" (did you mean "bidirectional"?)',
        ),
        (
            "model.encoder.cell=GRU",
            f'model.encoder.cell: must be one of {", ".join(CELLS)}; got "GRU"',
        ),
        (
            "model.decoder.cell=lstn",
            f'model.decoder.cell: must be one of {", ".join(CELLS)}; got "lstn" (did you mean "lstm"?)',
        ),
        (
            "model.attention.score=aditive",
            f'model.attention.score: must be one of {", ".join(SCORES)}; got "aditive" (did you mean "additive"?)',
        ),
        (
            "model.attention.window=locale",
            'model.attention.window: must be one of global, local-m, local-p; got "locale" (did you mean "local-p"?)',
        ),
        (
            "model.attention.normaliser=softmaks",
            "model.attention.normaliser: must be one of softmax, sparsemax, entmax15, hard; "
            'got "softmaks" (did you mean "softmax"?)',
        ),
        (
            'model.tie="target"',
            None,
        ),
        (
            "model.init.scale=0.1",
            'model.init.scale: has no effect with glorot init of this model; remove it (or say "unset")',
        ),
        (
            "model.init.alignment_scale=0.1",
            'model.init.alignment_scale: has no effect with glorot init of this model; remove it (or say "unset")',
        ),
    ],
)
def test_one_fault(setting, message):
    assert faults(setting) == ([message] if message else [])


def test_unknown_decoder():
    [fault] = faults("model.decoder={type='badanau', size=4}")
    assert fault == (
        f'model.decoder.type: must be one of {", ".join(DECODERS)}; got "badanau" (did you mean "bahdanau"?)'
    )


def test_all_unknown_names_at_once():
    found = faults("model.encoder={type='a', cell='b', size=4}", "model.decoder.cell=c", "model.attention.score=d")
    assert [fault.partition(":")[0] for fault in found] == [
        "model.encoder.type",
        "model.encoder.cell",
        "model.decoder.cell",
        "model.attention.score",
    ]


def test_a_decoder_without_attention_refuses_what_attention_needs():
    found = faults(
        "model.attention.size=4",
        "model.init={type='normal', scale=0.1, alignment_scale=0.1}",
        "model.dropout.annotations=0.2",
        "model.encoder={type='bidirectional', cell='gru', size=8}",
        base=PLAIN,
    )
    assert found == [
        'model.init.alignment_scale: has no effect with normal init of this model; remove it (or say "unset")',
        "model.attention: has no effect with the rnnencdec decoder; remove it",
        "model.encoder.type: must be unidirectional, stacked for the rnnencdec decoder, whose context is the encoder's "
        'last state; got "bidirectional"',
        "model.dropout.annotations: has no effect with the rnnencdec decoder; remove it",
    ]


def test_what_is_needed_and_missing():
    assert faults("model.init.type=normal") == [
        "model.init.alignment_scale: must be given for normal init of this model",
        "model.init.scale: must be given for normal init of this model",
    ]
    assert faults("model.init.type=normal", base=PLAIN) == [
        "model.init.scale: must be given for normal init of this model"
    ]
    assert faults("model.init.type=uniform") == ["model.init.scale: must be given for uniform init of this model"]
    assert faults("model.decoder={type='bahdanau', size=4}", base=PLAIN)[:2] == [
        "model.decoder.cell: must be given for the bahdanau decoder",
        "model.decoder.maxout: must be given for the bahdanau decoder",
    ]
    assert faults("model.decoder={type='bahdanau', size=4}", base=PLAIN)[-1] == (
        "model.attention: must be given for the bahdanau decoder"
    )
    without_size = {**PLAIN, "model": {**PLAIN["model"], "attention": {}}}
    without_size["model"]["decoder"] = {"type": "bahdanau", "cell": "gru", "size": 4, "maxout": 4}
    assert check(resolve(without_size)) == [
        "model.attention.size: must be given for the additive score, the global window"
    ]


def test_cho_has_its_own_cell():
    cho = {**PLAIN["model"], "decoder": {"type": "cho", "cell": "gru", "size": 8, "maxout": 8}}
    assert check(resolve({**PLAIN, "model": cho})) == [
        'model.decoder.cell: has no effect with the cho decoder; remove it (or say "unset")'
    ]


def test_ties():
    assert faults("model.tie=target", "model.decoder.maxout=100") == [
        'model.tie: "target" shares the embeddings with the output rows, so model.decoder.maxout must equal '
        "model.embedding (256); got 100"
    ]
    assert faults("model.tie=all", "text.joint=false") == [
        'model.tie: "all" needs one vocabulary for both languages: set text.joint = true'
    ]
    assert faults("model.tie=all") == []
    with pytest.raises(ConfigError, match=r'model\.tie: "all" needs equal vocabularies; got 20 and 21 symbols'):
        build(resolve(BASE, ["model.tie=all"]).model, 20, 21, seed=1)


def test_joint_words():
    assert faults("text={type='words', joint=true}") == [
        'text.joint: has no effect with text.type = "words"; remove it'
    ]
    assert faults("text.type=words") == []
