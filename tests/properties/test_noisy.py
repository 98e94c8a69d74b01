"""Noise in hidden states: every decoder supports it, and native search adds it to the same values."""

import numpy as np
import pytest
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.search.noisy import Noisy, NoisyScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.text.vocabulary import BOS

CPU = torch.device("cpu")


def test_native_search_adds_noise_to_the_same_values(plain, make, pairs):
    model = make(plain).eval()
    sources = make_sources([source for source, _ in pairs], CPU)
    keys, loud = np.arange(len(pairs), dtype=np.uint64), np.arange(len(pairs)) > 0
    each = [
        NoisyScorer(scorer, 0.7, keys, loud) for scorer in (ModelScorer(model), fastest_scorer(model, "fp32").scorer)
    ]
    started = [scorer.start(sources, None) for scorer in each]
    states = [state for _, state in started]
    y = torch.full((len(pairs),), BOS)
    if plain.model.decoder.type == "bi-scale":
        for scorer, (memory, state) in zip(each, started, strict=True):
            with pytest.raises(RnnsearchError, match="need a decoder with a recurrent cell"):
                scorer.step(memory, state, y)
        return
    with torch.inference_mode():
        for symbol in (5, 7, 4):
            both = zip(each, started, states, strict=True)
            steps = [scorer.step(memory, state, y) for scorer, (memory, _), state in both]
            one, other = (step.log_probs() for step in steps)
            torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-4)
            states, y = [step.state for step in steps], torch.full_like(y, symbol)
        quiet, (memory, state) = ModelScorer(model), started[0]
        first = quiet.step(memory.inner, state.inner, torch.full_like(y, BOS)).log_probs()
        loud = each[0].step(*started[0], torch.full_like(y, BOS)).log_probs()
    torch.testing.assert_close(first[0], loud[0])
    assert not torch.allclose(first[1:], loud[1:])


def test_chains_without_noise_equal_greedy_search(plain, make, pairs):
    if plain.model.decoder.type == "bi-scale":
        return
    scorer, sources = fastest_scorer(make(plain).eval(), "fp32").scorer, [source for source, _ in pairs]
    options = SearchOptions(beam=1, max_ratio=1.0, max_extra=3)
    silent = decode_all(scorer, sources, options)
    found = decode_all(scorer, sources, SearchOptions(beam=3, max_ratio=1.0, max_extra=3, variant=Noisy(3, 0.0)))
    for [own], [best] in zip(silent, found, strict=True):
        assert best.ids == own.ids
        assert best.log_prob == pytest.approx(own.log_prob, abs=1e-3)
