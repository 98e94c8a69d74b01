"""`training.metric = "aer"`: the alignment error rate on the dev set determines the best weights."""

import pytest

from rnnsearch.config import merge
from rnnsearch.metrics.alignment_error import alignment_error
from rnnsearch.systems.dev_scores import DevScore
from rnnsearch.systems.dev_set import AlignmentErrorRate
from rnnsearch.text.alignments import parse_pharaoh
from rnnsearch.training.run import check
from rnnsearch.translator.loading import load
from tests.training.toys import ALIGNED


def test_best_weights_have_lowest_alignment_error(learn, aligned, monkeypatch):
    errors = [0.5, 0.3, 0.4, 0.2]
    remaining = iter(errors)
    monkeypatch.setattr(AlignmentErrorRate, "__call__", lambda *_: next(remaining))
    tables = merge(ALIGNED, {"objective": {"supervision": {"type": "cross-entropy"}}})
    recorder = learn(tables=tables, data=aligned, max_updates=8, evaluate_every=2, metric="aer")
    assert [row["dev_aer"] for row in recorder.evaluations] == errors
    assert [row["best"] for row in recorder.evaluations] == [True, True, False, True]


def test_dev_alignment_error_equals_that_of_align(learn, aligned, tmp_path):
    recorder = learn(tables=ALIGNED, data=aligned, max_updates=3, metric="aer")
    pairs = load(tmp_path / "run").score([p.source for p in aligned.dev], [p.target for p in aligned.dev], "attention")
    expected = alignment_error([set(t.alignment) for t in pairs], aligned.links("dev") or []).aer
    assert recorder.evaluations[-1]["dev_aer"] == pytest.approx(expected)


def test_alignment_metric_needs_dev_alignments(configure):
    config = configure({}, max_updates=1, metric="aer")
    assert 'training.metric: "aer" needs word alignments of the dev set: give data.dev_alignments' in check(config)


def test_cost_is_lower_for_better_scores():
    score = DevScore(40.0, 2.0, {"bleu": 30.0, "aer": 0.25})
    assert [score.cost(metric) for metric in ("nll", "bleu", "aer")] == [40.0, -30.0, 0.25]


def test_links_are_reversed():
    assert parse_pharaoh("0-2 1p3", "x").reversed() == parse_pharaoh("2-0 3p1", "x")
