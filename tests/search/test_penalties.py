"""Length norms and the coverage penalty equal the formulas of Wu et al. 2016, and search respects them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.hypothesis import make_hypothesis
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import LENGTH_NORMS, Ranking
from rnnsearch.text.vocabulary import EOS
from rnnsearch.translator.translator import Translator
from tests.untrained import BAHDANAU, untrained

CPU = torch.device("cpu")
PENALTIES = [
    {"length_penalty": 0.7},
    {"length_penalty": 0.6, "length_norm": "gnmt"},
    {"length_penalty": 0.9, "length_norm": "power-with-bos"},
    {"length_penalty": 0.0, "coverage_penalty": 0.4},
    {"length_penalty": 0.8, "length_norm": "gnmt", "coverage_penalty": 0.2},
]


def plain_score(log_prob, attention, length_penalty, length_norm="power", coverage_penalty=0.0):
    """Return s(Y, X) of the paper, by loops over attention [I, J] with EOS last on both axes."""
    length = len(attention)
    norms = {"power": length, "gnmt": (5 + length) / 6, "power-with-bos": length + 1}
    divisor = norms[length_norm] ** length_penalty
    covered = 0.0
    for j in range(attention.shape[1] - 1):
        received = 0.0
        for i in range(length):
            received += attention[i, j]
        covered += np.log(min(received, 1.0))
    return log_prob / divisor + coverage_penalty * covered


@pytest.mark.parametrize("options", PENALTIES, ids=str)
@pytest.mark.parametrize("width", [1, 4])
def test_score_equals_the_papers_equation(toy, sentences, options, width):
    search = SearchOptions(beam=width, n_best=width, **options)
    found = decode_all(toy(seed=3), sentences, search, batch_sentences=4)
    assert any(len(h.ids) > 1 for hypotheses in found for h in hypotheses)
    for hypotheses in found:
        for h in hypotheses:
            assert h.score == pytest.approx(plain_score(h.log_prob, h.attention["source"], **options), rel=1e-5)
        finished = [h.score for h in hypotheses if h.finished]
        assert finished == pytest.approx(sorted(finished, reverse=True), abs=1e-6)


def test_cut_hypotheses_are_ranked_by_coverage(toy):
    options = {"length_penalty": 0.5, "coverage_penalty": 1.0}
    search = SearchOptions(beam=4, n_best=4, max_ratio=0.0, max_extra=2, **options)
    [found] = beam_search(toy(seed=6, end=-40.0), make_sources([[5, 6, 7, 8]], CPU), search)
    cut = [h for h in found if not h.finished]
    assert len(cut) == 4
    scores = [plain_score(h.log_prob, h.attention["source"], **options) for h in cut]
    assert [h.score for h in cut] == pytest.approx(scores, rel=1e-5) == sorted(scores, reverse=True)


@pytest.mark.parametrize("norm", LENGTH_NORMS)
def test_length_norms_do_not_decrease(norm):
    """Early stopping of the beam requires this."""
    lengths = np.arange(1, 50)
    for exponent in (0.0, 0.3, 1.0, 2.0):
        assert (np.diff(LENGTH_NORMS[norm](lengths, exponent)) >= 0).all()
    assert LENGTH_NORMS["gnmt"](1, 0.7) == 1.0


def test_unattended_words_have_a_finite_penalty():
    attention = {"source": np.array([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5]], dtype=np.float32)}
    assert Ranking(coverage_penalty=0.5).coverage(attention) == pytest.approx(0.5 * np.log(1e-6))


def test_coverage_needs_attention(table):
    for search in (beam_search, greedy_search):
        with pytest.raises(RnnsearchError, match="coverage_penalty must be 0 for a model without attention"):
            search(table([[0.0] * 9]), make_sources([[5, 6]], CPU), SearchOptions(coverage_penalty=0.1))


def test_ranking_comes_from_the_models_config():
    """The translator uses the options of `[search]`."""
    own = {"length_penalty": 0.3, "length_norm": "gnmt", "coverage_penalty": 0.2}
    system = untrained(BAHDANAU)
    system.model.eval()
    search = system.config.search.model_copy(update=own)
    translator = Translator(replace(system, config=system.config.model_copy(update={"search": search})))
    assert translator.options().ranking == Ranking(*own.values())
    [found] = translator.n_best(["the dog sees"])
    [scored] = translator.score(["the dog sees"], [found[0].text])
    assert scored.score == pytest.approx(plain_score(scored.log_prob, scored.attention, *own.values()), rel=1e-5)


def test_log_probability_that_overflows_stays_finite(recwarn):
    """A damaged engine file may have enormous finite weights."""
    scores = np.full(3, -3e38, dtype=np.float32)
    hypothesis = make_hypothesis(np.array([5, 6, EOS]), scores, {}, True, Ranking())
    assert hypothesis.log_prob == float(np.finfo(np.float32).min)
    assert np.isfinite(hypothesis.score)
    assert not recwarn.list
