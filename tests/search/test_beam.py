"""Beam search agrees with exhaustive search, greedy search and forced decoding, and stops early without loss."""

from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.forced import force_decode
from rnnsearch.search.hypothesis import BLOCKED, Hypothesis, SearchCancelled, SentenceError
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import Ranking
from rnnsearch.search.topk import best_continuations

CPU = torch.device("cpu")
LOOSE = {"rel": 1e-5, "abs": 1e-5}
RANKINGS = [
    *(Ranking(penalty) for penalty in (0.0, 0.6, 1.0, 1.5)),
    Ranking(0.6, "gnmt"),
    Ranking(0.0, coverage_penalty=0.4),
    Ranking(0.8, "gnmt", 0.2),
]


def same(one: list[list[Hypothesis]], other: list[list[Hypothesis]]) -> None:
    assert [[h.ids for h in hs] for hs in one] == [[h.ids for h in hs] for hs in other]
    for a, b in zip((h for hs in one for h in hs), (h for hs in other for h in hs), strict=True):
        assert a.finished == b.finished
        assert a.score == pytest.approx(b.score, **LOOSE)
        assert a.token_scores == pytest.approx(b.token_scores, **LOOSE)
        assert a.attention.keys() == b.attention.keys()
        for name, weights in a.attention.items():
            np.testing.assert_allclose(weights, b.attention[name], atol=1e-5)


@pytest.mark.parametrize("ranking", RANKINGS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_wide_beam_equals_exhaustive_search(toy, seed, ranking):
    scorer = toy(symbols=7, seed=seed)
    symbols, most = [1, 4, 5, 6], 4
    targets = [ids for count in range(most + 1) for ids in product(symbols, repeat=count)]
    sources = make_sources([[7, 8]], CPU)
    every = force_decode(scorer, make_sources([[7, 8]] * len(targets), CPU), targets, ranking)
    every.sort(key=lambda h: -h.score)
    options = SearchOptions(beam=400, n_best=10, max_ratio=0.0, max_extra=most, **asdict(ranking))
    [found] = beam_search(scorer, sources, options)
    assert [h.ids for h in found] == [h.ids for h in every[:10]]
    assert [h.score for h in found] == pytest.approx([h.score for h in every[:10]], **LOOSE)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("compact_at", [0.0, 0.25, 1.0])
def test_results_do_not_depend_on_batch_padding_or_compaction(toy, sentences, width, compact_at):
    options = SearchOptions(beam=width, n_best=width, compact_at=compact_at, coverage_penalty=0.3)
    search = greedy_search if width == 1 else beam_search
    together = search(toy(seed=5), make_sources(sentences, CPU), options)
    alone = [search(toy(seed=5), make_sources([ids], CPU), options)[0] for ids in sentences]
    backwards = search(toy(seed=5), make_sources(sentences[::-1], CPU), options)
    same(together, alone)
    same(together, backwards[::-1])


@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_finished_sentences_leave_the_batch(toy, sentences, search):
    scorer = toy(seed=5)
    search(scorer, make_sources(sentences, CPU), SearchOptions(compact_at=0.0))
    assert min(scorer.rows[1:]) < max(scorer.rows)
    scorer = toy(seed=5)
    search(scorer, make_sources(sentences, CPU), SearchOptions(compact_at=1.0))
    assert scorer.rows[-1] == max(scorer.rows)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("n_best", [1, 3])
def test_early_stopping_does_not_change_results(toy, sentences, penalty, n_best):
    """An unnormalised scorer has no bound on its scores, so its search stops later."""
    options = SearchOptions(beam=6, n_best=n_best, length_penalty=penalty)
    bounded, free = toy(seed=7, end=1.0), toy(seed=7, end=1.0, normalised=False)
    sources = make_sources(sentences, CPU)
    same(beam_search(bounded, sources, options), beam_search(free, sources, options))
    assert sum(bounded.rows) <= sum(free.rows)
    if penalty == 0.0 and n_best == 1:
        assert sum(bounded.rows) < sum(free.rows)


def test_hypotheses_are_cut_at_max_length_if_none_finishes(toy, sentences):
    options = SearchOptions(beam=3, n_best=3, max_ratio=1.5, max_extra=2)
    found = beam_search(toy(end=-60.0), make_sources(sentences, CPU), options)
    for ids, hypotheses in zip(sentences, found, strict=True):
        assert [len(h.ids) for h in hypotheses] == [int(1.5 * len(ids)) + 2] * 3
        assert len({h.ids for h in hypotheses}) == 3
        for h in hypotheses:
            assert not h.finished
            assert len(h.token_scores) == len(h.ids) == len(h.attention["source"])


def test_unfinished_hypotheses_fill_the_n_best_list_last(table):
    # The model chooses between A (4) and EOS at each step, and EOS is second: one hypothesis finishes per step.
    never = -torch.inf
    row = [never, never, never, np.log(0.4), np.log(0.6)]
    scorer, sources = table([row]), make_sources([[7]], CPU)
    options = SearchOptions(beam=9, n_best=3, max_ratio=0.0, max_extra=4)
    [found] = beam_search(scorer, sources, options)
    assert [(len(h.ids), h.finished) for h in found] == [(4, True), (3, True), (2, True)]
    [found] = beam_search(scorer, sources, replace(options, n_best=9))
    assert [(len(h.ids), h.finished) for h in found] == [(4, True), (3, True), (2, True), (1, True), (0, True)]
    rare = [never, never, never, np.log(0.01), np.log(0.5), np.log(0.49)]
    [found] = beam_search(table([[*row, never], rare]), sources, replace(options, beam=2, n_best=2))
    assert [(h.ids[:1], h.finished) for h in found] == [((), True), ((4,), False)]
    assert len(found[1].ids) == 4


def test_hypothesis_may_finish_at_max_length(table):
    never = -torch.inf
    go, stop = [never, never, never, never, 0.0], [never, never, never, 0.0, never]
    for search in (greedy_search, beam_search):
        [[found]] = search(
            table([go, go, stop]), make_sources([[7, 8]], CPU), SearchOptions(max_ratio=1.0, max_extra=0)
        )
        assert (found.ids, found.finished, found.log_prob) == ((4, 4), True, 0.0)


def test_one_token_is_always_allowed(table):
    row = [-torch.inf] * 3 + [-5.0, -0.1]
    for search in (greedy_search, beam_search):
        [found] = search(table([row]), make_sources([[7]], CPU), SearchOptions(max_ratio=0.0, max_extra=0))
        assert [(h.ids, h.finished) for h in found] == [((4,), search is beam_search)]


def test_ties_go_to_the_lowest_id(table):
    equal = [-1.0] * 7
    sources = make_sources([[7]], CPU)
    options = SearchOptions(beam=3, n_best=3, min_length=2, max_ratio=0.0, max_extra=2)
    [found] = beam_search(table([equal]), sources, options)
    assert [h.ids for h in found] == [(1, 1), (1, 4), (1, 5)]
    [[found]] = greedy_search(table([equal]), sources, options)
    assert found.ids == (1, 1)


@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_nan_names_the_sentence_and_the_position(toy, sentences, search):
    with pytest.raises(SentenceError) as error:
        search(toy(seed=5, end=-5.0, nan=(9, 3)), make_sources(sentences, CPU), SearchOptions(compact_at=0.0))
    assert error.value.sentence == 2
    assert str(error.value) == (
        "the scores of sentence 2 (counting from 0) must be numbers; got NaN at target position 3"
    )


@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_dead_end_gives_no_translation(table, search):
    never = [-torch.inf] * 5
    found = search(table([[0.0] * 5, never]), make_sources([[7], [8]], CPU), SearchOptions(min_length=1))
    assert found == [[BLOCKED]] * 2
    assert found[0][0].blocked


def test_candidate_selection_is_a_hook(toy, sentences):
    """A selector that extends only the first hypothesis keeps one prefix."""

    def first_only(scores, log_probs, count, _rows):
        return best_continuations(scores[:, :1], log_probs[:, :1], count)

    sources = make_sources(sentences, CPU)
    found = beam_search(toy(seed=8), sources, SearchOptions(beam=4, n_best=4), selector=first_only)
    for hypotheses in found:
        for h in hypotheses:
            prefixes = {other.ids[: len(h.ids) - 1] for other in hypotheses}
            assert h.ids[:-1] in prefixes
    assert found != beam_search(toy(seed=8), sources, SearchOptions(beam=4, n_best=4))


def test_scores_are_summed_in_float32(toy, sentences):
    class Half(type(toy())):
        def step(self, memory, state, y):
            step = super().step(memory, state, y)
            return step._replace(scores=step.scores.bfloat16())

    sources = make_sources(sentences, CPU)
    found = beam_search(Half(seed=1), sources, SearchOptions(n_best=2))
    for rank in (0, 1):
        ranked = [hypotheses[rank] for hypotheses in found]
        same([ranked], [force_decode(Half(seed=1), sources, [h.ids for h in ranked])])


@pytest.mark.parametrize("width", [1, 4])
def test_cancelled_search_ends_before_its_next_step(toy, sentences, width):
    answers = iter([False, False, True])
    options = SearchOptions(beam=width, is_cancelled=lambda: next(answers))
    with pytest.raises(SearchCancelled, match="the search was cancelled"):
        beam_search(toy(), make_sources(sentences[:2], CPU), options)
    with pytest.raises(SearchCancelled):
        decode_all(toy(), sentences[:2], SearchOptions(beam=width, is_cancelled=lambda: True))
