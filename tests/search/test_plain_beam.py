"""Batched beam search equals its definition in loops over hypotheses."""

import pytest
import torch

from rnnsearch.search.beam import beam_search
from rnnsearch.search.decode import make_sources
from rnnsearch.search.options import SearchOptions
from rnnsearch.text.vocabulary import BOS, EOS, PAD


def plain_beam(scorer, sentence, most, options):
    """Return (ids, score) of the n best finished hypotheses of one sentence, and the number of steps."""
    memory, state = scorer.start(make_sources([sentence], torch.device("cpu")), None)
    live, finished = [((BOS,), 0.0, state)], []
    for position in range(1, most + 2):
        looked_at = []
        for ids, log_prob, state in live:
            step = scorer.step(memory, state, torch.tensor([ids[-1]]))
            for y, score in enumerate(step.scores[0].tolist()):
                if y not in (PAD, BOS):
                    looked_at.append(((*ids, y), log_prob + score, step.state))
        looked_at.sort(key=lambda entry: -entry[1])
        ends = [entry[0][-1] == EOS for entry in looked_at]
        for entry in (e for e, end in zip(looked_at[: options.beam], ends, strict=False) if end):
            finished.append((entry[0][1:-1], entry[1] / position**options.length_penalty))
        live = [e for e, end in zip(looked_at, ends, strict=True) if not end][: options.beam]
        finished.sort(key=lambda entry: -entry[1])
        best = finished[: options.n_best]
        if len(finished) >= options.beam:
            break
        bound = live[0][1] / (most + 1) ** options.length_penalty
        if len(best) == options.n_best and bound <= best[-1][1]:
            break
    return best, position


@pytest.mark.parametrize("n_best", [1, 2, 3])
@pytest.mark.parametrize("penalty", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_batched_beam_equals_the_reference_beam(toy, sentences, seed, penalty, n_best):
    options = SearchOptions(beam=3, n_best=n_best, length_penalty=penalty, max_ratio=1.0, max_extra=8)
    end = (-3.0, -1.0, 0.0, 1.0)[seed]
    found = beam_search(toy(seed=seed, end=end), make_sources(sentences, torch.device("cpu")), options)
    for sentence, hypotheses in zip(sentences, found, strict=True):
        expected, steps = plain_beam(toy(seed=seed, end=end), sentence, len(sentence) + 8, options)
        finished = [h for h in hypotheses if h.finished]
        assert [h.ids for h in finished] == [ids for ids, _ in expected]
        assert [h.score for h in finished] == pytest.approx([score for _, score in expected], rel=1e-5)
        scorer = toy(seed=seed, end=end)
        beam_search(scorer, make_sources([sentence], torch.device("cpu")), options)
        assert len(scorer.rows) == steps


def plain_beam_to_the_top(scorer, sentence, most, options):
    """Return (ids, score, finished) of OpenNMT-py's beam.

    A hypothesis at its maximum length counts as finished, and one that ends leaves its slot empty in that step.
    """
    memory, state = scorer.start(make_sources([sentence], torch.device("cpu")), None)
    live, ended = [((BOS,), 0.0, state)], []
    for position in range(1, most + 1):
        grown = []
        for ids, log_prob, state in live:
            step = scorer.step(memory, state, torch.tensor([ids[-1]]))
            for y, score in enumerate(step.scores[0].tolist()):
                if y not in (PAD, BOS):
                    grown.append(((*ids, y), log_prob + score, step.state))
        grown = sorted(grown, key=lambda entry: -entry[1])[: options.beam]
        over = [entry[0][-1] == EOS or position == most for entry in grown]
        for (ids, log_prob, _), done in zip(grown, over, strict=True):
            if done:
                end = ids[-1] == EOS
                ended.append((ids[1:-1] if end else ids[1:], log_prob / position**options.length_penalty, end))
        if over[0] and len(ended) >= options.n_best:
            break
        live = [entry for entry, done in zip(grown, over, strict=True) if not done]
    return sorted(ended, key=lambda entry: -entry[1])[: options.n_best], position


@pytest.mark.parametrize("n_best", [1, 3])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_stop_at_top_equals_the_reference_beam(toy, sentences, seed, penalty, n_best):
    options = SearchOptions(beam=3, n_best=n_best, length_penalty=penalty, max_ratio=1.0, max_extra=4, stop="top")
    end = (-3.0, -1.0, 0.0, 1.0, -40.0)[seed]
    found = beam_search(toy(seed=seed, end=end), make_sources(sentences, torch.device("cpu")), options)
    for sentence, hypotheses in zip(sentences, found, strict=True):
        expected, steps = plain_beam_to_the_top(toy(seed=seed, end=end), sentence, len(sentence) + 4, options)
        assert [(h.ids, h.finished) for h in hypotheses] == [(ids, finished) for ids, _, finished in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for _, score, _ in expected], rel=1e-5)
        scorer = toy(seed=seed, end=end)
        beam_search(scorer, make_sources([sentence], torch.device("cpu")), options)
        assert len(scorer.rows) == steps
