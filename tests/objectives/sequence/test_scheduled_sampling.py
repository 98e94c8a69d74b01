"""Scheduled sampling equals teacher forcing at rate 0, and reads the tokens of a simple loop at other rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rnnsearch.config.sequence import (
    ExponentialDecayOptions,
    InverseSigmoidDecayOptions,
    LinearDecayOptions,
    ScheduledSamplingOptions,
)
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence.scheduled_sampling import DECAYS, ScheduledSampling, mixed_inputs, replaced_inputs
from rnnsearch.search.sampling import stream_keys
from rnnsearch.text.vocabulary import BOS, PAD
from tests.objectives.sequence.test_policy_gradient import gradients
from tests.objectives.sequence.toys import GENERATION, assert_splitting_changes_nothing

LIKELIHOOD = Likelihood()


def constant(value: float) -> LinearDecayOptions:
    return LinearDecayOptions(start=value, minimum=value)


def objective(epsilon: float, references: Likelihood = LIKELIHOOD, **options) -> ScheduledSampling:
    options = ScheduledSamplingOptions(decay=constant(epsilon), **options)
    return ScheduledSampling(options, references, GENERATION)


@pytest.fixture
def with_dropout(make):
    """Return a model with dropout of inputs, annotations and readouts."""
    model = make()
    model.dropout = model.dropout.model_copy(update={"embedding": 0.3, "annotations": 0.2, "readout": 0.3})
    return model


@pytest.mark.parametrize("per", ["token", "sentence"])
def test_rate_of_0_equals_teacher_forcing_bit_for_bit(with_dropout, batches, per):
    batch = batches([0, 1, 2])
    likelihood = Likelihood(0.1)
    loss = objective(1.0, likelihood, per=per)(with_dropout, batch, BatchRng(3))
    expected = likelihood(with_dropout, batch, BatchRng(3))
    assert torch.equal(loss.total, expected.total)
    assert torch.equal(loss.nll, expected.nll)
    for result, gradient in zip(
        gradients(with_dropout, loss.total), gradients(with_dropout, expected.total), strict=True
    ):
        assert torch.equal(result, gradient)


@pytest.mark.parametrize("choice", ["sample", "argmax"])
def test_inputs_are_the_models_tokens_given_the_inputs_before(make, batches, choice):
    model = make()
    batch = batches([0, 1, 2])
    keys = stream_keys(batch.sources, 1, 5)
    is_replaced = replaced_inputs(keys, batch.target.mask[:, 1:], 0.6, False)
    assert 0 < is_replaced.sum() < batch.target.mask[:, 1:].sum()
    mixed = mixed_inputs(model, batch, is_replaced, keys if choice == "sample" else None)
    reference = batch.target.previous()
    assert torch.equal(mixed[:, 1:][~is_replaced], reference[:, 1:][~is_replaced])
    # The probabilities of each replaced token, given the mixed prefix, by a whole pass.
    log_p = model.output.log_probs(model.unroll(mixed, model.encode(batch.sources)).readout)
    log_p[:, :, [PAD, BOS]] = -torch.inf
    for row, position in is_replaced.nonzero().tolist():
        token = mixed[row, position + 1]
        if choice == "argmax":
            assert token == log_p[row, position].argmax()
        else:
            assert token not in (PAD, BOS)


def test_sampled_inputs_follow_the_distribution_of_the_model(make, batches):
    model = make()
    batch = batches([0])
    p = model.output.log_probs(model.unroll(batch.target.previous(), model.encode(batch.sources)).readout)[0, 0]
    p[[PAD, BOS]] = -torch.inf
    p = p.softmax(0).detach().numpy()
    is_replaced = torch.zeros_like(batch.target.mask[:, 1:])
    is_replaced[:, 0] = True
    counts = np.zeros(len(p))
    for seed in range(600):
        mixed = mixed_inputs(model, batch, is_replaced, stream_keys(batch.sources, 1, seed))
        counts[mixed[0, 1]] += 1
    assert np.abs(counts / 600 - p).max() < 4 * 0.5 / math.sqrt(600)


def test_rate_of_1_replaces_all_inputs_but_bos(make, batches):
    batch = batches([0, 1, 2])
    loss = objective(0.0)(make(), batch, BatchRng(1))
    assert loss.statistics["inputs.replaced"] == loss.statistics["inputs.count"] == batch.target.mask[:, 1:].sum()
    assert objective(0.0).report(loss.statistics)["sampled_inputs"] == 1.0


def test_sentences_are_replaced_as_a_whole(batches):
    batch = batches([0, 1, 2])
    numbers = set()
    for seed in range(20):
        is_replaced = replaced_inputs(stream_keys(batch.sources, 1, seed), batch.target.mask[:, 1:], 0.5, True)
        for row, is_input in zip(is_replaced, batch.target.mask[:, 1:], strict=True):
            assert torch.equal(row, is_input) or not row.any()
        numbers.add(tuple(is_replaced.any(1).tolist()))
    assert len(numbers) > 3


@pytest.mark.parametrize("per", ["token", "sentence"])
def test_splitting_a_batch_changes_nothing(with_dropout, batches, per):
    sampled = objective(0.4, per=per, likelihood=0.5)
    whole, halves = assert_splitting_changes_nothing(sampled, with_dropout, batches([0, 1, 2]))
    assert halves[0].statistics["inputs.replaced"] + halves[1].statistics["inputs.replaced"] > 0
    for name, value in whole.statistics.items():
        assert halves[0].statistics[name] + halves[1].statistics[name] == value


def test_likelihood_weight_adds_the_loss_of_the_usual_inputs(make, batches):
    model = make()
    batch = batches([0, 1, 2])
    mixed = objective(0.3)(model, batch, BatchRng(1)).total
    both = objective(0.3, likelihood=0.5)(model, batch, BatchRng(1)).total
    expected = mixed + 0.5 * Likelihood()(model, batch, None).total
    torch.testing.assert_close(both, expected)


def test_decays_are_those_of_the_paper():
    linear = DECAYS["linear"](LinearDecayOptions(start=1.0, minimum=0.2, updates=100))
    assert [linear(update) for update in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    exponential = DECAYS["exponential"](ExponentialDecayOptions(base=0.99))
    assert exponential(100) == pytest.approx(0.99**100)
    sigmoid = DECAYS["inverse-sigmoid"](InverseSigmoidDecayOptions(k=50.0))
    assert sigmoid(200) == pytest.approx(50 / (50 + math.exp(200 / 50)))
    assert sigmoid(10**9) == 0.0


def test_rate_of_an_update_follows_its_number(make, batches):
    options = ScheduledSamplingOptions(decay=LinearDecayOptions(start=1.0, minimum=0.0, updates=10))
    sampling = ScheduledSampling(options, Likelihood(), GENERATION)
    counts = []
    for update in (0, 5, 10):
        sampling.before_update(update, 0.0)
        counts.append(int(sampling(make(), batches([0, 1, 2]), BatchRng(1)).statistics["inputs.replaced"]))
    assert counts[0] == 0 < counts[1] < counts[2]
