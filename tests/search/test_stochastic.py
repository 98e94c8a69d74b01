"""Stochastic beam search samples without replacement from the model's distribution."""

import math
from collections import Counter
from dataclasses import replace
from itertools import chain, permutations, product

import numpy as np
import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam_search
from rnnsearch.search.constraints import max_lengths
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.forced import force_decode
from rnnsearch.search.hypothesis import SentenceError
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.sampling import random_bits
from rnnsearch.search.stochastic import GumbelTopK, Stochastic, condition_on_max
from rnnsearch.search.topk import ScoredRows
from rnnsearch.text.vocabulary import EOS

CPU = torch.device("cpu")
SYMBOLS, MOST = [1, 4], 2
"""Tokens that a toy scorer of five tokens can write, and their maximum number."""
EVERY = [ids for count in range(MOST + 1) for ids in product(SYMBOLS, repeat=count)]


def probabilities(scorer, source, temperature=1.0):
    """Return the probability of each translation by a loop over conditionals; the longest ones need no EOS."""

    def after(before):
        ended = force_decode(scorer, make_sources([source] * 3, CPU), [(*before, s) for s in SYMBOLS] + [before])
        p = np.exp(np.array([h.token_scores[len(before)] for h in ended]) / temperature)
        return dict(zip([*SYMBOLS, EOS], p / p.sum(), strict=True))

    conditional = {ids: after(ids) for ids in EVERY if len(ids) < MOST}
    found = {}
    for ids in EVERY:
        p = np.prod([conditional[ids[:t]][s] for t, s in enumerate(ids)])
        found[ids] = p * conditional[ids][EOS] if len(ids) < MOST else p
    assert sum(found.values()) == pytest.approx(1)
    return found


def drawn(scorer, source, times, width, seed=1, temperature=1.0):
    """Return `times` independent samples of `width` translations each, ordered by perturbed score."""
    options = SearchOptions(beam=width, n_best=width, max_ratio=0.0, max_extra=MOST, compact_at=0.0)
    sources = make_sources([source] * times, CPU)
    judge = GumbelTopK(random_bits(np.array([seed], np.uint64), times)[0], max_lengths(sources, options), temperature)
    return [[h.ids for h in own] for own in beam_search(scorer, sources, options, None, judge)]


def chi_square(counts, expected, total):
    often = [key for key, p in expected.items() if p * total >= 5]
    square = sum((counts[key] - total * expected[key]) ** 2 / (total * expected[key]) for key in often)
    # Chi-square has its degrees of freedom as mean and twice as many as variance.
    assert square < len(often) + 4 * np.sqrt(2 * len(often)), square
    assert all(expected[key] > 0 for key in counts)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize(("width", "temperature"), [(1, 1.0), (2, 2.5), (3, 1.0)])
def test_first_samples_follow_the_model_distribution(toy, width, temperature):
    """Chi-square test; without replacement, the first two samples have probability p(a) p(b) / (1 - p(a))."""
    scorer, times = toy(symbols=5, seed=3), 3000
    p = probabilities(scorer, [4, 5], temperature)
    found = drawn(scorer, [4, 5], times, width, temperature=temperature)
    assert all(len(own) == len(set(own)) == width for own in found)
    chi_square(Counter(own[0] for own in found), p, times)
    if width > 1:
        pairs = {(a, b): p[a] * p[b] / (1 - p[a]) for a, b in permutations(EVERY, 2)}
        assert sum(pairs.values()) == pytest.approx(1)
        chi_square(Counter(tuple(own[:2]) for own in found), pairs, times)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("width", [len(EVERY), len(EVERY) + 4])
def test_full_beam_finds_all_translations(toy, width):
    options = SearchOptions(beam=width, n_best=width, max_ratio=0.0, max_extra=MOST, variant=Stochastic())
    [found] = decode_all(toy(symbols=5, seed=2), [[6, 7]], options)
    assert sorted(h.ids for h in found) == sorted(EVERY)


def test_samples_are_distinct_and_depend_on_the_seed(toy, sentences):
    scorer, options = toy(seed=4), SearchOptions(beam=6, n_best=6, max_ratio=0.0, max_extra=5, variant=Stochastic(3.0))
    found = decode_all(scorer, sentences, options)
    for source, own in zip(sentences, found, strict=True):
        assert len({h.ids for h in own}) == len(own) == 6
        assert [h.finished for h in own] == sorted((h.finished for h in own), reverse=True)
        again = force_decode(scorer, make_sources([source] * 6, CPU), [h.ids for h in own])
        for h, scored in zip(own, again, strict=True):
            assert h.token_scores == pytest.approx(scored.token_scores[: len(h.token_scores)], abs=1e-5)
    alone = [decode_all(scorer, [one], options)[0] for one in reversed(sentences)]
    assert [[h.ids for h in own] for own in found] == [[h.ids for h in own] for own in reversed(alone)]
    other = decode_all(scorer, sentences, replace(options, variant=Stochastic(3.0, seed=2)))
    assert [[h.ids for h in own] for own in found] != [[h.ids for h in own] for own in other]
    assert any(not h.finished for own in found for h in own), "truncated translations are also sampled"


def test_constraints_apply_before_sampling(toy, sentences):
    prefix = tuple((5, 6) for _ in sentences)
    options = SearchOptions(beam=4, n_best=4, banned=frozenset({7}), no_repeat_ngram=1, prefix=prefix, min_length=4)
    found = decode_all(toy(seed=1), sentences, replace(options, variant=Stochastic(2.0)))
    for h in chain.from_iterable(found):
        assert h.ids[:2] == (5, 6)
        assert 7 not in h.ids
        assert len(h.ids) >= 4
        assert len(h.ids) == len(set(h.ids))


def test_candidate_list_and_beam_of_one(toy, sentences):
    chosen = torch.tensor([EOS, 4, 6])
    for own in decode_all(
        toy(seed=3), sentences, SearchOptions(beam=2, variant=Stochastic()), candidates=lambda _: chosen
    ):
        assert set(own[0].ids) <= {4, 6}
    cold = SearchOptions(beam=1, variant=Stochastic(1e-4))
    greedy = decode_all(toy(seed=3), sentences, SearchOptions(beam=1))
    assert [own[0].ids for own in decode_all(toy(seed=3), sentences, cold)] == [own[0].ids for own in greedy]


def test_truncated_gumbel_noise_equals_its_definition():
    """The result equals the formula, and is accurate in ranges where the formula has no precision left."""
    random = np.random.default_rng(5)
    noisy = np.sort(random.gumbel(size=(2, 3, 4)) + random.normal(size=(2, 3, 4)))[:, :, ::-1].copy()
    worth = random.normal(size=(2, 3))
    top, own = noisy[:, :, :1], worth[:, :, None]
    with np.errstate(divide="ignore"):
        plain = -np.log(np.exp(-own) - np.exp(-top) + np.exp(-noisy))
    found = condition_on_max(torch.from_numpy(noisy), torch.from_numpy(worth)).numpy()
    np.testing.assert_allclose(found, plain, atol=1e-9)
    far = condition_on_max(torch.tensor([[[-800.0, -801.0, -900.0]]]).double(), torch.tensor([[-750.0]]).double())
    assert far[0, 0, 0] == -750.0
    assert far.isfinite().all() and (far[0, 0, 1:] < -750.0).all()


@pytest.mark.usefixtures("block")
def test_forbidden_continuations_have_score_minus_infinity(toy):
    judge = GumbelTopK(np.array([1], np.uint64), np.array([9]), 1.0)
    scores = torch.tensor([[[0.0, -torch.inf, -1.0], [-torch.inf] * 3, [0.0, 0.0, 0.0]]])
    worth = torch.tensor([[0.0, -1.0, -torch.inf]])
    found = judge.select(scores, worth, torch.zeros(1, 3), 9, ScoredRows(2, torch.tensor([0]), 3))
    assert {*found.indices[0].tolist()} <= {*range(9)}
    assert sorted(found.indices[0, :2].tolist()) == [0, 2]
    assert found.total[0, 0] == 0.0
    assert (found.total[0, 2:] == -torch.inf).all()
    with pytest.raises(SentenceError, match="must be numbers; got NaN"):
        decode_all(toy(nan=(5, 2)), [[5, 6]], SearchOptions(beam=2, variant=Stochastic()))
    scores[0, 0, 2] = torch.nan
    assert judge.select(scores, worth, torch.zeros(1, 3), 4, ScoredRows(2, torch.tensor([0]), 3)).total[0, 0].isnan()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stochastic(temperature=0.0), "temperature must be above 0 and finite; got 0.0"),
        (lambda: Stochastic(temperature=math.inf), "temperature must be above 0 and finite; got inf"),
        (lambda: Stochastic(seed=-1), "seed must be at least 0; got -1"),
    ],
)
def test_invalid_option_is_rejected(make, message):
    with pytest.raises(RnnsearchError, match=message):
        make()
