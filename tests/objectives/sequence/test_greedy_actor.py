"""Trainable greedy decoding: the actor in training and search, and the deterministic policy gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rnnsearch.config.sequence import GreedyActorOptions
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.critics import state_critic
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence.greedy_actor import GreedyActor, exploration_noise, roll_out
from rnnsearch.search.beam import greedy_search
from rnnsearch.search.constraints import max_lengths
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.text.vocabulary import BOS, EOS
from tests.objectives.sequence.toys import GENERATION, assert_splitting_changes_nothing, restrict_vocabulary


@pytest.fixture
def model(make):
    """Return a model with an actor that has an effect, over a small vocabulary."""
    return restrict_vocabulary(make(sequence={"type": "greedy-actor", "actor_size": 7, "critic_size": 6}))


def objective(**changes):
    options = {"critic_updates": 0, "samples": 2, "sigma": 0.3, **changes}
    return GreedyActor(GreedyActorOptions(**options), Likelihood(), GENERATION)


def rollouts(model, batch, copies=1, sigma=0.0):
    noise = exploration_noise(batch.sources, copies, 3, sigma, model.decoder.state_size)
    limits = max_lengths(batch.sources, SearchOptions(**GENERATION.limit._asdict()))
    return roll_out(model, batch.sources, copies, noise, limits)


def gradients(value, parameters):
    found = torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def test_new_actor_changes_nothing(make, batches):
    batch = batches([0, 1, 2])
    model = make(sequence={"type": "greedy-actor", "actor_size": 7, "critic_size": 6})
    torch.nn.init.zeros_(model.actor.action.weight)
    torch.nn.init.zeros_(model.actor.action.bias)
    previous = torch.tensor([[BOS, 4, 5], [BOS, 6, 6], [BOS, 5, 4]])
    memories = model.encode(batch.sources)
    with_actor = model.unroll(previous, memories).readout
    model.actor = None
    torch.testing.assert_close(with_actor, model.unroll(previous, memories).readout)


def test_states_follow_the_equations(model, batches):
    """One sentence, by loops: a_i = U tanh(W [s; c; E y] + b) + u, and the step from s + a."""
    batch = batches([0])
    memories = model.encode(batch.sources)
    [memory] = memories.values()
    actor, decoder = model.actor, model.decoder
    state = model.start(memories)
    tokens = [BOS, 4, 6]
    unrolled = model.unroll(torch.tensor([tokens]), memories)
    with torch.no_grad():
        for i, token in enumerate(tokens):
            s = state.cell.h[0]
            y_prev = model.target_embedding.weight[token]
            energies = [
                decoder.attention.score(s[None, None], memory.keys, None)[0, 0, j] for j in range(memory.mask.shape[1])
            ]
            alpha = torch.stack(energies).exp() / torch.stack(energies).exp().sum()
            context = sum(alpha[j] * memory.annotations[0, j] for j in range(len(alpha)))
            hidden = torch.tanh(actor.hidden.weight @ torch.cat([s, context, y_prev]) + actor.hidden.bias)
            changed = s + actor.action.weight @ hidden + actor.action.bias
            torch.testing.assert_close(unrolled.reading.state[0, i], changed)
            state = state._replace(cell=state.cell._replace(h=changed[None]))
            x = decoder.inputs(y_prev[None])
            state, reading = decoder.step(x, state, memory)
            torch.testing.assert_close(unrolled.reading.context[0, i], reading.context[0])


def test_rollouts_without_noise_are_greedy_translations(model, batches):
    batch = batches([0, 1, 2])
    words = rollouts(model, batch).hypotheses.words()
    options = SearchOptions(beam=1, n_best=1, **GENERATION.limit._asdict())
    assert words == [[*group[0].ids] for group in greedy_search(ModelScorer(model), batch.sources, options)]
    actor, model.actor = model.actor, None
    assert words != [[*group[0].ids] for group in greedy_search(ModelScorer(model), batch.sources, options)]
    model.actor = actor


def test_first_rollout_has_no_noise_and_noise_depends_on_the_source(batches):
    noise = exploration_noise(batches([0, 1]).sources, 3, 5, 0.5, 4)
    alone = exploration_noise(batches([1]).sources, 3, 5, 0.5, 4)
    for position in (0, 7):
        assert not noise(position)[[0, 3]].any()
        assert noise(position)[[1, 2, 4, 5]].abs().min() > 0
        assert torch.equal(noise(position)[3:], alone(position))
    values = exploration_noise(batches([0]).sources, 2000, 5, 0.5, 4)(0).numpy()[1:]
    assert np.std(values) == pytest.approx(0.5, rel=0.05)


def test_gradient_is_that_of_the_weighted_critic(model, batches):
    """The actor gets the gradient of - sum_k w_k C(z_k), the critic that of its mean squared centred error."""
    batch = batches([0, 1])
    method = objective(tau=0.4)
    total, statistics = method.sequence_loss(model, batch, 3)

    rolled = rollouts(model, batch, copies=3, sigma=0.3)
    values = state_critic(model)(rolled.inputs, rolled.hypotheses.mask).view(2, 3)
    rewards = torch.from_numpy(method.start_rewards(rolled.hypotheses, batch)()).view(2, 3)
    errors = values - rewards
    errors = (errors - errors.mean(1, keepdim=True)).square()
    unnormalised = (-errors / 0.4).exp().detach()
    weights = unnormalised / unnormalised.sum(1, keepdim=True)
    actor = [*model.actor.parameters()]
    expected = gradients(-(weights * values).sum(), actor)
    for result, gradient in zip(gradients(total, actor), expected, strict=True):
        torch.testing.assert_close(result, gradient)
    assert max(float(gradient.abs().max()) for gradient in expected) > 1e-4
    critic = [*state_critic(model).parameters()]
    for result, gradient in zip(gradients(total, critic), gradients(errors.sum() / 3, critic), strict=True):
        torch.testing.assert_close(result, gradient)
    report = method.report(statistics)
    assert float(report["critic_loss"]) == pytest.approx(float(errors.detach().mean()))
    assert float(report["reward"]) == pytest.approx(float(rewards[:, 0].mean()))


def test_first_updates_train_only_the_critic(model, batches):
    method = objective(critic_updates=1, likelihood=0.5)
    for update, moves in ((1, False), (2, True)):
        method.before_update(update, 0.0)
        model.zero_grad()
        method(model, batches([0, 1]), BatchRng(1)).total.backward()
        assert all(p.grad is not None for p in state_critic(model).parameters())
        assert any(p.grad is not None for p in model.actor.parameters()) == moves


def test_actor_raises_the_values_of_its_critic(model, batches):
    batch = batches([0, 1])
    method = objective(tau=100.0)

    def value():
        rolled = rollouts(model, batch)
        return float(state_critic(model)(rolled.inputs, rolled.hypotheses.mask).detach().sum())

    before = value()
    optimiser = torch.optim.SGD(model.actor.parameters(), lr=0.02)
    for update in range(1, 6):
        method.before_update(update, 0.0)
        optimiser.zero_grad()
        method.sequence_loss(model, batch, update)[0].backward()
        optimiser.step()
    assert value() > before


def test_only_differences_between_translations_of_a_sentence_count(model, batches, monkeypatch):
    """A higher reward of all translations of a sentence says nothing about actions."""
    batch = batches([0, 1])
    method = objective(samples=3)
    parameters = [*model.actor.parameters(), *state_critic(model).parameters()]
    expected = gradients(method.sequence_loss(model, batch, 1)[0], parameters)
    start = method.start_rewards

    def start_higher_rewards(*args):
        wait = start(*args)
        return lambda: wait() + np.repeat([0.3, 5.0], 4)

    monkeypatch.setattr(method, "start_rewards", start_higher_rewards)
    for result, gradient in zip(gradients(method.sequence_loss(model, batch, 1)[0], parameters), expected, strict=True):
        torch.testing.assert_close(result, gradient)


def test_training_raises_the_mean_reward_around_the_actions(model, batches):
    batch = batches([0, 1, 2])
    method = objective(samples=12, critic_updates=60)

    def reward():
        rolled = rollouts(model, batch, copies=65, sigma=0.3)
        return float(method.start_rewards(rolled.hypotheses, batch)().mean())

    torch.nn.init.zeros_(model.actor.action.weight)
    torch.nn.init.zeros_(model.actor.action.bias)
    before = reward()
    groups = [
        {"params": [*state_critic(model).parameters()], "lr": 0.02},
        {"params": [*model.actor.parameters()], "lr": 0.001},
    ]
    optimiser = torch.optim.Adam(groups)
    for update in range(1, 121):
        method.before_update(update, 0.0)
        optimiser.zero_grad()
        method.sequence_loss(model, batch, update)[0].backward()
        optimiser.step()
    assert reward() > before + 0.05


def test_splitting_a_batch_changes_nothing(model, batches):
    method = objective(likelihood=0.2)
    method.before_update(1, 0.0)
    assert_splitting_changes_nothing(method, model, batches([0, 1, 2]))


def test_native_search_refuses_an_actor(model, batches):
    fastest = fastest_scorer(model.float(), "fp32")
    assert isinstance(fastest.scorer, ModelScorer)
    if fastest.description.startswith("native"):
        assert "an actor changes the decoder's states" in fastest.description
    options = SearchOptions(beam=2, n_best=1, **GENERATION.limit._asdict())
    results = greedy_search(fastest.scorer, batches([0, 1]).sources, options)
    assert [group[0].ids for group in results] == [
        group[0].ids for group in greedy_search(ModelScorer(model), batches([0, 1]).sources, options)
    ]
    assert all(EOS not in group[0].ids for group in results)
