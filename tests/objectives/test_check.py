"""Validation of objectives, metrics and data options against the model and the data."""

from __future__ import annotations

import re

import pytest

BASE = {
    "preset": "rnnsearch-small",
    "data": {"source": "aa", "target": "bb", "train": ["a|b"], "alignments": ["a"]},
}
NO_ATTENTION = {"preset": "rnnencdec-small"}
RATIONALE = {"model": {"encoder": {"type": "rationale", "cell": "gru", "size": 8, "chooser": 4}}}
HARD = {"model": {"attention": {"normaliser": "hard"}}}
UNALIGNED = {"source": "aa", "target": "bb", "train": ["a|b"]}
NCE = {"type": "nce"}
HIERARCHICAL = {"model": {"output": {"type": "hierarchical"}}}
CROSS_ENTROPY = {"supervision": {"type": "cross-entropy"}}


def adaptive(cutoffs, factor=4.0, text_type="bpe"):
    output = {"type": "adaptive", "cutoffs": cutoffs, "factor": factor}
    return {"model": {"output": output}, "text": {"type": text_type}}


WITHOUT_ATTENTION = "which has no attention; remove it"


@pytest.mark.parametrize(
    ("objective", "tables", "problem"),
    [
        (
            {"supervision": {"type": "cross-entropy", "word": "read"}},
            {},
            'objective.supervision.word: must be "predic',
        ),
        ({}, {"search": {"attended_word": "read"}}, 'search.attended_word: must be "predicted", because the bahdanau'),
        (
            {},
            NO_ATTENTION | {"search": {"attended_word": "read"}},
            'search.attended_word: must be "predicted", because the rnnencdec decoder has no attention',
        ),
        (
            {"doubly_stochastic": 0.1},
            NO_ATTENTION,
            f"objective.doubly_stochastic: has no effect .* {WITHOUT_ATTENTION}",
        ),
        (
            {},
            NO_ATTENTION | {"search": {"coverage_penalty": 0.2}},
            f"search.coverage_penalty: has no .* {WITHOUT_ATTENTION}",
        ),
        (
            {"coverage": 0.1},
            {},
            "objective.coverage: has no effect without a feature that learns coverage; use one of coverage-embedding",
        ),
        ({"coverage": 0.1}, NO_ATTENTION, f"objective.coverage: has no effect .* {WITHOUT_ATTENTION}"),
        (
            {},
            RATIONALE,
            "objective.rationale: must be given for the rationale encoder, whose selection has no gradient",
        ),
        (
            {"rationale": {"sparsity": 0.1}},
            {},
            'objective.rationale: has no effect with the bidirectional encoder, .*; use model.encoder.type = "rational',
        ),
        ({"rationale": {}}, RATIONALE, "objective.rationale.sparsity: must be given"),
        (
            {"rationale": {"sparsity": 0.1}},
            {"model": {"encoder": RATIONALE["model"]["encoder"] | {"reads_end": False}}},
            "model.encoder.reads_end: must be true for the rationale encoder, which may select nothing but the",
        ),
        (
            {"rationale": {"sparsity": 0.1}},
            {"model": RATIONALE["model"] | {"pointer": {"size": 3}}},
            'model.pointer: cannot be combined with model.encoder.type = "rationale"; remove one',
        ),
        (
            {"rationale": {"sparsity": 0.1}, **CROSS_ENTROPY},
            RATIONALE,
            'model.encoder.type = "rationale": cannot be combined with objective.supervision; remove one',
        ),
        ({"rationale": {"sparsity": 0.1}, "contrast": NCE}, RATIONALE, "objective.contrast: .* objective.rationale"),
        (CROSS_ENTROPY, {"data": UNALIGNED}, "objective.supervision: needs word alignments of the training text"),
        (
            CROSS_ENTROPY,
            {"data": {"source": "en", "target": "de", "corpus": "tatoeba-en-de"}},
            r"objective.supervision: needs .*, or a corpus that has them \(bible-grc-en, bible-hbo-en\)",
        ),
        (
            {"supervision": {"type": "cross-entropy", "unaligned": "end"}},
            {"model": {"encoder": {"reads_end": False}}},
            'objective.supervision.unaligned: "end" needs an end token to attend to .model.encoder.reads_end = true',
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
        (
            {"contrast": NCE, "partition": 9},
            {},
            "objective.contrast: cannot be combined with objective.partition; remove one",
        ),
        ({"contrast": NCE, "shortlist": {}}, {}, "objective.shortlist: cannot be combined with objective.contrast"),
        ({"contrast": NCE, "symmetry": 1.0}, {}, "objective.contrast: cannot be combined with objective.symmetry"),
        ({"contrast": NCE, "reinforce": {"baseline": "learned"}}, HARD, "objective.contrast: .* objective.reinforce"),
        ({"contrast": NCE}, {"training": {"label_smoothing": 0.1}}, "objective.contrast: .* training.label_smoothing"),
        (
            {"contrast": NCE},
            HIERARCHICAL,
            'model.output.type = "hierarchical": cannot be combined with objective.contrast; remove one',
        ),
        (
            {"partition": 9},
            HIERARCHICAL,
            'model.output.type = "hierarchical": cannot be combined with objective.partition',
        ),
        (
            {"symmetry": 0.5},
            HIERARCHICAL,
            'model.output.type = "hierarchical": cannot be combined with objective.symmetry',
        ),
        (
            {},
            {"model": {"output": {"type": "adaptive"}}},
            "model.output.cutoffs: must be given for the adaptive output",
        ),
        ({}, adaptive([9, 4]), r"model.output.cutoffs: must be in ascending order; got \[9, 4\]"),
        (
            {},
            adaptive([9, 12], 80.0, "words"),
            "model.output.factor: must leave at least 1 of the readout's 192 units to the last group",
        ),
        ({}, adaptive([9]), 'model.output.type: "adaptive" needs a vocabulary sorted by frequency'),
        ({"symmetry": 0.0}, {}, "objective.symmetry: must be greater than 0"),
        ({"symmetry": -1.0}, {}, "objective.symmetry: must be greater than 0"),
        ({}, {"search": {"candidates": 500}}, "search.candidates: must be less than or equal to 100; got 500"),
    ],
)
def test_single_problems(problems, objective, tables, problem):
    [message] = problems({**BASE, **tables, "objective": objective})
    assert re.match(problem, message)


@pytest.mark.parametrize(
    ("data", "context"),
    [
        (
            {"corpus": "tatoeba-en-de", "source": "en", "target": "de", "dev_size": 0, "test_size": 9},
            "data.corpus, because a listed corpus has its own split",
        ),
        (
            {**UNALIGNED, "dev": "a|b", "test": "a|b", "dev_size": 9, "test_size": 0},
            "data.{split}",
        ),
    ],
)
def test_unused_split_sizes_are_rejected(problems, data, context):
    expected = [
        f"data.{split}_size: has no effect with {context.format(split=split)}; remove it" for split in ("dev", "test")
    ]
    assert problems({"preset": "rnnsearch-small", "data": data}) == expected
    defaults = data | {"dev_size": 1000, "test_size": 1000}  # as in the config of a model folder
    assert problems({"preset": "rnnsearch-small", "data": defaults}) == []


def test_fractional_weights_need_shuffling_in_each_epoch(problems):
    data = {**UNALIGNED, "weights": [2.5]}
    once = "training.batch.shuffle=once"
    assert problems({"preset": "rnnsearch-small", "data": data}, once) == [
        'data.weights: must be whole numbers with training.batch.shuffle = "once", because all epochs then have the '
        "same pairs; got 2.5"
    ]
    assert problems({"preset": "rnnsearch-small", "data": data}) == []
    assert problems({"preset": "rnnsearch-small", "data": {**data, "weights": [2]}}, once) == []


@pytest.mark.parametrize("metric", ["bleu", "aer"])
def test_dev_metrics_need_a_dev_set(problems, metric):
    data = {**BASE["data"], "dev_size": 0}
    assert sorted(problems({**BASE, "data": data}, f"training.metric={metric}")) == [
        f"training.{option}: needs a dev set; give data.dev or data.dev_size"
        for option in ("metric", "patience", "schedule.type")
    ]
