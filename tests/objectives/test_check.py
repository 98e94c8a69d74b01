"""Every message where objectives do not fit the model or the data."""

from __future__ import annotations

import pytest

from rnnsearch import config as run_config
from rnnsearch.errors import ConfigError
from rnnsearch.training.run import check

NO_ATTENTION = {
    "model": {
        "encoder": {"type": "unidirectional", "cell": "gru", "size": 6},
        "decoder": {"type": "rnnencdec", "cell": "gru", "size": 9, "maxout": 5},
    }
}
HARD = {"model": {"attention": {"normaliser": "hard"}}}


@pytest.mark.parametrize(
    ("objective", "tables", "message"),
    [
        (
            {"supervision": {"type": "cross-entropy", "word": "read"}},
            {},
            'objective.supervision.word: must be "predicted", for the bahdanau decoder attends before it reads a word; '
            '"read" needs one of luong, luong-input-feeding, neubig, cgru, deep-transition, bideep, memory',
        ),
        (
            {"doubly_stochastic": 0.1},
            NO_ATTENTION,
            "objective.doubly_stochastic: has no effect with the rnnencdec decoder, which does not attend; remove it",
        ),
        (
            {"symmetry": 0.1},
            NO_ATTENTION,
            "objective.symmetry: has no effect with the rnnencdec decoder, which does not attend; remove it",
        ),
        (
            {"supervision": {"type": "cross-entrop"}},
            {},
            "objective.supervision.type: must be one of cross-entropy, squared-error; "
            'got "cross-entrop" (did you mean "cross-entropy"?)',
        ),
        (
            {"supervision": {"type": "cross-entropy"}},
            {"data": {"alignments": []}},
            "objective.supervision: needs word alignments of the training text: give data.alignments, "
            "or a corpus that has them (bible-grc-en, bible-hbo-en)",
        ),
        (
            {"supervision": {"type": "cross-entropy"}},
            {"data": {"source": "en", "target": "de", "corpus": "tatoeba-en-de"}},
            "objective.supervision: needs word alignments of the training text: give data.alignments, "
            "or a corpus that has them (bible-grc-en, bible-hbo-en)",
        ),
        (
            {"reinforce": {"baseline": "mean"}},
            HARD,
            'objective.reinforce.baseline: must be one of average, learned; got "mean"',
        ),
        (
            {"reinforce": {"baseline": "average"}},
            HARD,
            "objective.reinforce.decay: must be given for the average baseline",
        ),
        (
            {"reinforce": {"baseline": "learned", "decay": 0.9}},
            HARD,
            'objective.reinforce.decay: has no effect with the learned baseline; remove it (or say "unset")',
        ),
        (
            {},
            HARD,
            "objective.reinforce: must be given for the hard normaliser, whose draws have no gradient",
        ),
        (
            {"reinforce": {"baseline": "learned"}},
            {},
            "objective.reinforce: has no effect with the softmax normaliser, which draws nothing; "
            "use model.attention.normaliser = hard",
        ),
        (
            {},
            {"search": {"length_norm": "gnm"}},
            'search.length_norm: must be one of power, gnmt; got "gnm" (did you mean "gnmt"?)',
        ),
        (
            {},
            {**NO_ATTENTION, "search": {"coverage_penalty": 0.2}},
            "search.coverage_penalty: has no effect with the rnnencdec decoder, which does not attend; remove it",
        ),
    ],
)
def test_what_does_not_fit_is_refused(configure, objective, tables, message):
    config = configure(objective, {k: v for k, v in tables.items() if k != "data"}, max_updates=1)
    if "data" in tables:
        data = tables["data"] or None
        given = config.model_dump(mode="json", exclude_none=True, exclude={"data"})
        plain = {"source": "aa", "target": "bb", "train": ["a|b"]} if data == {"alignments": []} else data
        config = run_config.resolve({**given, "data": plain})
    if "model" in tables and "attention" not in tables["model"]:
        config = config.model_copy(update={"model": config.model.model_copy(update={"attention": None})})
    assert message in check(config)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_weights_are_positive(configure, value):
    with pytest.raises(ConfigError, match=r"objective\.symmetry: must be greater than 0"):
        configure({"symmetry": value}, max_updates=1)
