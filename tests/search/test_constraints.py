"""Options, maximum and minimum lengths, banned tokens, prefixes, and score columns for part of the vocabulary."""

import math
from dataclasses import replace

import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.candidates import Columns
from rnnsearch.search.constraints import max_lengths
from rnnsearch.search.decode import make_sources
from rnnsearch.search.forced import force_decode
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.prefixes import ForcedBytes
from rnnsearch.text.vocabulary import BOS, EOS, PAD, UNK

CPU = torch.device("cpu")
BOTH = pytest.mark.parametrize("search", [greedy_search, beam_search])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("beam", 0, "beam must be at least 1; got 0"),
        ("length_penalty", -0.5, "length_penalty must be at least 0; got -0.5"),
        ("coverage_penalty", -0.1, "coverage_penalty must be at least 0; got -0.1"),
        ("length_norm", "wu", 'length_norm must be one of power, gnmt, power-with-bos; got "wu"'),
        ("max_ratio", -1.0, "max_ratio must be at least 0; got -1.0"),
        ("length_penalty", math.nan, "length_penalty must be at least 0; got nan"),
        ("length_penalty", 1000.0, "length_penalty must be at most 10; got 1000"),
        ("max_ratio", math.inf, "max_ratio must be finite; got inf"),
        ("max_extra", -1, "max_extra must be at least 0; got -1"),
        ("n_best", 6, "n_best must be between 1 and beam (5); got 6"),
        ("n_best", 0, "n_best must be between 1 and beam (5); got 0"),
        ("min_length", -1, "min_length must be at least 0; got -1"),
        ("stop", "first", 'stop must be one of bound, top; got "first"'),
        ("compact_at", 1.5, "compact_at must be between 0 and 1; got 1.5"),
        ("banned", frozenset({EOS}), "banned must not contain EOS (id 3), or no translation could end"),
        (
            "prefix",
            ((4,), (5, EOS)),
            "the prefix of sentence 1 (counting from 0) must consist of token ids without EOS; got [5, 3]",
        ),
    ],
)
def test_invalid_option_is_rejected(option, value, message):
    with pytest.raises(RnnsearchError) as error:
        SearchOptions(**{option: value})
    assert str(error.value) == message


def test_length_limits_count_source_tokens_without_eos():
    sources = make_sources([[5, 6, 7], [5]], CPU)
    assert max_lengths(sources, SearchOptions(max_ratio=1.5, max_extra=2)).tolist() == [6, 3]
    assert max_lengths(sources, SearchOptions(max_ratio=0.0, max_extra=0)).tolist() == [1, 1]
    assert max_lengths(sources, SearchOptions(max_ratio=1.0, max_extra=0, prefix=((), (4,) * 9))).tolist() == [3, 10]
    longest = {**sources, "other": make_sources([[5], [6, 7]], CPU)["source"]}
    assert max_lengths(longest, SearchOptions(max_ratio=1.0, max_extra=0)).tolist() == [3, 2]


@BOTH
def test_banned_tokens_are_never_produced(toy, sentences, search):
    sources, options = make_sources(sentences, CPU), SearchOptions(n_best=5, beam=5)
    free = search(toy(seed=4, end=-1.0), sources, options)
    common = free[0][0].ids[0]
    found = search(toy(seed=4, end=-1.0), sources, replace(options, banned=frozenset({common, UNK})))
    assert {PAD, BOS, UNK, common}.isdisjoint(i for hs in found for h in hs for i in h.ids)
    assert {PAD, BOS}.isdisjoint(i for hs in free for h in hs for i in h.ids)


@BOTH
def test_each_sentence_starts_with_its_prefix(toy, sentences, search):
    prefix = ((4, 8), (), (5,), (8, 8, 8, 8), (UNK,), (6, 7))
    scorer, sources = toy(seed=4), make_sources(sentences, CPU)
    options = SearchOptions(n_best=4, prefix=prefix, banned=frozenset({UNK, 8}), compact_at=0.0)
    found = search(scorer, sources, options)
    free = search(scorer, sources, replace(options, prefix=None))
    for wanted, hypotheses in zip(prefix, found, strict=True):
        for h in hypotheses:
            assert h.ids[: len(wanted)] == wanted
            assert not {UNK, 8} & set(h.ids[len(wanted) :])
    assert [h.ids for h in found[1]] == [h.ids for h in free[1]]
    again = force_decode(scorer, sources, [hs[0].ids for hs in found])
    assert [hs[0].log_prob for hs in found] == pytest.approx([h.log_prob for h in again], rel=1e-5)


@BOTH
def test_prefix_may_exceed_max_length(toy, search):
    prefix = (tuple([4, 5, 6, 7] * 3),)
    options = SearchOptions(max_ratio=0.0, max_extra=0, prefix=prefix)
    [[found]] = search(toy(), make_sources([[9]], CPU), options)
    assert found.ids[:12] == prefix[0]
    assert len(found.ids) <= 13


@BOTH
def test_translations_are_at_least_min_length(toy, sentences, search):
    sources = make_sources(sentences, CPU)
    scorer = toy(seed=4, end=3.0)
    assert min(len(hs[0].ids) for hs in search(scorer, sources, SearchOptions())) < 4
    found = search(scorer, sources, SearchOptions(min_length=4, n_best=5))
    assert min(len(h.ids) for hs in found for h in hs) == 4
    assert all(h.finished for hs in found for h in hs)


@BOTH
def test_max_length_takes_precedence_over_min_length(toy, search):
    options = SearchOptions(min_length=50, max_ratio=0.0, max_extra=3)
    [[found]] = search(toy(end=3.0), make_sources([[9]], CPU), options)
    assert (len(found.ids), found.finished) == (3, False)


@BOTH
def test_column_subset_equals_banning_the_other_tokens(toy, sentences, search):
    sources, options = make_sources(sentences, CPU), SearchOptions(n_best=4)
    part = torch.tensor([8, 4, EOS, 5, UNK])
    options = replace(options, min_length=2)
    found = search(toy(seed=9), sources, replace(options, banned=frozenset({5, 7})), lambda _: part)
    full = search(toy(seed=9), sources, replace(options, banned=frozenset({5, 6, 7})))
    assert [[h.ids for h in hs] for hs in found] == [[h.ids for h in hs] for hs in full]
    for hs, others in zip(found, full, strict=True):
        assert [h.log_prob for h in hs] == pytest.approx([h.log_prob for h in others], rel=1e-5)


@BOTH
def test_prefix_tokens_join_the_selected_columns(toy, sentences, search):
    """Forced bytes add the whole vocabulary."""
    sources, part = make_sources(sentences, CPU), torch.tensor([EOS, 4, 5])
    scorer, prefix = toy(seed=9, end=-3.0), ((7, 8), (), (8,), (4,), (), (6,))
    found = search(scorer, sources, SearchOptions(beam=2, prefix=prefix), lambda _: part)
    for wanted, [best] in zip(prefix, found, strict=True):
        assert best.ids[: len(wanted)] == wanted
        assert set(best.ids[len(wanted) :]) <= {4, 5, 6, 7, 8}
    spelling = ForcedBytes(((),) * 6, torch.ones(9, dtype=torch.int64))
    free = search(scorer, sources, SearchOptions(beam=2))
    assert search(scorer, sources, SearchOptions(beam=2, forced_bytes=spelling), lambda _: part) == free


@BOTH
def test_prefix_token_unknown_to_the_scorer_is_rejected(toy, search):
    for choose in (None, lambda _: torch.tensor([EOS, 4, 5])):
        with pytest.raises(RnnsearchError) as error:
            search(toy(), make_sources([[9], [9]], CPU), SearchOptions(prefix=((4,), (5, 9))), choose)
        assert str(error.value) == (
            "the prefix of sentence 1 (counting from 0) must consist of tokens that the scorer scores; got 9"
        )


@BOTH
def test_copies_have_separate_columns(toy, sentences, search):
    """Ids of V or more are found by search, and the scorer receives them as input."""

    class Copying(type(toy())):
        def start(self, sources, columns):
            return super().start(sources, columns.where(columns < 9, 8))

        def step(self, memory, state, y):
            return super().step(memory, state, y.where(y < 9, 8))

    part, sources = torch.tensor([EOS, 4, 12]), make_sources(sentences, CPU)
    found = search(Copying(seed=9), sources, SearchOptions(prefix=((12,),) * 6), lambda _: part)
    plain = search(toy(seed=9), sources, SearchOptions(prefix=((8,),) * 6), lambda _: torch.tensor([EOS, 4, 8]))
    as_plain = [[tuple(8 if y == 12 else y for y in h.ids) for h in hs] for hs in found]
    assert as_plain == [[h.ids for h in hs] for hs in plain]


def test_eos_must_have_a_column(toy):
    for ids in ([4, 5], [1, 2]):
        with pytest.raises(RnnsearchError, match=r"candidate tokens must include EOS \(id 3\); got none"):
            greedy_search(toy(), make_sources([[9]], CPU), SearchOptions(), lambda _, ids=ids: torch.tensor(ids))


def test_columns_map_to_tokens_and_back():
    columns = Columns(torch.tensor([8, 3, 5]), 6)
    assert columns.find(torch.tensor([[3, 8], [4, 100], [-1, 0]])).tolist() == [[1, 0], [-1, -1], [-1, -1]]
    assert columns.tokens(torch.tensor([[2], [0]])).tolist() == [[5], [8]]
    whole = Columns(None, 6)
    assert whole.find(torch.tensor([5, 6, -1])).tolist() == [5, -1, -1]
    assert whole.tokens(torch.tensor([5])).tolist() == [5]
