"""Actor-critic training: exact gradients with a perfect critic, targets by the paper's equations, delayed copies."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch.config.sequence import ActorCriticOptions
from rnnsearch.data.batch import Stream
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.critics import actor_critic_networks
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence import actor_critic
from rnnsearch.objectives.sequence.actor_critic import (
    ActorCritic,
    actor_losses,
    critic_losses,
    shaped_rewards,
    token_logits,
    token_probs,
)
from rnnsearch.objectives.sequence.rewards import SentenceBleu
from rnnsearch.text.vocabulary import BOS, EOS, PAD
from tests.objectives.sequence.toys import (
    GENERATION,
    MAX_WORDS,
    WORDS,
    all_translations,
    assert_splitting_changes_nothing,
    differentiable_log_probs,
    hypotheses_of,
    restrict_vocabulary,
)

REFERENCES = ([4, 5, EOS], [6, 6, 4, EOS])


def options(**changes):
    return ActorCriticOptions(**{"critic_updates": 0, "lambda_c": 0.0, **changes})


@pytest.fixture
def actor(make):
    """Return a model with critic and copies, all with different values, over a small vocabulary."""
    model = restrict_vocabulary(make(sequence={"type": "actor-critic", "critic_size": 12}))
    networks = actor_critic_networks(model)
    generator = torch.Generator().manual_seed(3)
    for parameter in (*networks.target_critic.parameters(), *networks.delayed_actor.parameters()):
        parameter.data.normal_(std=0.6, generator=generator)
    restrict_vocabulary(networks.delayed_actor)
    return model


@pytest.fixture
def pairs(batches):
    """Return a batch of two sentences with the references above."""
    batch = batches([0, 1])
    width = max(map(len, REFERENCES))
    ids = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in REFERENCES])
    return replace(batch, streams={**batch.streams, batch.direction.target: Stream.from_ids(ids)})


def objective(**changes):
    return ActorCritic(options(**changes), Likelihood(), GENERATION)


def bleu(tokens, reference):
    words = [token for token in tokens if token != EOS]
    return float(SentenceBleu(None, GENERATION.detokenize).start([words], [reference[:-1]])()[0])


def is_complete(tokens, max_words):
    return bool(tokens) and (tokens[-1] == EOS or len(tokens) == max_words)


def next_probs(model, sources, prefix):
    """Return p(a | prefix, x) of every token for one sentence."""
    previous = torch.tensor([[BOS, *prefix]])
    return model.log_probs(model.unroll(previous, model.encode(sources)).readout[:, -1])[0].exp()


def exact_value(model, sources, prefix, reference, max_words=MAX_WORDS):
    """Return the expected reward of a translation that starts with a prefix, minus that of the prefix."""
    if is_complete(prefix, max_words):
        return 0.0
    probs = next_probs(model, sources, prefix).tolist()
    return sum(probs[token] * exact_q(model, sources, prefix, token, reference, max_words) for token in (*WORDS, EOS))


def exact_q(model, sources, prefix, token, reference, max_words=MAX_WORDS):
    """Return the expected sum of the rewards of a token and those after it."""
    before = bleu(prefix, reference) if prefix else 0.0
    reward = bleu([*prefix, token], reference) - before
    return reward + exact_value(model, sources, [*prefix, token], reference, max_words)


@torch.no_grad()
def exact_critic(model, batch):
    """Return a function in place of `Critic.forward` with the exact values of a batch of the first sentence."""
    reference = list(REFERENCES[0])
    known = {}

    def values(_, previous, positions):
        rows = torch.zeros(len(positions), model.output.vocabulary, dtype=torch.float64)
        for m, position in enumerate(positions.tolist()):
            n, i = divmod(position, previous.shape[1])
            prefix = tuple(previous[n, 1 : i + 1].tolist())
            for token in (*WORDS, EOS):
                if (prefix, token) not in known:
                    known[prefix, token] = exact_q(model, batch.sources, list(prefix), token, reference)
                rows[m, token] = known[prefix, token]
        return rows

    return values


def gradients(value, parameters):
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def actor_parameters(model):
    return [p for name, p in model.named_parameters() if not name.startswith("auxiliary.")]


def one_sentence(batch, n):
    """Return one sentence of a batch without padding."""
    streams = {}
    for name, stream in batch.streams.items():
        streams[name] = Stream.from_ids(stream.ids[n : n + 1, : int(stream.mask[n].sum())])
    return replace(batch, indices=batch.indices[n : n + 1], streams=streams)


def test_perfect_critic_gives_the_exact_gradient_of_the_expected_reward(actor, pairs, monkeypatch):
    batch = one_sentence(pairs, 0)
    translations = all_translations()
    memories = actor.encode(batch.sources)
    log_probs = differentiable_log_probs(actor, hypotheses_of(translations), memories)
    rewards = torch.tensor([bleu(tokens, REFERENCES[0]) for tokens in translations], dtype=torch.float64)
    exact = gradients((log_probs.exp() * rewards).sum(), actor_parameters(actor))

    monkeypatch.setattr(actor_critic_networks(actor).critic, "forward", exact_critic(actor, batch))
    expected = [torch.zeros_like(p) for p in actor_parameters(actor)]
    for tokens, log_prob in zip(translations, log_probs.detach(), strict=True):
        monkeypatch.setattr(actor_critic, "sample_translations", lambda *_, tokens=tokens: hypotheses_of([tokens]))
        total, _ = objective().sequence_loss(actor, batch, 1)
        losses = gradients(total, actor_parameters(actor))
        # The loss is minus the reward.
        expected = [sum_ - log_prob.exp() * loss for sum_, loss in zip(expected, losses, strict=True)]
    for result, gradient in zip(expected, exact, strict=True):
        torch.testing.assert_close(result, gradient, rtol=1e-5, atol=1e-8)
    assert max(float(gradient.abs().max()) for gradient in exact) > 1e-3


def test_targets_and_losses_are_those_of_the_paper(actor, pairs, monkeypatch):
    sampled = hypotheses_of([[4, EOS], [5, 6, 4]])
    monkeypatch.setattr(actor_critic, "sample_translations", lambda *_: sampled)
    method = objective(lambda_c=0.3)
    method.before_update(2, 0.0)
    total, statistics = method.sequence_loss(actor, pairs, 1)

    networks = actor_critic_networks(actor)
    critic_loss = actor_loss = 0.0
    for n, (tokens, reference) in enumerate(zip([[4, EOS], [5, 6, 4]], REFERENCES, strict=True)):
        row = one_sentence(pairs, n)

        def values(critic, prefix, row=row):
            return critic(row.target, torch.tensor([[BOS, *prefix]]), torch.tensor([len(prefix)]))[0].detach()

        for t, token in enumerate(tokens):
            prefix = tokens[:t]
            r = bleu(tokens[: t + 1], reference) - (bleu(prefix, reference) if prefix else 0.0)
            q = r
            if t + 1 < len(tokens):
                probs = next_probs(networks.delayed_actor, row.sources, tokens[: t + 1]).detach()
                q += float((probs * values(networks.target_critic, tokens[: t + 1])).sum())
            Q = values(networks.critic, prefix)
            critic_loss += float((Q[token] - q) ** 2 + 0.3 * sum((Q[a] - Q.mean()) ** 2 for a in range(len(Q))))
            actor_loss -= float((next_probs(actor, row.sources, prefix).detach() * Q).sum())
    assert float(statistics["critic.loss"]) == pytest.approx(critic_loss)
    assert float(total.detach()) == pytest.approx(critic_loss + actor_loss)
    report = method.report(statistics)
    assert float(report["critic_loss"]) == pytest.approx(critic_loss / 5)
    rewards = [bleu([4, EOS], REFERENCES[0]), bleu([5, 6, 4], REFERENCES[1])]
    assert float(report["reward"]) == pytest.approx(sum(rewards) / 2)


def test_critic_learns_the_exact_values_from_its_own_targets(actor, pairs, monkeypatch):
    """A table of known values: Q of every token after every prefix of translations of two words, per reference."""
    translations = [[EOS], *([word, EOS] for word in WORDS), *([*words] for words in product(WORDS, repeat=2))]
    monkeypatch.setattr(actor_critic, "sample_translations", lambda *_: hypotheses_of(translations, sentences=2))
    critic = actor_critic_networks(actor).critic
    generator = torch.Generator().manual_seed(1)
    for parameter in critic.parameters():
        parameter.data.normal_(std=0.3, generator=generator)
    method = objective(samples=len(translations), critic_updates=1000, gamma_phi=0.5)
    optimiser = torch.optim.Adam(critic.parameters(), lr=0.03)
    for update in range(1, 141):
        method.before_update(update, 0.0)
        optimiser.zero_grad()
        total, statistics = method.sequence_loss(actor, pairs, 1)
        total.backward()
        optimiser.step()
        method.after_update(actor, statistics)

    errors = []
    for n, reference in enumerate(REFERENCES):
        row = one_sentence(pairs, n)
        for prefix in ([], *([word] for word in WORDS)):
            values = critic(row.target, torch.tensor([[BOS, *prefix]]), torch.tensor([len(prefix)]))[0].tolist()
            for token in (*WORDS, EOS):
                exact = exact_q(actor, row.sources, prefix, token, reference, max_words=2)
                errors.append(abs(values[token] - exact))
    assert max(errors) < 0.05


def test_losses_have_the_gradients_of_their_definitions():
    generator = torch.Generator().manual_seed(1)
    logits, values = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64).requires_grad_().unbind(0)
    ids = torch.tensor([1, 4, 4])
    targets = torch.tensor([0.1, -0.2, 0.7], dtype=torch.float64)

    # PAD and BOS are never sampled, so their values have no effect.
    probs = logits.masked_fill(torch.tensor([token in (PAD, BOS) for token in range(5)]), -torch.inf).softmax(1)
    defined = -(probs * values.detach()).sum()
    result = actor_losses(logits, values.detach())
    torch.testing.assert_close(result, defined)
    torch.testing.assert_close(torch.autograd.grad(result, logits), torch.autograd.grad(defined, logits))

    defined = 0.3 * (values - values.mean(1, keepdim=True)).square().sum()
    defined = defined + (values[torch.arange(3), ids] - targets).square().sum()
    result = critic_losses(values, ids, targets, 0.3)
    torch.testing.assert_close(result, defined)
    torch.testing.assert_close(torch.autograd.grad(result, values), torch.autograd.grad(defined, values))


def test_first_updates_train_only_the_critic(actor, pairs):
    method = objective(critic_updates=2, likelihood=0.5)
    for update, moves in ((2, False), (3, True)):
        method.before_update(update, 0.0)
        actor.zero_grad()
        method(actor, pairs, BatchRng(1)).total.backward()
        assert any(p.grad is not None for p in actor_parameters(actor)) == moves
        networks = actor_critic_networks(actor)
        assert all(p.grad is not None for p in networks.critic.parameters())
        copies = [*networks.target_critic.parameters(), *networks.delayed_actor.parameters()]
        assert all(p.grad is None for p in copies)


def test_copies_start_equal_and_follow_at_their_rates(actor):
    method = objective(gamma_theta=0.25, gamma_phi=0.5)
    networks = actor_critic_networks(actor)

    @torch.no_grad()
    def differences():
        return [
            float((networks.delayed_actor.output.bias - actor.output.bias).abs().sum()),
            float((networks.target_critic.network.output.bias - networks.critic.network.output.bias).abs().sum()),
        ]

    method.before_update(1, 0.0)
    method.after_update(actor, {})
    assert differences() == [0.0, 0.0]
    with torch.no_grad():
        actor.output.bias += 1.0
        networks.critic.network.output.bias += 1.0
    method.before_update(2, 0.0)
    method.after_update(actor, {})
    vocabulary = actor.output.vocabulary
    assert differences() == pytest.approx([0.75 * vocabulary, 0.5 * vocabulary])


@pytest.mark.parametrize("update", [1, 2])
def test_splitting_a_batch_changes_nothing(actor, pairs, update):
    method = objective(samples=3, lambda_c=0.1, likelihood=0.2)
    method.before_update(update, 0.0)
    assert_splitting_changes_nothing(method, actor, pairs)


def test_without_shaping_the_last_token_gets_the_whole_reward(pairs):
    hypotheses = hypotheses_of([[4, 5, EOS], [6, 6, 4]])
    assert objective(shaping=False).start_token_rewards(hypotheses, pairs)() == pytest.approx([0, 0, 1, 0, 0, 1])
    shaped = objective().start_token_rewards(hypotheses, pairs)()
    first, second = bleu([4], REFERENCES[0]), bleu([6, 6], REFERENCES[1])
    one = bleu([6], REFERENCES[1])
    assert shaped == pytest.approx([first, 1 - first, 0, one, second - one, 1 - second])


def test_shaped_rewards_sum_to_the_reward():
    scores = SentenceBleu(None, GENERATION.detokenize).start_prefixes([[4, 6, 5], []], [[4, 5], [4]])()
    assert [len(prefixes) for prefixes in scores] == [4, 1]
    with_end = shaped_rewards(scores, [4, 1])
    assert sum(with_end[:4]) == pytest.approx(bleu([4, 6, 5], REFERENCES[0]))
    assert with_end[3:] == [0.0, 0.0]
    assert shaped_rewards(scores, [3, 1]) == [*with_end[:3], 0.0]
    assert shaped_rewards([np.array([0.3])], [1]) == [0.3]


def expected_actor_gradient(model, batch, critic):
    """Return the mean of the actor's gradient over all translations of one sentence, for the values of a critic."""
    hypotheses = hypotheses_of(all_translations())
    positions = hypotheses.positions()
    with torch.no_grad():
        log_probs = differentiable_log_probs(model, hypotheses, model.encode(batch.sources))
        values = critic(batch.target, hypotheses.previous, positions)
    token_weights = log_probs.exp()[hypotheses.mask.nonzero()[:, 0]]
    expected = (token_probs(token_logits(model, hypotheses, batch, positions)) * values).sum(1)
    return torch.cat([g.flatten() for g in gradients((token_weights * expected).sum(), actor_parameters(model))])


def expected_reward(model, batch, reference):
    """Return the expected reward of one sentence."""
    translations = all_translations()
    log_probs = differentiable_log_probs(model, hypotheses_of(translations), model.encode(batch.sources))
    rewards = torch.tensor([bleu(tokens, reference) for tokens in translations], dtype=torch.float64)
    return (log_probs.exp() * rewards).sum()


def test_learned_critic_is_close_to_the_exact_gradient_and_raises_the_reward(actor, pairs):
    """The first tokens get values only if the target critic follows the critic in time: the rates are the defaults."""
    options = ActorCriticOptions(samples=8, critic_updates=100, shaping=False)
    method = ActorCritic(options, Likelihood(), GENERATION)
    critic = actor_critic_networks(actor).critic
    rows = [one_sentence(pairs, n) for n in range(2)]

    def rewards():
        return [expected_reward(actor, row, reference) for row, reference in zip(rows, REFERENCES, strict=True)]

    before = rewards()
    groups = [{"params": [*critic.parameters()], "lr": 0.01}, {"params": actor_parameters(actor), "lr": 0.01}]
    optimiser = torch.optim.Adam(groups)
    for update in range(1, 121):
        if update == 101:
            for row, reward in zip(rows, before, strict=True):
                exact = gradients(reward, actor_parameters(actor))
                exact = torch.cat([gradient.flatten() for gradient in exact])
                result = expected_actor_gradient(actor, row, critic)
                cosine = float(torch.nn.functional.cosine_similarity(exact, result, dim=0))
                assert cosine > 0.5
        method.before_update(update, 0.0)
        optimiser.zero_grad()
        total, statistics = method.sequence_loss(actor, pairs, update)
        total.backward()
        optimiser.step()
        method.after_update(actor, statistics)
    assert float(torch.stack(rewards()).detach().sum()) > float(torch.stack(before).detach().sum()) + 0.2
