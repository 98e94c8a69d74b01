"""An exhaustive beam with any combination of filters equals exhaustive search with the same restrictions.

No search returns a hypothesis that the filters forbid.
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.banned import BannedTokens
from rnnsearch.search.beam import greedy_search
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.forced import force_decode
from rnnsearch.search.hypothesis import SentenceError
from rnnsearch.search.noisy import Noisy
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import SUM_LOG_PROB
from rnnsearch.search.sampling import Diverse, Sampling
from rnnsearch.search.stochastic import Stochastic
from rnnsearch.text.banned import BannedPhrases
from rnnsearch.text.vocabulary import EOS, UNK

CPU = torch.device("cpu")
SPELLINGS = [b"", b" <unk>", b"", b"", b" a", b"b", b" b"]
SYMBOLS, MOST, SOURCE = (UNK, 4, 5, 6), 4, [7, 8]
BANNED = BannedPhrases(["a", "b ab", "bb b"])
FILTERS = {
    "symbols": {"banned": frozenset({UNK, 6})},
    "phrases": {"banned_phrases": BannedTokens(BANNED, SPELLINGS)},
    "n-grams": {"no_repeat_ngram": 2},
    "length": {"min_length": 2},
    "prefix": {"prefix": ((5,),)},
    "terms": {"phrases": (((6, 5),),)},
}
TOGETHER = [*((name,) for name in FILTERS), ("phrases", "n-grams", "length"), ("phrases", "prefix", "symbols")]
TOGETHER += [("terms", "n-grams", "length"), ("phrases", "terms", "length"), ("prefix", "terms")]
VARIANTS = [Sampling(3.0), Stochastic(3.0), Diverse(4, 2.0), Noisy(4, 3.0)]


def allowed(ids, names):
    """Return True if a complete translation satisfies the filters."""
    text = b"".join(SPELLINGS[id] for id in ids).decode()
    grams = [gram for gram in pairwise(ids) if "terms" not in names or gram[1] not in (5, 6)]  # terms may repeat
    checks = {
        "symbols": not {UNK, 6} & {*ids},
        "phrases": not BANNED.occurs_in(text),
        "n-grams": len(grams) == len(set(grams)),
        "length": len(ids) >= 2,
        "prefix": ids[:1] == (5,),
        "terms": any(ids[at : at + 2] == (6, 5) for at in range(len(ids))),
    }
    return all(checks[name] for name in names)


def of(names, **more):
    options = {name: value for filter in names for name, value in FILTERS[filter].items()}
    return SearchOptions(**{"length_penalty": 0.0, "max_ratio": 0.0, "max_extra": MOST, **options, **more})


@cache
def every():
    return [ids for count in range(MOST + 1) for ids in product(SYMBOLS, repeat=count)]


@pytest.mark.parametrize("names", TOGETHER, ids="+".join)
@pytest.mark.parametrize("seed", range(2))
def test_wide_beam_equals_filtered_exhaustive_search(toy, names, seed):
    scorer = toy(symbols=7, seed=seed, end=0.5)
    kept = [ids for ids in every() if allowed(ids, names)]
    scored = force_decode(scorer, make_sources([SOURCE] * len(kept), CPU), kept, SUM_LOG_PROB)
    scored.sort(key=lambda h: -h.score)
    assert 0 < len(kept) < len(every())
    [found] = decode_all(scorer, [SOURCE], of(names, beam=2000, n_best=2000))
    finished = [h for h in found if h.finished]
    assert {h.ids for h in finished} == set(kept)
    assert [h.score for h in finished] == pytest.approx([h.score for h in scored], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("names", [names for names in TOGETHER if "terms" not in names], ids="+".join)
def test_full_stochastic_beam_equals_filtered_exhaustive_search(toy, names):
    options = of(names, beam=700, n_best=700, variant=Stochastic())
    [found] = decode_all(toy(symbols=7, seed=1), [SOURCE], options)
    assert sorted(h.ids for h in found) == sorted(ids for ids in every() if allowed(ids, names))


@pytest.mark.parametrize("variant", [None, *VARIANTS], ids=lambda v: "beam" if v is None else v.name)
@pytest.mark.parametrize("names", TOGETHER, ids="+".join)
def test_no_search_returns_banned_phrases(toy, names, variant):
    class Open(type(toy())):
        def map_hidden(self, state, function):
            return state._replace(h=function(state.h))

    if variant is not None and "terms" in names:
        with pytest.raises(RnnsearchError, match=f"phrases need an ordinary beam search; got {variant.name}"):
            of(names, beam=8, variant=variant)
        return
    # A beam of one that places a term last may be blocked by a banned phrase.
    blocks = {"terms", "phrases"} <= {*names}
    for seed in range(3):
        for width in (8, 1) if variant is None else (8,):
            options = of(names, beam=width, n_best=width, variant=variant)
            [found] = decode_all(Open(symbols=7, seed=seed), [SOURCE], options)
            assert found
            for h in found:
                assert allowed(h.ids, names) or (h.blocked and blocks and width == 1), (h.ids, h.finished)


def test_banned_phrases_do_not_depend_on_the_batch(toy, sentences):
    options = SearchOptions(beam=3, n_best=3, max_ratio=1.0, banned_phrases=BannedTokens(BANNED, SPELLINGS))
    together = decode_all(toy(symbols=7, seed=3), sentences, options, batch_sentences=4)
    for own, ids in zip(together, sentences, strict=True):
        assert [h.ids for h in decode_all(toy(symbols=7, seed=3), [ids], options)[0]] == [h.ids for h in own]
    columns = torch.tensor([EOS, 6, 5, 4, UNK])
    listed = decode_all(toy(symbols=7, seed=3), sentences, options, candidates=lambda _: columns)
    assert [[h.ids for h in own] for own in listed] == [[h.ids for h in own] for own in together]


def test_banned_phrase_without_longer_words_is_blocked_at_its_start(toy):
    """In these columns only another word can follow `a`, which would complete the banned phrase."""
    options = SearchOptions(max_ratio=0.0, max_extra=6, banned_phrases=FILTERS["phrases"]["banned_phrases"])
    for seed in range(4):
        columns = torch.tensor([EOS, 4, 6])
        [[found]] = greedy_search(
            toy(symbols=7, seed=seed), make_sources([SOURCE], CPU), options, lambda _, c=columns: c
        )
        assert 4 not in found.ids
    short = replace(options, max_extra=1)
    assert 4 not in greedy_search(toy(symbols=7, seed=seed), make_sources([SOURCE], CPU), short)[0][0].ids, (
        "the limit leaves no capacity to continue"
    )


def test_forcing_a_banned_phrase_is_rejected():
    banned = FILTERS["phrases"]["banned_phrases"]
    with pytest.raises(SentenceError, match=r"the prefix of sentence 1 .* must not contain a banned phrase"):
        SearchOptions(banned_phrases=banned, prefix=((4, 5), (4, 4)))
    with pytest.raises(SentenceError, match=r"the phrases of sentence 0 .* must not contain a banned phrase"):
        SearchOptions(banned_phrases=banned, phrases=(((4,),),))
    assert SearchOptions(banned_phrases=banned, prefix=((4,),)), "`a` may continue as `ab`"
