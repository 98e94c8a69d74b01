"""`training.metric = "aer"`: the dev set's alignment error rate decides which weights are the best."""

import pytest

from rnnsearch.config import merge
from rnnsearch.metrics.alignment_error import alignment_error
from rnnsearch.systems.dev_scores import DevScore
from rnnsearch.systems.dev_set import AlignmentErrorRate
from rnnsearch.text.alignments import parse_pharaoh
from rnnsearch.training.run import check
from rnnsearch.translator.loading import load
from tests.training.toys import ALIGNED


def test_the_best_weights_are_those_of_the_lowest_error(learn, aligned, monkeypatch):
    errors = [0.5, 0.3, 0.4, 0.2]
    given = iter(errors)
    monkeypatch.setattr(AlignmentErrorRate, "__call__", lambda *_: next(given))
    tables = merge(ALIGNED, {"objective": {"supervision": {"type": "cross-entropy"}}})
    told = learn(tables=tables, data=aligned, max_updates=8, evaluate_every=2, metric="aer")
    assert [row["dev_aer"] for row in told.evaluations] == errors
    assert [row["best"] for row in told.evaluations] == [True, True, False, True]


def test_the_error_is_that_of_align(learn, aligned, tmp_path):
    """What the loop measures is what `rnnsearch align` would give."""
    told = learn(tables=ALIGNED, data=aligned, max_updates=3, metric="aer")
    found = load(tmp_path / "run").score([p.source for p in aligned.dev], [p.target for p in aligned.dev], "attention")
    expected = alignment_error([set(t.alignment) for t in found], aligned.links("dev") or []).aer
    assert told.evaluations[-1]["dev_aer"] == pytest.approx(expected)


def test_what_lacks_alignments_is_refused(configure):
    config = configure({}, max_updates=1, metric="aer")
    assert 'training.metric: "aer" needs word alignments of the dev set: give data.dev_alignments' in check(config)


def test_values_are_the_less_the_better():
    score = DevScore(40.0, 2.0, {"bleu": 30.0, "aer": 0.25})
    assert [score.cost(metric) for metric in ("nll", "bleu", "aer")] == [40.0, -30.0, 0.25]


def test_links_turn():
    assert parse_pharaoh("0-2 1p3", "x").turned() == parse_pharaoh("2-0 3p1", "x")
