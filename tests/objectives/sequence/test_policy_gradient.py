"""Gradients of sequence objectives equal those of the expectations that they estimate, by enumeration."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rnnsearch.config.sequence import MinimumRiskOptions
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence import hypotheses as hypotheses_module
from rnnsearch.objectives.sequence import policy_gradient
from rnnsearch.objectives.sequence.hypotheses import current_scorer, group_by_length, sample_translations, search_n_best
from rnnsearch.objectives.sequence.policy_gradient import MinimumRisk
from rnnsearch.objectives.sequence.rewards import SentenceBleu
from rnnsearch.text.vocabulary import EOS
from tests.objectives.sequence.toys import (
    GENERATION,
    all_translations,
    assert_splitting_changes_nothing,
    differentiable_log_probs,
    hypotheses_of,
    restrict_vocabulary,
)


def gradients(model, value):
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def with_target(batch, tokens):
    """Return a batch of one sentence with this reference."""
    from dataclasses import replace

    from rnnsearch.data.batch import Stream

    streams = {**batch.streams, batch.direction.target: Stream.from_ids(torch.tensor([tokens]))}
    return replace(batch, streams=streams)


@pytest.mark.parametrize("alpha", [5e-3, 1.0])
def test_minimum_risk_over_all_translations_has_the_gradient_of_the_expected_risk(make, batches, monkeypatch, alpha):
    model = restrict_vocabulary(make())
    batch = with_target(batches([0]), [4, 5, EOS])
    translations = all_translations()
    drawn = hypotheses_of(translations)
    memories = model.encode(batch.sources)
    with torch.no_grad():
        log_probs = drawn.log_probs.clone()
        log_probs[:, 0] = differentiable_log_probs(model, drawn, memories).float()
    monkeypatch.setattr(policy_gradient, "sample_translations", lambda *_: drawn._replace(log_probs=log_probs))

    objective = MinimumRisk(MinimumRiskOptions(alpha=alpha), Likelihood(), GENERATION)
    loss = objective(model, batch, BatchRng(1))

    reward = SentenceBleu(None, GENERATION.detokenize)
    words = [[token for token in tokens if token != EOS] for tokens in translations]
    risks = 1 - torch.tensor(reward.start(words, [[4, 5]] * len(words))())
    q = (alpha * differentiable_log_probs(model, drawn, memories)).softmax(0)
    for result, expected in zip(gradients(model, loss.total), gradients(model, (q * risks).sum()), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-8)
    assert 1 - float(loss.statistics["reward.sum"]) / len(words) == pytest.approx(float(risks.mean()))


def test_samples_have_the_log_probabilities_of_a_forced_pass(make, batches):
    model = restrict_vocabulary(make())
    batch = batches([0, 1, 2])
    hypotheses = sample_translations(current_scorer(model), batch, 4, 1, GENERATION.limit)
    assert len(hypotheses.ids) == 12
    forced = differentiable_log_probs(model, hypotheses, model.encode(batch.sources))
    torch.testing.assert_close(hypotheses.log_probs.sum(1).double(), forced.detach(), rtol=1e-4, atol=1e-5)


def test_samples_follow_the_distribution_of_the_model(make, batches):
    model = restrict_vocabulary(make())
    batch = batches([0])
    translations = all_translations()
    every = hypotheses_of(translations)
    probabilities = differentiable_log_probs(model, every, model.encode(batch.sources)).exp().detach().numpy()
    assert probabilities.sum() == pytest.approx(1.0)
    samples = sample_translations(current_scorer(model), batch, 4000, 1, GENERATION.limit)
    index = {tuple(tokens): n for n, tokens in enumerate(translations)}
    counts = np.zeros(len(translations))
    for tokens, mask in zip(samples.ids.tolist(), samples.mask.tolist(), strict=True):
        counts[index[tuple(token for token, real in zip(tokens, mask, strict=True) if real)]] += 1
    assert np.abs(counts / 4000 - probabilities).max() < 4 * 0.5 / np.sqrt(4000)


@pytest.mark.parametrize("candidates", ["samples", "n-best"])
def test_splitting_a_batch_changes_nothing(make, batches, candidates):
    options = MinimumRiskOptions(samples=5, alpha=0.5, candidates=candidates, likelihood=0.3)
    objective = MinimumRisk(options, Likelihood(), GENERATION)
    assert_splitting_changes_nothing(objective, restrict_vocabulary(make()), batches([0, 1, 2]))


def test_likelihood_weight_adds_the_loss_of_the_references(make, batches):
    model = restrict_vocabulary(make())
    batch = batches([0, 1])
    without = MinimumRisk(MinimumRiskOptions(samples=3), Likelihood(), GENERATION)(model, batch, BatchRng(1))
    mixed = MinimumRisk(MinimumRiskOptions(samples=3, likelihood=0.5), Likelihood(), GENERATION)(
        model, batch, BatchRng(1)
    )
    likelihood = Likelihood()(model, batch, BatchRng(1))
    assert float(mixed.total.detach()) == pytest.approx(float((without.total + 0.5 * likelihood.total).detach()))
    torch.testing.assert_close(without.nll, likelihood.nll)
    assert torch.equal(mixed.nll, likelihood.nll)


def test_likelihood_of_the_references_is_computed_once(make, batches, monkeypatch):
    passes = []
    forced = Likelihood.loss_and_pass
    monkeypatch.setattr(Likelihood, "loss_and_pass", lambda *args: passes.append(1) or forced(*args))
    model = restrict_vocabulary(make())
    MinimumRisk(MinimumRiskOptions(samples=3), Likelihood(), GENERATION)(model, batches([0, 1]), BatchRng(1))
    assert not passes


def test_n_best_candidates_are_those_of_beam_search(make, batches):
    model = restrict_vocabulary(make())
    batch = batches([0])
    best = search_n_best(current_scorer(model), batch, 4, GENERATION.limit)
    every = hypotheses_of(all_translations())
    log_probs = differentiable_log_probs(model, every, model.encode(batch.sources)).detach()
    assert best.log_probs.sum(1).max() <= log_probs.max() + 1e-5
    assert len({*map(tuple, best.ids.tolist())}) == 4


def test_groups_of_similar_length_have_every_hypothesis_once(monkeypatch):
    monkeypatch.setattr(hypotheses_module, "MIN_GROUP_ROWS", 1)
    # Two sentences with translations of 7 to 1 and of 1 to 7 tokens
    translations = [[4] * length for length in (*range(7, 0, -1), *range(1, 8))]
    drawn = hypotheses_of(translations)
    groups = group_by_length(drawn, 2)
    assert len(groups) == hypotheses_module.MAX_LENGTH_GROUPS
    assert sorted(torch.cat([group.rows for group in groups]).tolist()) == list(range(14))
    for group in groups:
        assert group.hypotheses.words() == [translations[row] for row in group.rows.tolist()]
        assert [row // 7 for row in group.rows.tolist()] == sorted(row // 7 for row in group.rows.tolist())
    positions = sum(group.hypotheses.ids.numel() for group in groups)
    assert positions == 2 * (2 * 2 + 2 * 4 + 5 + 6 + 7)
