"""Training, forced decoding, greedy search and beam search give the same scores for the same sentence."""

import numpy as np
import pytest
import torch

from rnnsearch.data.batches import make_batch
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.decode import make_sources
from rnnsearch.search.forced import force_decode
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.text.vocabulary import BOS, EOS, PAD

LIMITS = {"max_ratio": 1.0, "max_extra": 4}


@pytest.fixture
def sources(pairs):
    return make_sources([source for source, _ in pairs], torch.device("cpu"))


def test_training_nll_equals_forced_score(system, make, batch, pairs, sources):
    model = make(system)
    found = force_decode(ModelScorer(model), sources, [target for _, target in pairs])
    assert -sum(h.log_prob for h in found) == pytest.approx(Likelihood()(model, batch, None).nll.item(), rel=1e-5)


def test_greedy_takes_the_best_token_at_every_step(system, make, pairs, sources):
    scorer = ModelScorer(make(system))
    for (source, _), [found] in zip(pairs, greedy_search(scorer, sources, SearchOptions(**LIMITS)), strict=True):
        memory, state = scorer.start(make_sources([source], torch.device("cpu")), None)
        ids = [BOS]
        while ids[-1] != EOS and len(ids) <= len(source) + LIMITS["max_extra"] + 1:
            step = scorer.step(memory, state, torch.tensor([ids[-1]]))
            log_probs, state = step.log_probs()[0], step.state
            log_probs[[PAD, BOS]] = -torch.inf
            ids.append(int(log_probs.argmax()))
        assert found.ids == tuple(ids[1:-1]), "the last token must be EOS or exceed the limit"
        assert found.finished == (ids[-1] == EOS)


def test_hypotheses_can_be_trained_on(system, make, pairs, sources):
    """Hypotheses can be targets of a loss, and their attention and scores can be weights in it.

    Search results are ordinary tensors even if the search ran in inference mode.
    """
    model = make(system)
    model.requires_grad_()
    found = [best for [best] in greedy_search(ModelScorer(model), sources, SearchOptions(**LIMITS))]
    batch = make_batch([(source, h.ids) for (source, _), h in zip(pairs, found, strict=True)], range(len(pairs)))
    loss = Likelihood()(model, batch, None)
    assert loss.nll.item() >= -sum(h.log_prob for h in found) - 1e-3, (
        "truncated hypotheses have an additional EOS in the loss"
    )
    weights = [torch.from_numpy(w) for h in found for w in h.attention.values()]
    reward = torch.tensor([h.log_prob for h in found]).mean() - sum(w.square().sum() for w in weights)
    (loss.total * reward).backward()
    (bias,) = (p for name, p in model.output.named_parameters() if name.endswith("bias"))
    assert bias.grad is not None and bias.grad.abs().sum() > 0


def test_beam_scores_equal_forced_scores(system, make, sources, pairs):
    scorer = ModelScorer(make(system))
    found = beam_search(scorer, sources, SearchOptions(beam=4, n_best=3, **LIMITS))
    assert any(h.ids for hypotheses in found for h in hypotheses)
    for rank in range(3):
        best = [hypotheses[min(rank, len(hypotheses) - 1)] for hypotheses in found]
        again = force_decode(scorer, sources, [h.ids for h in best])
        for h, f in zip(best, again, strict=True):
            scored = len(h.token_scores)
            assert h.token_scores == pytest.approx(f.token_scores[:scored], rel=1e-4, abs=1e-5)
            assert h.log_prob == pytest.approx(sum(f.token_scores[:scored]), rel=1e-4)
            assert h.attention.keys() == f.attention.keys()
            for name, weights in h.attention.items():
                np.testing.assert_allclose(weights, f.attention[name][:scored], rtol=1e-5, atol=1e-5)
    assert len(found) == len(pairs)


def test_beam_is_not_worse_than_greedy_on_average(system, make, sources):
    """Over sentences that greedy search finishes, the sum of the beam's log-probabilities is at least the greedy sum.

    For the other sentences, the beam prefers finished hypotheses, which may be less probable.
    """
    scorer = ModelScorer(make(system))
    wide = SearchOptions(beam=12, length_penalty=0.0, **LIMITS)
    found = zip(greedy_search(scorer, sources, wide), beam_search(scorer, sources, wide), strict=True)
    ended = [(first.score, best.score) for [first], [best] in found if first.finished]
    assert sum(best for _, best in ended) >= sum(first for first, _ in ended) - 1e-4
