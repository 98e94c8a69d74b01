"""Every message where objectives do not fit the model or the data."""

from __future__ import annotations

import re

import pytest

from rnnsearch.config import merge
from rnnsearch.errors import ConfigError

NO_ATTENTION = {
    "model": {
        "encoder": {"type": "unidirectional", "cell": "gru", "size": 6},
        "decoder": {"type": "rnnencdec", "cell": "gru", "size": 9, "maxout": 5},
    }
}
HARD = {"model": {"attention": {"normaliser": "hard"}}}


NOT_ALIGNED = {"source": "aa", "target": "bb", "train": ["a|b"]}
CROSS_ENTROPY = {"supervision": {"type": "cross-entropy"}}
BLIND = "which does not attend; remove it"


@pytest.mark.parametrize(
    ("objective", "tables", "fault"),
    [
        (
            {"supervision": {"type": "cross-entropy", "word": "read"}},
            {},
            'objective.supervision.word: must be "predic',
        ),
        ({"doubly_stochastic": 0.1}, NO_ATTENTION, f"objective.doubly_stochastic: has no effect .* {BLIND}"),
        (
            {},
            NO_ATTENTION | {"search": {"coverage_penalty": 0.2}},
            f"search.coverage_penalty: has no .* {BLIND}",
        ),
        (CROSS_ENTROPY, {"data": NOT_ALIGNED}, "objective.supervision: needs word alignments of the training text"),
        (
            CROSS_ENTROPY,
            {"data": {"source": "en", "target": "de", "corpus": "tatoeba-en-de"}},
            r"objective.supervision: needs .*, or a corpus that has them \(bible-grc-en, bible-hbo-en\)",
        ),
        ({"supervision": {"type": "cross-entrop"}}, {}, "objective.supervision.type: must be one of cross-entropy"),
        ({"reinforce": {"baseline": "mean"}}, HARD, "objective.reinforce.baseline: must be one of average, learned"),
        ({"reinforce": {"baseline": "average"}}, HARD, "objective.reinforce.decay: must be given for the average"),
        ({"reinforce": {"baseline": "learned", "decay": 0.9}}, HARD, "objective.reinforce.decay: has no effect with"),
        ({}, HARD, "objective.reinforce: must be given for the hard normaliser"),
        ({"reinforce": {"baseline": "learned"}}, {}, "objective.reinforce: has no effect with the softmax normaliser"),
        ({}, {"search": {"length_norm": "gnm"}}, "search.length_norm: must be one of power, gnmt"),
        ({}, {"search": {"candidates": 500}}, "search.candidates: must be at most 100; got 500"),
    ],
)
def test_what_does_not_fit_is_refused(configure, faults, objective, tables, fault):
    whole = configure({}, max_updates=1).model_dump(mode="json", exclude_none=True)
    if tables.get("model", {}).get("decoder"):
        del whole["model"]["attention"]
    data = {"data": tables["data"]} if "data" in tables else {}
    found = faults(merge(whole, {**tables, "objective": objective}) | data)
    assert len(found) == 1
    assert re.match(fault, found[0])


@pytest.mark.parametrize("metric", ["bleu", "aer"])
def test_a_metric_of_the_dev_set_needs_one(configure, faults, metric):
    whole = configure({}, max_updates=1, dev_bleu=True).model_dump(mode="json", exclude_none=True)
    data = {**NOT_ALIGNED, "alignments": ["a"], "dev_size": 0}
    assert faults({**merge(whole, {"training": {"metric": metric}}), "data": data}) == [
        "training.metric: needs a dev set; give data.dev or data.dev_size"
    ]


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_weights_are_positive(configure, value):
    with pytest.raises(ConfigError, match=r"objective\.symmetry: must be greater than 0"):
        configure({"symmetry": value}, max_updates=1)
