"""Which objectives fit which models and data, and every message where they do not; each that fits trains."""

from __future__ import annotations

import pytest
import torch

from rnnsearch import config as run_config
from rnnsearch.errors import ConfigError, TrainingError
from rnnsearch.systems.folder import load_model
from rnnsearch.training.run import check

NO_ATTENTION = {
    "model": {
        "encoder": {"type": "unidirectional", "cell": "gru", "size": 6},
        "decoder": {"type": "rnnencdec", "cell": "gru", "size": 9, "maxout": 5},
    }
}
HARD = {"model": {"attention": {"normaliser": "hard"}}}
FITTING = {
    "doubly stochastic": ({"doubly_stochastic": 0.1}, {}),
    "fertility": ({"fertility": {"size": 4, "weight": 0.2}}, {}),
    "cross-entropy": ({"supervision": {"type": "cross-entropy"}}, {}),
    "squared error": ({"supervision": {"type": "squared-error", "weight": 2.0, "unaligned": "end"}}, {}),
    "read words": (
        {"supervision": {"type": "cross-entropy", "word": "read"}},
        {"model": {"decoder": {"type": "cgru", "cell": "gru", "size": 9, "readout": 5}}},
    ),
    "average baseline": ({"reinforce": {"baseline": "average", "decay": 0.9, "entropy": 0.01}}, HARD),
    "learned baseline": ({"reinforce": {"baseline": "learned"}}, HARD),
    "symmetry with all": (
        {
            "symmetry": 0.3,
            "doubly_stochastic": 0.1,
            "fertility": {"size": 4},
            "supervision": {"type": "cross-entropy"},
        },
        {},
    ),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", FITTING)
def test_every_fitting_objective_trains_and_is_read_back(trainable, tmp_path, case, precision):
    objective, tables = FITTING[case]
    config, prepared, reporter, train = trainable(objective, tables, max_updates=5, precision=precision)
    assert check(config) == []
    train(config, prepared, tmp_path / "run", reporter)
    assert len(reporter.updates) == 5
    loaded = load_model(tmp_path / "run")
    assert loaded.config.objective == config.objective
    assert (loaded.model.auxiliary is None) == ("fertility" not in objective and "reinforce" not in objective)


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


def test_data_prepared_without_links_are_refused(trainable, tmp_path, monkeypatch):
    config, prepared, reporter, train = trainable({"supervision": {"type": "cross-entropy"}}, max_updates=1)
    monkeypatch.setattr(prepared.train, "links", None)
    with pytest.raises(TrainingError, match="has no word alignments to supervise attention with; prepare it again"):
        train(config, prepared, tmp_path / "run", reporter)


def test_another_objective_is_another_run(trainable, tmp_path):
    config, prepared, reporter, train = trainable({"doubly_stochastic": 0.1}, max_updates=1)
    train(config, prepared, tmp_path / "run", reporter)
    other, *_ = trainable({"doubly_stochastic": 0.2}, max_updates=2)
    with pytest.raises(TrainingError, match=r"differs from this config in objective\.doubly_stochastic"):
        train(other, prepared, tmp_path / "run", reporter, resume=True)


def test_a_resumed_average_baseline_is_the_same(trainable, tmp_path):
    objective = FITTING["average baseline"][0]
    for name, ends in (("whole", [6]), ("parts", [3, 6])):
        for end in ends:
            config, prepared, reporter, train = trainable(objective, HARD, max_updates=end, evaluate_every=3)
            train(config, prepared, tmp_path / name, reporter, resume=True)
    one, two = (load_model(tmp_path / name).model for name in ("whole", "parts"))
    assert torch.equal(one.auxiliary.baseline.value, two.auxiliary.baseline.value)
    for (name, a), (_, b) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        assert torch.equal(a, b), name
