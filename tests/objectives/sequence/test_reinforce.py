"""REINFORCE and MIXER have the gradient of the expected reward, for every baseline, by enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rnnsearch.config.sequence import MixerOptions, ReinforceOptions
from rnnsearch.data.batch import Stream
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence import reinforce
from rnnsearch.objectives.sequence.hypotheses import current_scorer, sample_translations, search_n_best
from rnnsearch.objectives.sequence.objective import NUM_REWARDS, REWARD_SUM
from rnnsearch.objectives.sequence.reinforce import Mixer, SequenceReinforce, mixer_delta
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

BASELINES = ("average", "learned", "self-critical")
REFERENCE = [4, 5, EOS]


def options_of(baseline="self-critical", cls=ReinforceOptions, **options):
    return cls.model_validate({"baseline": {"type": baseline}, **options})


def make_reinforced(make, baseline, method="reinforce"):
    """Return a model with a baseline of nonzero values, about as large as rewards."""
    model = restrict_vocabulary(make(sequence={"type": method, "baseline": {"type": baseline}}))
    if baseline == "average":
        with torch.no_grad():
            model.auxiliary.reward_baseline.update(torch.tensor(0.3))
    for parameter in model.auxiliary.reward_baseline.parameters():
        if parameter.requires_grad:
            parameter.data *= 0.2
    return model


def with_target(batch, tokens):
    """Return a batch of one sentence with this reference."""
    return replace(batch, streams={**batch.streams, batch.direction.target: Stream.from_ids(torch.tensor([tokens]))})


def policy_parameters(model):
    return [p for name, p in model.named_parameters() if p.requires_grad and "auxiliary" not in name]


def gradient(model, value):
    """Return the gradient of the parameters that translate, in one vector."""
    parameters = policy_parameters(model)
    gradients = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in gradients])


def rewards_of(translations, reference=REFERENCE):
    words = [[token for token in tokens if token != EOS] for tokens in translations]
    reference_words = [token for token in reference if token != EOS]
    reward = SentenceBleu(None, GENERATION.detokenize)
    return torch.tensor(reward.start(words, [reference_words] * len(words))())


def mean_gradient(model, objective, batch, translations, probabilities, monkeypatch):
    """Return the mean of the objective's gradient over samples with these probabilities."""
    total = 0.0
    for tokens, probability in zip(translations, probabilities.tolist(), strict=True):
        monkeypatch.setattr(reinforce, "sample_translations", lambda *_, tokens=tokens: hypotheses_of([tokens]))
        total = total + probability * gradient(model, objective(model, batch, BatchRng(1)).total)
    return total


@pytest.mark.parametrize("baseline", BASELINES)
def test_mean_gradient_over_all_samples_is_that_of_the_expected_reward(make, batches, monkeypatch, baseline):
    model = make_reinforced(make, baseline)
    batch = with_target(batches([0]), REFERENCE)
    translations = all_translations()
    log_p = differentiable_log_probs(model, hypotheses_of(translations), model.encode(batch.sources))
    expected = gradient(model, -(log_p.exp() * rewards_of(translations)).sum())
    objective = SequenceReinforce(options_of(baseline), Likelihood(), GENERATION)
    result = mean_gradient(model, objective, batch, translations, log_p.detach().exp(), monkeypatch)
    assert expected.norm() > 1e-3
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("baseline", BASELINES)
def test_gradient_of_many_samples_approaches_that_of_the_expected_reward(make, batches, baseline):
    model = make_reinforced(make, baseline)
    batch = with_target(batches([0]), REFERENCE)
    translations = all_translations()
    log_p = differentiable_log_probs(model, hypotheses_of(translations), model.encode(batch.sources))
    expected = gradient(model, -(log_p.exp() * rewards_of(translations)).sum())
    errors = []
    for samples in (20, 4000):
        objective = SequenceReinforce(options_of(baseline, samples=samples), Likelihood(), GENERATION)
        errors.append(float((gradient(model, objective(model, batch, BatchRng(3)).total) - expected).norm()))
    assert errors[1] < 0.2 * float(expected.norm())
    assert errors[1] < errors[0] / 4


def continuations(prefix):
    return [tokens for tokens in all_translations() if tokens[: len(prefix)] == prefix and tokens != prefix]


@pytest.mark.parametrize("baseline", BASELINES)
def test_mixer_has_the_gradient_of_the_prefix_and_of_the_expected_reward(make, batches, monkeypatch, baseline):
    model = make_reinforced(make, baseline, "mixer")
    batch = with_target(batches([0]), REFERENCE)
    objective = Mixer(options_of(baseline, MixerOptions, step=2), Likelihood(), GENERATION)
    objective.before_update(1, 0.0)
    translations = continuations(REFERENCE[:1])  # the last two of three tokens are sampled
    memories = model.encode(batch.sources)
    log_p = differentiable_log_probs(model, hypotheses_of(translations), memories)
    prefix_log_p = differentiable_log_probs(model, hypotheses_of([REFERENCE[:1]]), memories)[0]
    probabilities = (log_p - prefix_log_p).exp()
    assert float(probabilities.detach().sum()) == pytest.approx(1.0)
    expected = gradient(model, -prefix_log_p - (probabilities * rewards_of(translations)).sum())
    result = mean_gradient(model, objective, batch, translations, probabilities.detach(), monkeypatch)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-9)


def test_samples_continue_the_prefix_of_the_reference(make, batches):
    model = restrict_vocabulary(make())
    batch = batches([0, 1])
    scorer = current_scorer(model)
    prefixes = [[5], [6, 4]]
    samples = sample_translations(scorer, batch, 50, 1, GENERATION.limit, prefixes)
    for hypotheses in (samples, search_n_best(scorer, batch, 1, GENERATION.limit, prefixes)):
        words = hypotheses.words()
        half = len(words) // 2
        assert all(row[:1] == [5] for row in words[:half])
        assert all(row[:2] == [6, 4] for row in words[half:])
    assert len({tuple(row) for row in samples.words()}) > 4


def test_samples_after_a_prefix_follow_the_distribution_of_the_model(make, batches):
    model = restrict_vocabulary(make())
    batch = batches([0])
    samples = sample_translations(current_scorer(model), batch, 4000, 1, GENERATION.limit, [[5]])
    translations = continuations([5])
    log_p = differentiable_log_probs(model, hypotheses_of(translations), model.encode(batch.sources))
    probabilities = log_p.detach().softmax(0)
    counts = dict.fromkeys(map(tuple, translations), 0)
    for tokens, mask in zip(samples.ids.tolist(), samples.mask.tolist(), strict=True):
        counts[tuple(token for token, real in zip(tokens, mask, strict=True) if real)] += 1
    errors = torch.tensor(list(counts.values())) / 4000 - probabilities
    assert float(errors.abs().max()) < 4 * 0.5 / 4000**0.5


def test_delta_of_mixer_rises_by_steps_of_epochs():
    options = MixerOptions(cross_entropy_epochs=2, epochs_per_step=0.5, step=3)
    assert [mixer_delta(options, epoch) for epoch in (0.0, 1.99, 2.0, 2.4, 2.5, 3.0)] == [0, 0, 3, 3, 6, 9]


def test_mixer_begins_with_the_likelihood_and_ends_with_reinforce(make, batches):
    model = make_reinforced(make, "learned", "mixer")
    batch = batches([0, 1])
    options = options_of("learned", MixerOptions, cross_entropy_epochs=1, step=100)
    objective = Mixer(options, Likelihood(0.1), GENERATION)
    objective.before_update(1, 0.5)
    loss = objective(model, batch, BatchRng(1))
    torch.testing.assert_close(loss.total, Likelihood(0.1)(model, batch, BatchRng(1)).total)
    assert NUM_REWARDS not in loss.statistics
    assert objective.report(loss.statistics) == {}

    objective.before_update(2, 1.0)
    late = objective(model, batch, BatchRng(1))
    reinforced = SequenceReinforce(options_of("learned"), Likelihood(), GENERATION)(model, batch, BatchRng(1))
    assert torch.equal(late.total, reinforced.total)


@pytest.mark.parametrize("epochs", [0, 1])
def test_mixer_has_a_gradient_before_the_first_update(make, batches, epochs):
    # Training times a pass to estimate its duration.
    model = make_reinforced(make, "learned", "mixer")
    objective = Mixer(options_of("learned", MixerOptions, cross_entropy_epochs=epochs), Likelihood(), GENERATION)
    assert float(gradient(model, objective(model, batches([0, 1]), BatchRng(1)).total).norm()) > 0


@pytest.mark.parametrize("method", ["reinforce", "mixer"])
@pytest.mark.parametrize("baseline", BASELINES)
def test_splitting_a_batch_changes_nothing(make, batches, baseline, method):
    model = make_reinforced(make, baseline, method)
    objective = SequenceReinforce(options_of(baseline, samples=3, likelihood=0.3), Likelihood(), GENERATION)
    if method == "mixer":
        objective = Mixer(options_of(baseline, MixerOptions, samples=3, step=2), Likelihood(), GENERATION)
        objective.before_update(1, 0.0)
    assert_splitting_changes_nothing(objective, model, batches([0, 1, 2]))


def test_average_baseline_is_the_decayed_mean_of_the_rewards(make):
    model = restrict_vocabulary(make(sequence={"type": "reinforce", "baseline": {"type": "average", "decay": 0.8}}))
    objective = SequenceReinforce(options_of("average"), Likelihood(), GENERATION)
    baseline = model.auxiliary.reward_baseline
    readout = torch.zeros(2, 3, 4)
    assert baseline(readout, None).tolist() == [[0.0] * 3] * 2
    means = [0.5, 0.1, 0.4]
    for mean in means:
        statistics = {REWARD_SUM: torch.tensor(4 * mean), NUM_REWARDS: torch.tensor(4.0)}
        with torch.no_grad():
            objective.after_update(model, statistics)
    weights = [0.8**2, 0.8, 1.0]
    expected = sum(w * r for w, r in zip(weights, means, strict=True)) / sum(weights)
    assert float(baseline(readout, None)[1, 2].detach()) == pytest.approx(expected)


def test_learned_baseline_fits_the_rewards_and_gives_the_model_no_gradient(make):
    model = make_reinforced(make, "learned")
    baseline = model.auxiliary.reward_baseline
    readout = torch.randn(60, 2, baseline.linear.in_features, generator=torch.Generator().manual_seed(1)).double()
    readout.requires_grad_()
    slope = torch.linspace(-1, 1, readout.shape[2], dtype=torch.float64)
    rewards = readout.detach()[:, 0] @ slope + 0.25
    mask = torch.tensor([[True, False]]).expand(60, 2)  # the second position predicts nothing
    optimiser = torch.optim.LBFGS(baseline.parameters(), max_iter=50)

    def loss():
        optimiser.zero_grad()
        value = baseline.loss(baseline(readout, None), rewards, mask)
        value.backward()
        return value

    optimiser.step(loss)
    torch.testing.assert_close(baseline.linear.weight[0], slope, rtol=1e-4, atol=1e-4)
    assert baseline.linear.bias.item() == pytest.approx(0.25, abs=1e-4)
    assert readout.grad is None


def test_self_critical_weights_vanish_if_the_sample_is_the_greedy_translation(make, batches, monkeypatch):
    model = make_reinforced(make, "self-critical")
    batch = batches([0, 1])
    monkeypatch.setattr(
        reinforce, "sample_translations", lambda scorer, batch, _K, _seed, *rest: search_n_best(scorer, batch, 1, *rest)
    )
    loss = SequenceReinforce(options_of(), Likelihood(), GENERATION)(model, batch, BatchRng(1))
    assert float(gradient(model, loss.total).abs().max()) == 0.0


def test_report_has_reward_and_baseline(make, batches):
    model = make_reinforced(make, "average")
    objective = SequenceReinforce(options_of("average", samples=4), Likelihood(), GENERATION)
    report = objective.report(objective(model, batches([0, 1]), BatchRng(1)).statistics)
    assert float(report["baseline"]) == pytest.approx(0.3)
    assert 0.0 <= float(report["reward"]) <= 1.0
