"""N-gram blocking finds the best translation of an exhaustive search without repeated n-grams."""

from itertools import product

import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.beam import beam_search
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.forced import force_decode
from rnnsearch.search.options import SearchOptions
from rnnsearch.text.vocabulary import EOS

CPU = torch.device("cpu")


def repeats(ids, size):
    grams = [ids[n : n + size] for n in range(len(ids) - size + 1)]
    return len(grams) > len(set(grams))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_no_repeat_ngram_equals_filtered_exhaustive_search(toy, size, seed):
    scorer, most = toy(symbols=7, seed=seed), 5
    targets = [ids for count in range(most + 1) for ids in product([1, 4, 5, 6], repeat=count)]
    kept = [ids for ids in targets if not repeats(ids, size)]
    every = force_decode(scorer, make_sources([[7, 8]] * len(kept), CPU), kept)
    every.sort(key=lambda h: -h.score)
    options = SearchOptions(beam=1000, n_best=8, max_ratio=0.0, max_extra=most, no_repeat_ngram=size)
    [found] = beam_search(scorer, make_sources([[7, 8]], CPU), options)
    assert [h.ids for h in found] == [h.ids for h in every[:8]]
    assert len(targets) > len(kept)


@pytest.mark.parametrize("width", [1, 3])
def test_no_ngram_repeats_except_in_the_prefix(toy, sentences, width):
    prefix, phrases = ((5, 6, 5, 6), *[()] * (len(sentences) - 1)), ((), ((8, 7, 8, 7),), *[()] * (len(sentences) - 2))
    options = SearchOptions(
        beam=width, n_best=width, no_repeat_ngram=2, max_ratio=0.0, max_extra=12, prefix=prefix, phrases=phrases
    )
    found = decode_all(toy(symbols=10, seed=3), sentences, options)
    assert all(h.ids[:4] == (5, 6, 5, 6) for h in found[0])
    assert any(len(h.ids) > 6 for own in found for h in own)
    for h in found[0]:
        assert not repeats(h.ids[3:], 2)
    for h in found[1]:
        assert "8, 7, 8, 7" in str(h.ids)
    for own in found[2:]:
        assert not any(repeats(h.ids, 2) for h in own)


def test_no_repeat_ngram_works_with_candidate_lists(toy, sentences):
    options = SearchOptions(beam=3, n_best=3, no_repeat_ngram=1, max_ratio=0.0, max_extra=9)
    chosen = torch.tensor([EOS, 9, 4, 6, 5])
    for own in decode_all(toy(symbols=10, seed=5), sentences, options, candidates=lambda _: chosen):
        for h in own:
            assert not repeats(h.ids, 1)
            assert set(h.ids) <= {9, 4, 6, 5}


def test_negative_ngram_size_is_rejected():
    with pytest.raises(RnnsearchError, match="no_repeat_ngram must be at least 0; got -1"):
        SearchOptions(no_repeat_ngram=-1)
