"""The mean of several distributions equals a NumPy loop and is normalised; one member equals its model."""

import numpy as np
import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam_search
from rnnsearch.search.decode import make_sources
from rnnsearch.search.ensemble import EnsembleMember, EnsembleScorer
from rnnsearch.search.forced import force_decode
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.scorer import SOURCE
from rnnsearch.text.vocabulary import BOS, EOS

CPU = torch.device("cpu")
OWN = {SOURCE: SOURCE}


def members(toy, weights):
    return [EnsembleMember(toy(seed=seed, symbols=8), weight, OWN) for seed, weight in enumerate(weights)]


def plain(each, weights, mean):
    """Return the mean of log-probabilities [M, C] of one row."""
    w = np.array(weights) / np.sum(weights)
    if mean == "arithmetic":
        return np.log(sum(share * np.exp(row) for share, row in zip(w, each, strict=True)))
    product = np.prod([np.exp(row) ** share for share, row in zip(w, each, strict=True)], axis=0)
    return np.log(product / product.sum())


@pytest.mark.parametrize("mean", ["geometric", "arithmetic"])
@pytest.mark.parametrize("columns", [None, [EOS, 7, 4]])
def test_ensemble_equals_the_loop_over_members(toy, sentences, mean, columns):
    weights, sources = [1.0, 0.5, 2.5], make_sources(sentences, CPU)
    columns = None if columns is None else torch.tensor(columns)
    one = EnsembleScorer(members(toy, weights), mean)
    each = [toy(seed=seed, symbols=8) for seed in range(3)]
    memory, state = one.start(sources, columns)
    started = [scorer.start(sources, columns) for scorer in each]
    states = [state for _, state in started]
    y = torch.full((len(sentences),), BOS)
    for _ in range(3):
        step = one.step(memory, state, y)
        steps = [s.step(m, own, y) for s, (m, _), own in zip(each, started, states, strict=True)]
        logs = np.stack([s.log_probs().double().numpy() for s in steps])
        expected = np.stack([plain(logs[:, row], weights, mean) for row in range(len(sentences))])
        np.testing.assert_allclose(step.log_probs().numpy(), expected, atol=2e-5)
        if columns is None or mean == "geometric":  # each toy is normalised over its whole vocabulary
            np.testing.assert_allclose(step.log_probs().exp().sum(1).numpy(), 1.0, atol=1e-5)
        attention = np.mean([s.attention[SOURCE].numpy() for s in steps], axis=0)
        np.testing.assert_allclose(step.attention[SOURCE].numpy(), attention, atol=1e-6)
        state, states = step.state, [s.state for s in steps]
        y = torch.full_like(y, 5)


@pytest.mark.parametrize("mean", ["geometric", "arithmetic"])
def test_ensemble_of_equal_members_equals_the_model(toy, sentences, mean):
    sources, options = make_sources(sentences, CPU), SearchOptions(beam=3, n_best=3, coverage_penalty=0.2)
    expected = beam_search(toy(seed=3), sources, options)
    for weights in ([2.0], [1.0, 3.0]):
        same = EnsembleScorer([EnsembleMember(toy(seed=3), weight, OWN) for weight in weights], mean)
        found = beam_search(same, sources, options)
        assert [[h.ids for h in own] for own in found] == [[h.ids for h in own] for own in expected]
        for one, other in zip(found, expected, strict=True):
            assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-5)


@pytest.mark.parametrize("mean", ["geometric", "arithmetic"])
def test_beam_score_equals_forced_score(toy, sentences, mean):
    sources, ensemble = make_sources(sentences, CPU), EnsembleScorer(members(toy, [1.0, 2.0]), mean)
    found = [own[0] for own in beam_search(ensemble, sources, SearchOptions(beam=4))]
    again = force_decode(ensemble, sources, [h.ids for h in found])
    for h, scored in zip(found, again, strict=True):
        assert h.token_scores == pytest.approx(scored.token_scores[: len(h.token_scores)], abs=1e-5)


def test_geometric_mean_needs_all_members_and_arithmetic_one(toy, sentences):
    """If one member forbids a token, the geometric mean forbids it and the arithmetic mean halves it."""

    class Never(type(toy())):
        def step(self, memory, state, y):
            step = super().step(memory, state, y)
            step.scores[:, 5] = -torch.inf
            return step._replace(scores=step.log_probs().log_softmax(1), norm=None)

    sources = make_sources(sentences, CPU)
    both = [EnsembleMember(toy(seed=1), 1.0, OWN), EnsembleMember(Never(seed=1), 1.0, OWN)]
    y = torch.full((len(sentences),), BOS)
    alone = toy(seed=1)
    own = alone.step(*alone.start(sources, None), y).log_probs()
    for mean, expected in (
        ("geometric", torch.full_like(own[:, 5], -torch.inf)),
        ("arithmetic", own[:, 5] - np.log(2)),
    ):
        ensemble = EnsembleScorer(both, mean)
        torch.testing.assert_close(ensemble.step(*ensemble.start(sources, None), y).log_probs()[:, 5], expected)


def test_incompatible_members_are_rejected(toy):
    with pytest.raises(RnnsearchError, match=r"must share one target vocabulary; got sizes \[8, 9\]"):
        EnsembleScorer([EnsembleMember(toy(symbols=8), 1.0, OWN), EnsembleMember(toy(symbols=9), 1.0, OWN)])
    with pytest.raises(RnnsearchError, match=r"must share one target vocabulary; got sizes \[\]"):
        EnsembleScorer([])
    for weight in (0.0, -1.0, 1e-300, 1e308, float("nan"), float("inf")):
        with pytest.raises(RnnsearchError, match="weights must be above 0"):
            EnsembleScorer([EnsembleMember(toy(), weight, OWN)])
    with pytest.raises(RnnsearchError, match='mean must be one of geometric, arithmetic; got "harmonic"'):
        EnsembleScorer([EnsembleMember(toy(), 1.0, OWN)], "harmonic")
