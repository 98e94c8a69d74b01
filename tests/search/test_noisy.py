"""Noisy chains add noise to hidden states of the decoder and return the translation that scores best without it."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from rnnsearch.errors import RnnsearchError
from rnnsearch.models.attention.attention import AttentionState
from rnnsearch.models.decoders.decoder import map_hidden
from rnnsearch.models.memory import Hidden, HiddenAndCell
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.ensemble import EnsembleMember, EnsembleScorer, WeightedScorer, WeightedSumScorer
from rnnsearch.search.forced import force_decode
from rnnsearch.search.noisy import Noisy, NoisyScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.sampling import normal
from rnnsearch.search.scorer import SOURCE
from rnnsearch.text.vocabulary import BOS, EOS

CPU = torch.device("cpu")
OPTIONS = SearchOptions(beam=6, n_best=6, length_penalty=0.0, max_ratio=0.0, max_extra=9)


@pytest.fixture
def noisy_toy(toy):
    """Return a toy scorer whose hidden state is accessible."""

    class Open(type(toy())):
        def map_hidden(self, state, function):
            return state._replace(h=function(state.h))

    return Open


@pytest.mark.parametrize("width", [1, 3])
def test_zero_noise_equals_the_search(noisy_toy, sentences, width):
    scorer = noisy_toy(seed=3, end=1.0)
    plain = decode_all(scorer, sentences, replace(OPTIONS, beam=width, n_best=width))
    quiet = replace(OPTIONS, beam=4 * width, n_best=4 * width, variant=Noisy(4, 0.0))
    for own, found in zip(plain, decode_all(scorer, sentences, quiet), strict=True):
        assert [h.ids for h in found] == [h.ids for h in own]
        assert [h.log_prob for h in found] == pytest.approx([h.log_prob for h in own], abs=1e-5)


@pytest.mark.parametrize("width", [1, 2])
def test_noisy_search_never_scores_below_the_search(noisy_toy, sentences, width):
    better = 0
    for seed in range(5):
        scorer = noisy_toy(seed=seed, end=1.0)
        plain = decode_all(scorer, sentences, replace(OPTIONS, beam=width, n_best=1))
        found = decode_all(scorer, sentences, replace(OPTIONS, beam=8 * width, n_best=1, variant=Noisy(8, 2.0)))
        for [own], [best], source in zip(plain, found, sentences, strict=True):
            assert best.score >= own.score - 1e-5
            better += best.score > own.score + 1e-3
            [again] = force_decode(scorer, make_sources([source], CPU), [best.ids], OPTIONS.ranking)
            assert best.token_scores == pytest.approx(again.token_scores[: len(best.token_scores)], abs=1e-5)
    assert better > 1, "a narrow search with large weights should be improvable"


def test_chains_equal_a_loop_with_noisy_states(noisy_toy, sentences):
    """h_t = phi(h_{t-1} + e_t, y_{t-1}), where e_t has standard deviation sigma / t and the same random numbers."""
    scorer, sigma = noisy_toy(seed=7, end=0.5), 1.5
    sources = make_sources(sentences[:2], CPU)
    keys = np.array([7, 8], np.uint64)
    noisy = NoisyScorer(scorer, sigma, keys, np.array([False, True]))
    memory, state = noisy.start(sources, None)
    plain_memory, plain = scorer.start(sources, None)
    y = torch.tensor([BOS, BOS])
    for position in range(1, 5):
        step = noisy.step(memory, state, y)
        noise = normal(keys[1:], plain.h.shape[1], position, 0)
        h = plain.h.clone()
        h[1:] += sigma / position * torch.from_numpy(noise)
        expected = scorer.step(plain_memory, plain._replace(h=h), y)
        torch.testing.assert_close(step.scores, expected.scores)
        state, plain, y = step.state, expected.state, expected.scores.argmax(1)


def test_noise_depends_only_on_source_chain_and_seed(noisy_toy, sentences):
    scorer, options = noisy_toy(seed=4), replace(OPTIONS, beam=10, n_best=10, variant=Noisy(5, 2.0))
    together = decode_all(scorer, sentences, options)
    alone = [decode_all(scorer, [one], options)[0] for one in reversed(sentences)]
    assert [[h.ids for h in own] for own in together] == [[h.ids for h in own] for own in reversed(alone)]
    assert decode_all(scorer, sentences, options) == together
    other = decode_all(scorer, sentences, replace(options, variant=Noisy(5, 2.0, seed=2)))
    assert [[h.ids for h in own] for own in together] != [[h.ids for h in own] for own in other]
    assert any(len(own) > 2 for own in together)


def test_all_constraints_hold(noisy_toy, sentences):
    prefix = tuple((5, 6) for _ in sentences)
    options = replace(OPTIONS, banned=frozenset({7}), no_repeat_ngram=1, prefix=prefix, variant=Noisy(3, 3.0))
    for own in decode_all(noisy_toy(seed=1), sentences, options):
        for h in own:
            assert h.ids[:2] == (5, 6)
            assert 7 not in h.ids
            assert len(h.ids) == len(set(h.ids))


def test_scores_are_over_the_candidate_list(noisy_toy, sentences):
    chosen = torch.tensor([EOS, 4, 6])
    options = replace(OPTIONS, variant=Noisy(2, 0.0))
    plain = decode_all(noisy_toy(seed=3), sentences, replace(OPTIONS, beam=3, n_best=3), candidates=lambda _: chosen)
    found = decode_all(noisy_toy(seed=3), sentences, options, candidates=lambda _: chosen)
    assert [[h.ids for h in own] for own in found] == [[h.ids for h in own] for own in plain]


class _State(NamedTuple):
    cells: tuple[Hidden, HiddenAndCell]
    seen: Tensor
    attention: AttentionState
    nothing: None = None


def test_hidden_states_are_those_of_the_cells():
    one = torch.ones(2, 3)
    attention = AttentionState(features=(Hidden(3 * one),))
    state = _State((Hidden(one), HiddenAndCell(2 * one, 5 * one)), 7 * one, attention)
    found = map_hidden(lambda h: h + 10, state)
    assert found.cells[0].h.unique().tolist() == [11.0]
    assert (found.cells[1].h.unique().tolist(), found.cells[1].c.unique().tolist()) == ([12.0], [5.0])
    assert found.seen.unique().tolist() == [7.0]
    assert found.attention is attention, "the attention state is not a hidden state"
    assert state.cells[0].h.unique().tolist() == [1.0]


def test_each_ensemble_member_gets_noise(noisy_toy, sentences):
    own = {SOURCE: SOURCE}
    one, other = noisy_toy(seed=1), noisy_toy(seed=2)
    several = [
        EnsembleScorer([EnsembleMember(one, 1.0, own), EnsembleMember(other, 1.0, own)]),
        WeightedSumScorer([WeightedScorer(one), WeightedScorer(other)]),
    ]
    for scorer in several:
        _, state = scorer.start(make_sources(sentences, CPU), None)
        changed = scorer.map_hidden(state, lambda h: h + 1)
        parts = (changed.members, state.members) if isinstance(scorer, EnsembleScorer) else (changed.full, state.full)
        for after, before in zip(*parts, strict=True):
            assert torch.equal(after.h, before.h + 1)
        assert decode_all(scorer, sentences, replace(OPTIONS, variant=Noisy(3, 1.0)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Noisy(0), "chains must be at least 1; got 0"),
        (lambda: Noisy(2, -1.0), "sigma must be at least 0; got -1.0"),
        (lambda: Noisy(2, seed=-1), "seed must be at least 0; got -1"),
        (
            lambda: SearchOptions(beam=5, variant=Noisy(2)),
            r"beam must be divisible by the number of chains \(2\); got 5",
        ),
    ],
)
def test_invalid_option_is_rejected(make, message):
    with pytest.raises(RnnsearchError, match=message):
        make()


def test_scorer_without_hidden_states_is_rejected(toy, noisy_toy, sentences):
    with pytest.raises(RnnsearchError, match="noise needs the scorer of a recurrent model; got ToyScorer"):
        decode_all(toy(), sentences, replace(OPTIONS, variant=Noisy(2)))

    class Nothing(noisy_toy):
        def map_hidden(self, state, function):
            return state

    with pytest.raises(RnnsearchError, match="need a decoder with a recurrent cell; this one has none"):
        decode_all(Nothing(), sentences, replace(OPTIONS, variant=Noisy(2)))
