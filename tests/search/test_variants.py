"""Sampling follows the model's distribution, and diverse beam groups equal a loop over lists."""

import math
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam_search
from rnnsearch.search.decode import decode_all, make_sources, search_variant
from rnnsearch.search.forced import force_decode
from rnnsearch.search.hypothesis import SentenceError
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.sampling import FIRST_NUCLEUS_COLUMNS, Diverse, Sampling
from rnnsearch.text.vocabulary import BOS, EOS, PAD

CPU = torch.device("cpu")
SYMBOLS, MOST = [1, 4, 5], 3
"""Tokens that a toy scorer of six tokens can write, and their maximum number."""


def sampled(scorer, sentences, chains, variant, **options):
    options = SearchOptions(beam=chains, n_best=chains, max_ratio=0.0, max_extra=MOST, variant=variant, **options)
    return decode_all(scorer, sentences, options)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 2, 1.0), (1.0, 0, 0.6), (2.0, 3, 0.7)]
)
def test_sample_frequencies_follow_the_model(toy, temperature, top_k, top_p):
    """Chi-square test over all translations, with probabilities from a loop over the model's conditionals."""
    scorer, chains, source = toy(symbols=6, seed=3), 4000, [4, 5]
    allowed = [*SYMBOLS, EOS]

    def cut(before):
        """Return the sampling probability of each allowed token after `before`."""
        ended = [force_decode(scorer, make_sources([source], CPU), [(*before, s)])[0] for s in SYMBOLS]
        logs = [h.token_scores[len(before)] for h in ended]
        stop = force_decode(scorer, make_sources([source], CPU), [before])[0].token_scores[-1]
        p = np.exp(np.array([*logs, stop]) / temperature)
        order = np.argsort(-p)
        if top_k:
            p[order[top_k:]] = 0
        p /= p.sum()
        if top_p < 1:
            before_it = np.cumsum(p[order]) - p[order]
            p[order[before_it >= top_p]] = 0
        return dict(zip(allowed, p / p.sum(), strict=True))

    conditionals = {b: cut(b) for count in range(MOST) for b in product(SYMBOLS, repeat=count)}
    expected = {}
    for count in range(MOST + 1):
        for ids in product(SYMBOLS, repeat=count):
            p = np.prod([conditionals[ids[:t]][s] for t, s in enumerate(ids)])
            if count < MOST:
                p *= conditionals[ids][EOS]
            expected[ids] = p
    assert sum(expected.values()) == pytest.approx(1)
    [found] = sampled(scorer, [source], chains, Sampling(temperature, top_k, top_p))
    counts = Counter(h.ids for h in found)
    assert sum(counts.values()) == chains
    assert all(expected[ids] > 0 for ids in counts)
    often = [ids for ids, p in expected.items() if p * chains >= 5]
    square = sum((counts[ids] - chains * expected[ids]) ** 2 / (chains * expected[ids]) for ids in often)
    # Chi-square has its degrees of freedom as mean and twice as many as variance.
    assert square < len(often) + 4 * np.sqrt(2 * len(often))


def test_nucleus_within_a_block_equals_the_full_nucleus():
    """The rows range from peaked ones, with a nucleus of one token, to flat ones with hundreds."""
    random = np.random.default_rng(5)
    scores = random.normal(size=(200, 400)) * np.linspace(6, 0.1, 200)[:, None]
    numbers, expected, sizes = random.random(200), [], []
    for row, number in zip(scores / 0.8, numbers, strict=True):
        p = np.exp(row - np.logaddexp.reduce(row))
        order = np.argsort(-p)
        before = np.cumsum(p[order]) - p[order]
        some = order[before < 0.9]
        shares = np.cumsum(p[some]) / p[some].sum()
        sizes.append(len(some))
        expected.append(int(some[np.searchsorted(shares, number, "right")]))
    for n, column in ((3, 7), (120, 250)):  # NaN is sampled, so that the search detects it
        scores[n, column], expected[n] = np.nan, column
    drawn = Sampling(0.8, top_p=0.9).draw(torch.from_numpy(scores), torch.from_numpy(numbers))
    assert drawn.tolist() == expected
    assert min(sizes) == 1 and max(sizes) > FIRST_NUCLEUS_COLUMNS


def test_samples_have_model_scores(toy, sentences):
    scorer = toy(seed=2)
    for source, found in zip(sentences, sampled(scorer, sentences, 4, Sampling(3.0, 5)), strict=True):
        assert len(found) == 4
        assert [h.score for h in found if h.finished] == sorted((h.score for h in found if h.finished), reverse=True)
        again = force_decode(scorer, make_sources([source] * 4, CPU), [h.ids for h in found])
        for h, scored in zip(found, again, strict=True):
            assert h.token_scores == pytest.approx(scored.token_scores[: len(h.token_scores)], abs=1e-5)


def test_samples_depend_only_on_source_and_seed(toy, sentences):
    scorer, variant = toy(seed=4), Sampling(2.0)
    together = sampled(scorer, sentences, 3, variant)
    alone = [sampled(scorer, [sentence], 3, variant)[0] for sentence in reversed(sentences)]
    assert [[h.ids for h in own] for own in together] == [[h.ids for h in own] for own in reversed(alone)]
    other = sampled(scorer, sentences, 3, replace(variant, seed=2))
    assert [[h.ids for h in own] for own in together] != [[h.ids for h in own] for own in other]
    first = sampled(scorer, sentences, 1, variant)
    assert all(one.ids in [h.ids for h in own] for [one], own in zip(first, together, strict=True))


def test_low_temperature_sample_equals_greedy_search(toy, sentences):
    options = SearchOptions(beam=1)
    greedy = decode_all(toy(seed=6), sentences, options)
    cold = decode_all(toy(seed=6), sentences, replace(options, variant=Sampling(temperature=1e-4)))
    one = decode_all(toy(seed=6), sentences, replace(options, variant=Sampling(top_k=1)))
    assert [[h.ids for h in own] for own in greedy] == [[h.ids for h in own] for own in cold]
    assert [[h.ids for h in own] for own in greedy] == [[h.ids for h in own] for own in one]


@pytest.mark.usefixtures("block")
def test_sampling_inverts_the_cumulative_distribution():
    scores = torch.tensor([[0.5, 0.0, 0.25, 0.25, 0.0]]).log() + 7.0
    numbers = [0.0, 0.499, 0.501, 0.749, 0.751, np.nextafter(1, 0)]
    for number, column in zip(numbers, [0, 0, 2, 2, 3, 3], strict=True):
        assert Sampling().draw(scores, torch.tensor([number], dtype=torch.float64)).tolist() == [column]
    for place in range(5):
        wrong = scores.clone()
        wrong[0, place] = torch.nan
        assert Sampling().draw(wrong, torch.zeros(1, dtype=torch.float64)).tolist() == [place]
    nothing = torch.full((2, 5), -torch.inf)
    assert (Sampling().draw(nothing, torch.tensor([0.0, 0.9]).double()) < 5).all()


def test_sampling_keeps_prefixes_and_bans(toy, sentences):
    prefix = tuple((5, 5) for _ in sentences)
    found = sampled(toy(seed=1), sentences, 3, Sampling(5.0), prefix=prefix, banned=frozenset({7}))
    for own in found:
        for h in own:
            assert h.ids[:2] == (5, 5)
            assert 7 not in h.ids


def plain_diverse(scorer, source, groups, width, strength, most):
    """Return (log p, tokens) of each group's live and finished hypotheses (Vijayakumar et al. 2018, algorithm 1)."""
    live, done = [[(0.0, ())] for _ in range(groups)], [[] for _ in range(groups)]
    for step in range(1, most + 2):
        taken = Counter()
        for g in range(groups):
            if not live[g] or len(done[g]) >= width:
                continue
            every, symbols = [], [s for s in range(scorer.vocabulary) if s not in (PAD, BOS)]
            for total, ids in live[g]:
                memory, state = scorer.start(make_sources([source], CPU), None)
                for y in (BOS, *ids):
                    one = scorer.step(memory, state, torch.tensor([y]))
                    state = one.state
                logs = one.log_probs()[0].tolist()
                every += [(total + logs[s] - strength * taken[s], total + logs[s], (*ids, s)) for s in symbols]
            every.sort(key=lambda row: -row[0])
            looked = every[: 2 * width] if width > 1 else every[:1]
            taken.update(ids[-1] for _, _, ids in looked[:width])
            done[g] += [(total, ids[:-1]) for _, total, ids in looked[:width] if ids[-1] == EOS]
            live[g] = [(total, ids) for _, total, ids in looked if ids[-1] != EOS][:width]
            if (width == 1 and done[g]) or step > most:
                live[g] = []
    return done


@pytest.mark.parametrize(("groups", "width"), [(2, 2), (3, 1), (4, 3)])
def test_diverse_groups_equal_a_loop(toy, sentences, groups, width):
    scorer, strength, most = toy(symbols=12, seed=9, end=3.0), 0.8, 6
    beamed = groups * width
    options = SearchOptions(
        beam=beamed, n_best=beamed, max_ratio=0.0, max_extra=most, variant=Diverse(groups, strength)
    )
    found = decode_all(scorer, sentences, options)
    for source, own in zip(sentences, found, strict=True):
        expected = {ids for group in plain_diverse(scorer, source, groups, width, strength, most) for _, ids in group}
        ended = {h.ids for h in own if h.finished}
        assert len([h.ids for h in own]) == len({h.ids for h in own})
        assert ended
        assert ended <= expected, "a beam may stop earlier if no better hypothesis is possible"
        scored = force_decode(scorer, make_sources([source] * len(expected), CPU), sorted(expected))
        assert own[0].score == pytest.approx(max(h.score for h in scored))


def test_one_group_equals_beam_search(toy, sentences):
    scorer, options = toy(seed=11), SearchOptions(beam=4, n_best=4)
    sources = make_sources(sentences, CPU)
    assert search_variant(scorer, sources, options, Diverse(1, 9.0)) == beam_search(scorer, sources, options)
    free = search_variant(scorer, sources, options, Diverse(2, 0.0))
    assert free == beam_search(scorer, sources, replace(options, beam=2, n_best=2))


def test_diverse_groups_differ(toy, sentences):
    options = SearchOptions(beam=4, n_best=4, variant=Diverse(4, 99.0))
    for own in decode_all(toy(seed=11), sentences, options):
        assert len({(*h.ids, EOS)[0] for h in own}) == len(own) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampling(temperature=0.0), "temperature must be above 0 and finite; got 0.0"),
        (lambda: Sampling(temperature=math.inf), "temperature must be above 0 and finite; got inf"),
        (lambda: Sampling(top_k=-1), "top_k must be at least 0; got -1"),
        (lambda: Sampling(top_p=0.0), "top_p must be above 0 and at most 1; got 0.0"),
        (lambda: Sampling(seed=-1), "seed must be at least 0; got -1"),
        (lambda: Diverse(0), "groups must be at least 1; got 0"),
        (lambda: Diverse(2, -1.0), "strength must be at least 0 and finite; got -1.0"),
        (lambda: Diverse(2, math.inf), "strength must be at least 0 and finite; got inf"),
        (lambda: Diverse(2, math.nan), "strength must be at least 0 and finite; got nan"),
        (
            lambda: SearchOptions(beam=5, variant=Diverse(2)),
            r"beam must be divisible by the number of groups \(2\); got 5",
        ),
    ],
)
def test_invalid_option_is_rejected(make, message):
    with pytest.raises(RnnsearchError, match=message):
        make()


def test_errors_name_the_sentence_not_the_copy(toy, sentences):
    scorer = toy(seed=1)
    options = SearchOptions(beam=2, variant=Sampling(), prefix=((), (99_999,), *[()] * (len(sentences) - 2)))
    with pytest.raises(SentenceError, match="the prefix of sentence 1 "):
        search_variant(scorer, make_sources(sentences, CPU), options, Sampling())


def test_default_beam_is_divided_over_groups():
    assert [Diverse(4).default_beam(own, n_best) for own, n_best in ((5, 1), (4, 4), (3, 10))] == [8, 4, 12]
