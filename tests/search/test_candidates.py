"""Candidate lists contain the learned tokens, and a list of all tokens changes nothing."""

import numpy as np
import pytest
import torch

from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.candidate_lists import CandidateLists
from rnnsearch.search.candidates import (
    DEFAULT_FREQUENT_TOKENS,
    MAX_CANDIDATES,
    Candidates,
    learn_candidate_tables,
    load_candidates,
    save_candidate_tables,
)
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.model_scorer import fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.text.vocabulary import EOS
from tests.untrained import BAHDANAU, untrained

CPU = torch.device("cpu")
SENTENCES = [[5, 6, 7], [8, 9, 10, 11], [4]]
LIMITS = {"max_ratio": 1.0, "max_extra": 3}


@pytest.fixture(params=["native", "plain"])
def scorer(request, monkeypatch):
    """Return the fastest scorer of a model, with or without native code."""
    if request.param == "plain":
        monkeypatch.setattr("rnnsearch.search.model_scorer.library", lambda: None)
    return fastest_scorer(untrained(BAHDANAU).model.eval(), "fp32").scorer


@pytest.mark.parametrize("width", [1, 3])
def test_full_candidate_list_equals_full_softmax(scorer, width):
    options = SearchOptions(beam=width, n_best=width, **LIMITS)
    whole = Candidates(CandidateLists(np.full((30, 1), -1), np.arange(scorer.vocabulary), 1, scorer.vocabulary))
    found, expected = (decode_all(scorer, SENTENCES, options, candidates=lists) for lists in (whole, None))
    for hs, es in zip(found, expected, strict=True):
        assert [h.ids for h in hs] == [e.ids for e in es]
        for h, e in zip(hs, es, strict=True):
            assert h.token_scores == pytest.approx(e.token_scores, rel=1e-4, abs=1e-5)


def test_scores_are_renormalised_over_the_candidate_list(scorer):
    lists = Candidates(CandidateLists(np.array([[-1]] * 30), np.array([6, 9]), 1, scorer.vocabulary))
    sources = make_sources(SENTENCES, CPU)
    assert lists(sources).tolist() == [0, 1, 2, EOS, 6, 9]
    for search in (greedy_search, beam_search):
        found = search(scorer, sources, SearchOptions(min_length=1, **LIMITS), lists)
        assert {y for hs in found for h in hs for y in h.ids} <= {1, 6, 9}, "<unk> is always a candidate"
        assert all(h.ids for hs in found for h in hs)
    memory, state = scorer.start(sources, lists(sources))
    step = scorer.step(memory, state, torch.tensor([2, 2, 2]))
    torch.testing.assert_close(step.log_probs().exp().sum(1), torch.ones(3))
    banned = greedy_search(scorer, sources, SearchOptions(banned=frozenset({1, 9}), **LIMITS), lists)
    assert {y for hs in banned for h in hs for y in h.ids} <= {6}


def test_cooccurring_words_become_candidates():
    # 10 is in every source and 20 in every target; 11 occurs with 21, 12 with 22.
    pairs = [([10, 11], [20, 21]), ([10, 12], [22, 20]), ([11, 10], [21, 20]), ([12, 10], [20, 22]), ([], [5])]
    tables = learn_candidate_tables([x for x, _ in pairs], [y for _, y in pairs], 15, 30)
    assert tables["translations"].shape == (15, MAX_CANDIDATES)
    assert tables["translations"][[10, 11, 12], 0].tolist() == [20, 21, 22]
    assert tables["translations"][10].tolist()[:4] == [20, 21, 22, -1]
    assert (tables["translations"][:10] == -1).all()
    assert tables["frequent"].tolist()[:4] == [20, 21, 22, 5]
    lists = Candidates(CandidateLists(tables["translations"].numpy(), tables["frequent"][:1].numpy(), 1, 30))
    assert lists(make_sources([[11], [12]], CPU)).tolist() == [0, 1, 2, 3, 20, 21, 22]
    assert lists(make_sources([[14]], CPU)).tolist() == [0, 1, 2, 3, 20]


def test_large_corpus_is_sampled_evenly(monkeypatch):
    monkeypatch.setattr("rnnsearch.search.candidates.MAX_TRAINING_PAIRS", 4)
    tables = learn_candidate_tables([[5], [6], [7], [8]] * 2, [[5], [6], [7], [8]] * 2, 10, 10)
    assert tables["translations"][5:9, 0].tolist() == [5, -1, 7, -1]
    assert len(tables["frequent"]) <= DEFAULT_FREQUENT_TOKENS


def test_empty_corpus_gives_empty_lists():
    with pytest.raises(RnnsearchError, match="must be learned from sentence pairs with text on both sides; got none"):
        learn_candidate_tables([[], [5]], [[4], []], 10, 10)


def test_candidate_lists_are_stored_in_the_model_folder(tmp_path):
    save_candidate_tables(tmp_path, learn_candidate_tables([[5, 6]], [[7, 8]], 10, 12))
    assert load_candidates(tmp_path, 1, 10, 12)(make_sources([[5]], CPU)).tolist() == [0, 1, 2, 3, 7, 8]
    for source, target in ((9, 12), (10, 8)):
        with pytest.raises(ModelError, match=r"candidates\.safetensors: must fit this model's vocabularies"):
            load_candidates(tmp_path, 1, source, target)
    whole = torch.ones(10, MAX_CANDIDATES, dtype=torch.int32)
    for frequent in (torch.tensor([-9], dtype=torch.int32), torch.tensor([1])):
        save_candidate_tables(tmp_path, {"translations": whole, "frequent": frequent})
        with pytest.raises(ModelError, match=r"candidates\.safetensors: must fit this model's vocabularies"):
            load_candidates(tmp_path, 1, 10, 12)
    save_candidate_tables(tmp_path, {"translations": whole, "frequent": torch.tensor([torch.nan])})
    with pytest.raises(ModelError, match=r"candidates\.safetensors: must contain finite numbers"):
        load_candidates(tmp_path, 1, 10, 12)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"create it with `rnnsearch candidates \S+ SRC TGT`"):
        load_candidates(tmp_path / "empty", 1, 10, 12)
