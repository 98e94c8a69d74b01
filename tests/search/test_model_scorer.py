"""A translation model as a Scorer: what the search says of it is what the model says in training."""

import numpy as np
import pytest
import torch

from rnnsearch.search.beam import beam
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import decode_all, forced_all, make_sources
from rnnsearch.search.greedy import greedy
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.scorer import Scorer
from rnnsearch.text.vocabulary import BOS, EOS

CPU = torch.device("cpu")


def test_forced_scores_and_attention_are_those_of_unroll(model):
    target = [5, 9, 4, 11]
    [found] = forced_all(ModelScorer(model), [[7, 8, 9]], [target])
    source = make_sources([[7, 8, 9]], CPU)["source"]
    with torch.no_grad():
        unrolled = model.unroll(torch.tensor([[BOS, *target]]), model.encode({"source": source}))
        log_probs = model.log_probs(unrolled.readout[0])
    expected = log_probs.gather(1, torch.tensor([[*target, EOS]]).T)[:, 0]
    assert found.token_scores == pytest.approx(expected.tolist(), rel=1e-5)
    np.testing.assert_allclose(found.attention["source"], unrolled.reading.alpha[0].numpy(), atol=1e-5)


def test_beam_and_greedy_agree_with_forced_decoding(model, sentences):
    scorer, options = ModelScorer(model), SearchOptions(beam=4)
    assert isinstance(scorer, Scorer)
    for width in (1, 4):
        found = [h for [h] in decode_all(scorer, sentences, SearchOptions(beam=width, max_extra=3), 4)]
        again = forced_all(scorer, sentences, [h.ids for h in found])
        for h, forced in zip(found, again, strict=True):
            scored = len(h.token_scores)
            assert h.token_scores == pytest.approx(forced.token_scores[:scored], rel=1e-4, abs=1e-5)
            np.testing.assert_allclose(h.attention["source"], forced.attention["source"][:scored], atol=1e-5)
    sources = make_sources(sentences, CPU)
    one = SearchOptions(beam=1, max_extra=3)
    assert beam(scorer, sources, one) == greedy(scorer, sources, one)
    assert beam(scorer, sources, options) != greedy(scorer, sources, options)


@pytest.mark.cuda
def test_search_on_a_gpu_is_search_on_a_cpu(model, sentences):
    options = SearchOptions(beam=3, n_best=3, min_length=1, prefix=((5,),) * 6, compact_at=0.0)
    here = decode_all(ModelScorer(model), sentences, options, 4)
    there = decode_all(ModelScorer(model.cuda()), sentences, options, 4)
    again = forced_all(ModelScorer(model), sentences, [hypotheses[0].ids for hypotheses in there])
    for one, other, forced in zip(here, there, again, strict=True):
        assert [h.ids for h in one] == [h.ids for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], rel=1e-3, abs=1e-4)
        scored = len(other[0].token_scores)
        assert other[0].token_scores == pytest.approx(forced.token_scores[:scored], rel=1e-3, abs=1e-4)
