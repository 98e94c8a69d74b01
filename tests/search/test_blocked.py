"""A sentence without an allowed translation gets an empty result and does not affect the other sentences."""

from dataclasses import replace
from itertools import pairwise, permutations, product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from rnnsearch.search.banned import BannedTokens
from rnnsearch.search.beam import greedy_search, greedy_stream
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.ensemble import EnsembleMember, EnsembleScorer, WeightedScorer, WeightedSumScorer
from rnnsearch.search.hypothesis import BLOCKED, SentenceError
from rnnsearch.search.noisy import Noisy
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.results import HypothesisArrays
from rnnsearch.search.sampling import Diverse, Sampling
from rnnsearch.search.scorer import SOURCE
from rnnsearch.search.stochastic import Stochastic
from rnnsearch.text.banned import BannedPhrases
from rnnsearch.text.vocabulary import EOS

CPU = torch.device("cpu")
OPTIONS = SearchOptions(max_ratio=0.0, max_extra=5)
WAYS = {
    "greedy": replace(OPTIONS, beam=1),
    "beam": replace(OPTIONS, beam=4),
    "n-best": replace(OPTIONS, beam=4, n_best=4),
    "coverage": replace(OPTIONS, beam=4, n_best=4, coverage_penalty=0.2),
    "samples": replace(OPTIONS, beam=4, n_best=4, variant=Sampling(2.0)),
    "nucleus": replace(OPTIONS, beam=4, n_best=4, variant=Sampling(2.0, 5, 0.9)),
    "groups": replace(OPTIONS, beam=4, n_best=4, variant=Diverse(2)),
    "stochastic": replace(OPTIONS, beam=4, n_best=4, variant=Stochastic(2.0)),
    "noisy": replace(OPTIONS, beam=4, n_best=4, variant=Noisy(2, 0.5)),
}
BY = {
    "alone": lambda one, _: one,
    "ensemble": lambda one, other: EnsembleScorer(
        [EnsembleMember(scorer, 1.0, {SOURCE: SOURCE}) for scorer in (one, other)]
    ),
    "sum": lambda one, other: WeightedSumScorer([WeightedScorer(one), WeightedScorer(other)]),
}
COLUMNS = torch.tensor([EOS, 1, 4, 5, 6, 8])


class State(NamedTuple):
    inner: Any
    about: Tensor
    """First token of the source and number of steps, [N, 2]."""


class Blocking:
    """Wrapper that allows no token from step `step` on if a source starts with `first`."""

    def __init__(self, scorer, first, step):
        self.scorer, self.first, self.last = scorer, first, step
        self.vocabulary, self.normalised, self.device = scorer.vocabulary, scorer.normalised, scorer.device

    def start(self, sources, columns):
        memory, state = self.scorer.start(sources, columns)
        first = sources[SOURCE].ids[:, 0]
        return memory, State(state, torch.stack((first, torch.zeros_like(first)), 1))

    def step(self, memory, state, y):
        step, about = self.scorer.step(memory, state.inner, y), state.about + torch.tensor([0, 1])
        step.scores[(about[:, 0] == self.first) & (about[:, 1] >= self.last)] = -torch.inf
        return step._replace(state=State(step.state, about))

    def map_hidden(self, state, function):
        return state._replace(inner=self.scorer.map_hidden(state.inner, function))


@pytest.fixture
def lively(toy):
    """Return a function that builds toy scorers with late ends and accessible hidden states."""

    class Open(type(toy())):
        def map_hidden(self, state, function):
            return state._replace(h=function(state.h))

    return lambda seed=3, end=-9.0, **more: Open(seed=seed, end=end, **more)


def ids(found):
    return [[h.ids for h in own] for own in found]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize(("prefixed", "listed"), [*product((False, True), repeat=2)])
def test_blocked_sentence_does_not_affect_others(lively, sentences, way, by, prefixed, listed):
    """The blocked sentence is in the middle of a batch and blocked at the first step or later."""
    options = replace(WAYS[way], prefix=((4, 8),) * len(sentences)) if prefixed else WAYS[way]
    columns = (lambda _: COLUMNS) if listed else None
    scorer = BY[by](lively(3), lively(4))
    free = decode_all(scorer, sentences, options, candidates=columns)
    for step, compact_at in product((1, 3), (0.0, 1.0)):
        blocking, own = Blocking(scorer, 9, step), replace(options, compact_at=compact_at)
        found = decode_all(blocking, sentences, own, candidates=columns)
        assert found[2] == [BLOCKED]
        del found[2]
        assert ids(found) == ids([*free[:2], *free[3:]])
        assert not any(h.blocked for one in found for h in one)
        alone = replace(own, prefix=own.prefix and own.prefix[:1])
        assert decode_all(blocking, [sentences[2]], alone, candidates=columns) == [[BLOCKED]]


def test_hypotheses_finished_before_blocking_are_returned(lively, sentences):
    """A beam that is blocked after hypotheses have finished returns these."""
    [found] = decode_all(Blocking(lively(end=1.0), 9, 4), [sentences[2]], WAYS["n-best"])
    assert 0 < len(found) <= 4
    assert all(h.finished and len(h.ids) < 3 for h in found)


def test_successful_copies_replace_blocked_copies(toy):
    """Some samples over three tokens without repetition and with a minimum length reach a dead end."""
    options = replace(OPTIONS, beam=40, n_best=40, min_length=2, no_repeat_ngram=1, variant=Sampling(3.0))
    spellings = [b"", b" <unk>", b"", b"", b" a", b"b", b" b"]
    # ` b` must not end a text or precede `b`; after ` a` only an end is possible.
    ban = BannedTokens(BannedPhrases(["b", "a b", "b a", "bb"]), spellings)
    [found] = decode_all(toy(symbols=7, seed=2), [[7, 8]], replace(options, banned_phrases=ban, banned=frozenset({1})))
    assert 0 < len(found) <= 40
    assert found == [BLOCKED] or not any(h.blocked for h in found)


SPELLINGS = [b"", b" <unk>", b"", b"", b" a", b" b", b" c", b" d"]
APART = BannedTokens(BannedPhrases([" ".join(two) for two in permutations("abc", 2)]), SPELLINGS)
"""Bans on adjacent words of a, b and c."""


@pytest.mark.parametrize("width", [1, 2, 5, 400])
@pytest.mark.parametrize("more", [{}, {"no_repeat_ngram": 2}, {"min_length": 3}, {"prefix": ((7,),) * 2}], ids=str)
@pytest.mark.parametrize("room", [3, 5])
def test_terms_and_bans_do_not_end_the_search(toy, width, more, room):
    """Required terms must not be adjacent: without capacity for other words, no translation exists.

    With more capacity a wide beam finds one, and results of narrow beams are always allowed.
    """
    phrases = ((4,), (5,), (6,))
    options = SearchOptions(beam=width, n_best=width, max_ratio=0.0, max_extra=room, phrases=(phrases, ()), **more)
    options = replace(options, banned_phrases=APART, banned=frozenset({1}))
    known = len(options.prefix[0]) if options.prefix else 0
    for seed in range(4 if width < 400 else 1):
        found, other = decode_all(toy(symbols=8, seed=seed), [[7, 8], [9]], options)
        assert other != [BLOCKED]
        for h in found:
            text = [SPELLINGS[id] for id in h.ids]
            holds = {4, 5, 6} <= {*h.ids} and not any(
                {*two} < {b" a", b" b", b" c"} for two in pairwise(text) if len({*two}) > 1
            )
            assert h == BLOCKED or holds
        if room == 3 and not known:
            assert found == [BLOCKED]
        if width == 400 and room == 5 and not more:
            assert found != [BLOCKED]


def test_greedy_steps_end_at_a_blocked_step(lively, sentences):
    sources = make_sources([sentences[2]], CPU)
    steps = greedy_stream(Blocking(lively(), 9, 3), sources, OPTIONS)
    told = []
    while True:
        try:
            told.append(next(steps))
        except StopIteration as end:
            assert end.value == BLOCKED
            break
    assert [len(ids) for ids in told] == [1, 2]


def test_reference_loop_blocks_the_same_sentences(lively, sentences):
    """A scorer with its own greedy search reports blocked sentences through its scores."""

    class Native(Blocking):
        def greedy(self, sources, columns, most, banned):
            found = [own[0] for own in greedy_search(Blocking(self.scorer, self.first, self.last), sources, OPTIONS)]
            length = np.array([self.last if h.blocked else len(h.token_scores) for h in found])
            tokens, scores = (
                np.full((int(most.max()) + 1, len(most)), EOS),
                np.full((int(most.max()) + 1, len(most)), -np.inf),
            )
            for n, h in enumerate(found):
                scores[: len(h.token_scores), n], tokens[: len(h.ids), n] = h.token_scores, h.ids
            return HypothesisArrays(
                np.arange(len(most)), tokens, scores, length, np.array([h.finished for h in found]), {}
            )

    sources = make_sources(sentences, CPU)
    found = greedy_search(Native(lively(), 9, 3), sources, OPTIONS)
    assert found[2] == [BLOCKED]
    assert ids(found) == ids(greedy_search(Blocking(lively(), 9, 3), sources, OPTIONS))


@pytest.mark.parametrize("way", WAYS)
def test_nan_is_still_an_error(lively, sentences, way):
    scorer = lively(nan=(9, 2))
    with pytest.raises(SentenceError, match=r"the scores of sentence 2 .* must be numbers; got NaN"):
        decode_all(scorer, sentences, WAYS[way])
