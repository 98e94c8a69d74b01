"""Priors on the attention that each source token receives equal loops written from the papers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rnnsearch.config import ObjectiveConfig
from rnnsearch.objectives import penalties
from rnnsearch.objectives.attention_penalties import DoublyStochastic, GlobalFertility, RemainingCoverage
from rnnsearch.objectives.likelihood import Likelihood
from tests.models import reference as paper
from tests.models.reference import within
from tests.objectives.passes import passed, real_weights

FERTILITY = {"fertility": {"size": 3}}
COVERAGE = {"attention": {"features": ["coverage-embedding"], "coverage_size": 3}}


def test_doubly_stochastic_penalty_equals_the_paper(make, batches):
    made = passed(make(), batches([0, 1, 2]))
    expected = 0.0
    for row in range(3):
        alpha = real_weights(made, row)
        for j in range(alpha.shape[1] - 1):  # without EOS
            received = 0.0
            for i in range(alpha.shape[0]):
                received += alpha[i, j]
            expected += (1 - received) ** 2
    assert DoublyStochastic()(made).item() == pytest.approx(expected, rel=1e-6)


def test_global_fertility_penalty_equals_the_paper(make, batches):
    model = make(**FERTILITY)
    made = passed(model, batches([0, 1, 2]))
    p = {name: value.detach().numpy() for name, value in model.auxiliary.fertility.named_parameters()}
    expected = 0.0
    for row in range(3):
        alpha = real_weights(made, row)
        for j in range(alpha.shape[1] - 1):
            h = made.memory.annotations[row, j].detach().numpy()
            hidden = np.tanh(p["hidden.weight"] @ h + p["hidden.bias"])
            beyond_one, log_variance = p["moments.weight"] @ hidden + p["moments.bias"]
            mean, variance = 1 + beyond_one, np.exp(log_variance) + 0.01
            received = sum(alpha[i, j] for i in range(len(alpha)))
            density = np.exp(-((received - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
            expected -= np.log(density)
    assert GlobalFertility()(made).item() == pytest.approx(expected, rel=1e-6)


def test_coverage_embedding_penalty_equals_the_paper(make, batches):
    """sum_j ||c_j|| at EOS, where each target word has updated the coverage embeddings c_j."""
    model = make(**COVERAGE)
    made, feature = passed(model, batches([0, 1, 2])), model.decoder.attention.features[0]
    p = {name: value.detach().numpy() for name, value in feature.named_parameters()}
    source, target = (table.weight.detach().numpy() for table in (model.source_embedding, model.target_embedding))
    gates = {name: value.detach().numpy() for name, value in model.decoder.cell.input.named_parameters()}
    expected = 0.0
    for row in range(3):
        alpha = real_weights(made, row)
        for j in range(alpha.shape[1] - 1):
            c = p["full.weight"] @ source[made.batch.source.ids[row, j]]
            for t in range(alpha.shape[0] - 1):  # all words except EOS
                y = gates["weight"] @ target[made.batch.target.ids[row, t]] + gates["bias"]
                told = paper.inputs(within(p, "cell"), np.concatenate([[alpha[t, j]], y]))
                c = paper.gru(within(p, "cell"), told, (c,))[0]
            expected += np.sqrt((c**2).sum())
    assert RemainingCoverage()(made).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("penalty", [DoublyStochastic(), GlobalFertility(), RemainingCoverage()])
def test_penalties_ignore_padding_and_reach_attention(make, batches, penalty):
    model = make(**FERTILITY, **COVERAGE)
    whole = penalty(passed(model, batches([0, 1, 2])))
    alone = sum(penalty(passed(model, batches([n]))).item() for n in range(3))
    assert whole.item() == pytest.approx(alone, rel=1e-9)
    whole.backward()
    for parameter in (model.decoder.attention.score.query.weight, model.encoder.forward_cell.input.weight):
        assert parameter.grad.abs().max() > 0


def test_total_is_the_weighted_sum(make, batches):
    model, batch = make(**FERTILITY, **COVERAGE), batches([0, 1, 2])
    fertility = {"size": 3, "weight": 0.5}
    config = ObjectiveConfig.model_validate({"doubly_stochastic": 0.3, "fertility": fertility, "coverage": 0.2})
    loss = Likelihood(0.1, penalties(config))(model, batch, None)
    plain, made = Likelihood(0.1).loss_and_pass(model, batch, None)
    expected = (
        plain.total + 0.3 * DoublyStochastic()(made) + 0.5 * GlobalFertility()(made) + 0.2 * RemainingCoverage()(made)
    )
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-9)
    assert loss.nll.item() == pytest.approx(plain.nll.item(), rel=1e-9)
    with torch.no_grad():
        held_out = Likelihood(0.1, penalties(config))(model, batch, None)
    assert held_out.total.item() == pytest.approx(plain.total.item(), rel=1e-6)


def test_nll_is_per_token(make, batches):
    model, batch = make(), batches([0, 1, 2])
    loss, made = Likelihood(0.1).loss_and_pass(model, batch, None)
    log_p = model.output.log_probs(made.decoder_outputs.readout).gather(2, batch.target.ids[:, :, None])[:, :, 0]
    assert torch.allclose(made.nll, -log_p * batch.target.mask)
    assert not made.nll.requires_grad and loss.nll.item() == pytest.approx(made.nll.sum().item())
