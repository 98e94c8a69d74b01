"""Every message where objectives do not fit the model or the data."""

from __future__ import annotations

import re

import pytest

BASE = {
    "preset": "rnnsearch-small",
    "data": {"source": "aa", "target": "bb", "train": ["a|b"], "alignments": ["a"]},
}
NO_ATTENTION = {"preset": "rnnencdec-small"}
CHOOSES = {"model": {"encoder": {"type": "rationale", "cell": "gru", "size": 8, "chooser": 4}}}
HARD = {"model": {"attention": {"normaliser": "hard"}}}
NOT_ALIGNED = {"source": "aa", "target": "bb", "train": ["a|b"]}
NCE = {"type": "nce"}
BINARY = {"model": {"output": {"type": "hierarchical"}}}
CROSS_ENTROPY = {"supervision": {"type": "cross-entropy"}}


def adaptive(cutoffs, factor=4.0, kind="bpe"):
    output = {"type": "adaptive", "cutoffs": cutoffs, "factor": factor}
    return {"model": {"output": output}, "text": {"type": kind}}


BLIND = "which does not attend; remove it"


@pytest.mark.parametrize(
    ("objective", "tables", "fault"),
    [
        (
            {"supervision": {"type": "cross-entropy", "word": "read"}},
            {},
            'objective.supervision.word: must be "predic',
        ),
        ({}, {"search": {"attended_word": "read"}}, 'search.attended_word: must be "predicted", for the bahdanau'),
        (
            {},
            NO_ATTENTION | {"search": {"attended_word": "read"}},
            'search.attended_word: must be "predicted", for the rnnencdec decoder has no attention',
        ),
        ({"doubly_stochastic": 0.1}, NO_ATTENTION, f"objective.doubly_stochastic: has no effect .* {BLIND}"),
        (
            {},
            NO_ATTENTION | {"search": {"coverage_penalty": 0.2}},
            f"search.coverage_penalty: has no .* {BLIND}",
        ),
        (
            {"coverage": 0.1},
            {},
            "objective.coverage: has no effect without a feature that says what is left; use one of coverage-embedding",
        ),
        ({"coverage": 0.1}, NO_ATTENTION, f"objective.coverage: has no effect .* {BLIND}"),
        ({}, CHOOSES, "objective.rationale: must be given for the rationale encoder, whose choices have no gradient"),
        (
            {"rationale": {"sparsity": 0.1}},
            {},
            'objective.rationale: has no effect with the bidirectional encoder, .*; use model.encoder.type = "rational',
        ),
        ({"rationale": {}}, CHOOSES, "objective.rationale.sparsity: must be given"),
        (
            {"rationale": {"sparsity": 0.1}},
            {"model": {"encoder": CHOOSES["model"]["encoder"] | {"reads_end": False}}},
            "model.encoder.reads_end: must be true for rationale, which may choose nothing else",
        ),
        (
            {"rationale": {"sparsity": 0.1}},
            {"model": CHOOSES["model"] | {"pointer": {"size": 3}}},
            'model.pointer: does not go with model.encoder.type = "rationale"; remove one',
        ),
        (
            {"rationale": {"sparsity": 0.1}, **CROSS_ENTROPY},
            CHOOSES,
            'model.encoder.type = "rationale": does not go with objective.supervision; remove one',
        ),
        ({"rationale": {"sparsity": 0.1}, "contrast": NCE}, CHOOSES, "objective.contrast: .* objective.rationale"),
        (CROSS_ENTROPY, {"data": NOT_ALIGNED}, "objective.supervision: needs word alignments of the training text"),
        (
            CROSS_ENTROPY,
            {"data": {"source": "en", "target": "de", "corpus": "tatoeba-en-de"}},
            r"objective.supervision: needs .*, or a corpus that has them \(bible-grc-en, bible-hbo-en\)",
        ),
        (
            {"supervision": {"type": "cross-entropy", "unaligned": "end"}},
            {"model": {"encoder": {"reads_end": False}}},
            'objective.supervision.unaligned: "end" needs an end symbol to attend to .model.encoder.reads_end = true',
        ),
        ({"supervision": {"type": "cross-entrop"}}, {}, "objective.supervision.type: must be one of cross-entropy"),
        ({"reinforce": {"baseline": "mean"}}, HARD, "objective.reinforce.baseline: must be one of average, learned"),
        ({"reinforce": {"baseline": "average"}}, HARD, "objective.reinforce.decay: must be given for the average"),
        ({"reinforce": {"baseline": "learned", "decay": 0.9}}, HARD, "objective.reinforce.decay: has no effect with"),
        ({}, HARD, "objective.reinforce: must be given for the hard normaliser"),
        ({"reinforce": {"baseline": "learned"}}, {}, "objective.reinforce: has no effect with the softmax normaliser"),
        ({}, {"search": {"length_norm": "gnm"}}, "search.length_norm: must be one of power, gnmt, power-with-bos"),
        ({"contrast": {"type": "nc"}}, {}, 'objective.contrast.type: must be one of nce, blackout; got "nc"'),
        ({"contrast": {"type": "nce", "power": 2.0}}, {}, "objective.contrast.power: must be less than or equal to 1"),
        ({"contrast": NCE, "partition": 9}, {}, "objective.contrast: does not go with objective.partition; remove one"),
        ({"contrast": NCE, "symmetry": 1.0}, {}, "objective.contrast: does not go with objective.symmetry"),
        ({"contrast": NCE, "reinforce": {"baseline": "learned"}}, HARD, "objective.contrast: .* objective.reinforce"),
        ({"contrast": NCE}, {"training": {"label_smoothing": 0.1}}, "objective.contrast: .* training.label_smoothing"),
        ({"contrast": NCE}, BINARY, 'objective.contrast: does not go with model.output.type = "hierarchical"'),
        ({"partition": 9}, BINARY, 'model.output.type: "hierarchical" does not go with objective.partition'),
        ({"symmetry": 0.5}, BINARY, 'model.output.type: "hierarchical" does not go with objective.symmetry'),
        (
            {},
            {"model": {"output": {"type": "adaptive"}}},
            "model.output.cutoffs: must be given for the adaptive output",
        ),
        ({}, adaptive([9, 4]), r"model.output.cutoffs: must be in ascending order; got \[9, 4\]"),
        (
            {},
            adaptive([9, 12], 80.0, "words"),
            "model.output.factor: must leave the last group a number of the readout's 192",
        ),
        ({}, adaptive([9]), 'model.output.type: "adaptive" needs symbols in order of frequency'),
        ({"symmetry": 0.0}, {}, "objective.symmetry: must be greater than 0"),
        ({"symmetry": -1.0}, {}, "objective.symmetry: must be greater than 0"),
        ({}, {"search": {"candidates": 500}}, "search.candidates: must be less than or equal to 100; got 500"),
    ],
)
def test_what_does_not_fit_is_refused(faults, objective, tables, fault):
    (found,) = faults({**BASE, **tables, "objective": objective})
    assert re.match(fault, found)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (
            {"corpus": "tatoeba-en-de", "source": "en", "target": "de", "dev_size": 0, "test_size": 9},
            "data.corpus, for a listed corpus brings its own split",
        ),
        (
            {**NOT_ALIGNED, "dev": "a|b", "test": "a|b", "dev_size": 9, "test_size": 0},
            "data.{part}, which is given",
        ),
    ],
)
def test_sizes_of_what_is_not_split_off_are_refused(faults, data, fault):
    expected = [
        f"data.{part}_size: has no effect with {fault.format(part=part)}; remove it" for part in ("dev", "test")
    ]
    assert faults({"preset": "rnnsearch-small", "data": data}) == expected
    usual = data | {"dev_size": 1000, "test_size": 1000}  # as a run's own config says
    assert faults({"preset": "rnnsearch-small", "data": usual}) == []


def test_epochs_that_are_the_same_have_weights_that_are_whole(faults):
    data, once = {**NOT_ALIGNED, "weights": [2.5]}, "training.batch.shuffle=once"
    must = 'data.weights: must be whole numbers with training.batch.shuffle = "once", for all epochs then have the same'
    assert faults({"preset": "rnnsearch-small", "data": data}, once) == [f"{must} pairs; got 2.5"]
    assert faults({"preset": "rnnsearch-small", "data": data}) == []
    assert faults({"preset": "rnnsearch-small", "data": {**data, "weights": [2]}}, once) == []


@pytest.mark.parametrize("metric", ["bleu", "aer"])
def test_a_metric_of_the_dev_set_needs_one(faults, metric):
    data = {**BASE["data"], "dev_size": 0}
    assert sorted(faults({**BASE, "data": data}, f"training.metric={metric}")) == [
        f"training.{option}: needs a dev set; give data.dev or data.dev_size"
        for option in ("metric", "patience", "schedule.type")
    ]
