"""The read and write policy: observations, decisions, rewards and the policy gradient, by loops and by enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch.config import ModelConfig, ObjectiveConfig
from rnnsearch.config.sequence import ReadWriteOptions
from rnnsearch.metrics.sentence_scores import smoothed_bleu
from rnnsearch.models.agent import EPSILON
from rnnsearch.models.critics import agent_baseline
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence import read_write
from rnnsearch.objectives.sequence.hypotheses import reference_words
from rnnsearch.objectives.sequence.read_write import ReadWrite, action_noise, prefix_scores, step_rewards
from rnnsearch.search.beam import greedy_search
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.options import LengthLimit, SearchOptions
from rnnsearch.search.read_write import Interpreter, roll_out
from rnnsearch.systems.translation import build
from rnnsearch.text.vocabulary import BOS, EOS, PAD
from tests.objectives.conftest import SOURCES, TARGETS
from tests.objectives.sequence.toys import GENERATION, assert_splitting_changes_nothing, restrict_vocabulary

LIMIT = GENERATION.limit
READ, WRITE = 1.0, 0.0  # random numbers with which an agent always reads or writes


def make_model(seed=3, **attention):
    config = ModelConfig.model_validate(
        {
            "embedding": 5,
            "encoder": {"type": "unidirectional", "cell": "gru", "size": 4},
            "attention": {"score": "additive", "size": 6, **attention},
            "decoder": {"type": "cohn", "cell": "gru", "size": 5},
        }
    )
    sequence = {"type": "read-write", "agent_size": 6, "baseline_size": 4}
    model = build(config, SOURCES, TARGETS, seed, ObjectiveConfig.model_validate({"sequence": sequence})).double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(std=0.6, generator=generator)
    return restrict_vocabulary(model)


@pytest.fixture
def model():
    return make_model()


def objective(**changes):
    options = {"samples": 3, "wait_penalty": 0.1, "target_wait": 2, "target_proportion": 0.4, **changes}
    return ReadWrite(ReadWriteOptions(**options), Likelihood(), GENERATION)


def forced(actions):
    """Return random numbers with which all rows take these actions, and the last one from then on."""
    return lambda step: torch.tensor([actions[min(step, len(actions) - 1)]])


def greedy_words(model, sources, limit=LIMIT):
    options = SearchOptions(beam=1, n_best=1, **limit._asdict())
    return [[*group[0].ids] for group in greedy_search(ModelScorer(model), sources, options)]


def gradients(value, parameters):
    found = torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(cell, x, h):
    """Return the next state (Bahdanau et al. 2015, appendix A.1.1) of gate inputs x."""
    D = len(h)
    recurrent = cell.recurrent_gates.weight.detach().numpy() @ h
    z, r = sigmoid(x[:D] + recurrent[:D]), sigmoid(x[D : 2 * D] + recurrent[D:])
    candidate = np.tanh(x[2 * D :] + cell.recurrent.weight.detach().numpy() @ (r * h))
    return (1 - z) * h + z * candidate


def affine(layer, x):
    y = layer.weight.detach().numpy() @ x
    return y if layer.bias is None else y + layer.bias.detach().numpy()


def test_observations_and_decisions_follow_the_equations(model, batches):
    """One sentence, by loops: only the annotations that have been read are attended to."""
    batch = batches([0])
    [source] = batch.sources.values()
    [ids] = source.ids.tolist()
    decisions = roll_out(model, batch.sources, LIMIT, 1, action_noise(batch.sources, 1, 11))
    noise = action_noise(batch.sources, 1, 11)
    decoder, score = model.decoder, model.decoder.attention.score
    annotations, h = [], np.zeros(4)
    cell = model.encoder.forward_cell
    for token in ids:
        h = gru(cell, affine(cell.input, model.source_embedding.weight[token].detach().numpy()), h)
        annotations.append(h)
    embeddings = model.target_embedding.weight.detach().numpy()
    s, agent, y, num_read, written = np.zeros(5), np.zeros(6), BOS, 1, []
    for t in range(int(decisions.mask.sum())):
        energies = []
        for annotation in annotations[:num_read]:
            key = affine(score.key, annotation) + affine(score.query, s)
            energies.append(score.vector.detach().numpy() @ np.tanh(key))
        alpha = np.exp(energies) / np.exp(energies).sum()
        c = sum(weight * annotation for weight, annotation in zip(alpha, annotations, strict=False))
        x = affine(decoder.cell.input, embeddings[y]) + affine(decoder.context, c)
        z = gru(decoder.cell, x, s)
        readout = decoder.deep_output
        t_i = readout(torch.tensor(z), torch.tensor(embeddings[y]), torch.tensor(c), None)
        logits = model.output.logits(t_i[None])[0].detach().numpy()
        logits[[PAD, BOS]] = -np.inf
        candidate = int(logits.argmax())
        observation = np.concatenate([c, z, embeddings[candidate]])
        np.testing.assert_allclose(decisions.observations[0, t].numpy(), observation)
        agent = gru(model.agent.cell, affine(model.agent.cell.input, observation), agent)
        p_write = sigmoid(affine(model.agent.write, agent))[0]
        has_read_all, is_full = num_read == len(ids), len(written) == LIMIT.max_extra
        writes = has_read_all or (not is_full and p_write > float(noise(t)))
        assert (bool(decisions.writes[0, t]), int(decisions.num_read[0, t])) == (writes, num_read)
        assert bool(decisions.is_free[0, t]) == (not has_read_all and not is_full)
        if writes:
            s, y = z, candidate
            written.append(candidate)
        else:
            num_read += 1
    assert decisions.words() == [[token for token in written if token != EOS]]
    assert len(written) >= 2 and num_read > 1


def test_rewards_follow_the_equations():
    """BLEU without brevity penalty grows by word, waits above the target cost twice alpha, the end has BLEU and AP."""
    options = ReadWriteOptions(wait_penalty=0.3, target_wait=2, proportion_penalty=2.0, target_proportion=0.5)
    words, reference = [4, 5, 6], [4, 5, 7, 6]
    writes = [False, False, True, False, True, True, True]
    [prefixes], [final] = prefix_scores([words], [reference], GENERATION.detokenize)
    rewards = step_rewards(writes, prefixes, final, 0.8, options)

    def bleu0(length):
        text = " ".join(map(str, words[:length]))
        [score] = smoothed_bleu([text], ["4 5 7 6"])
        return score / np.exp(min(0.0, 1 - 4 / length)) if length else 0.0

    expected, wait, written = [], 1, 0
    for t, is_write in enumerate(writes):
        quality = 0.0
        if is_write:
            written += 1
            quality = bleu0(written) - bleu0(written - 1)
        wait = 0 if is_write else wait + 1
        if t == len(writes) - 1:  # EOS
            quality = smoothed_bleu(["4 5 6"], ["4 5 7 6"])[0]
        d = 0.8 if t == len(writes) - 1 else 0.0
        expected.append(quality - 0.3 * (np.sign(wait - 2) + 1) - 2.0 * max(0.0, d - 0.5))
    np.testing.assert_allclose(rewards, expected)
    assert rewards[0] == pytest.approx(-0.3) and rewards[1] == pytest.approx(-0.6) and rewards[3] == 0
    # A translation that is cut ends with a word, whose increment is part of the whole.
    cut = step_rewards([True, True, True], prefixes, final, 0.0, options)
    np.testing.assert_allclose(cut, [bleu0(1), bleu0(2) - bleu0(1), final])


def test_reading_first_is_greedy_search(model, batches):
    batch = batches([0, 1, 2])
    for limit in (LIMIT, LengthLimit(0.5, 1)):
        decisions = roll_out(model, batch.sources, limit, 1, forced([READ]))
        assert decisions.words() == greedy_words(model, batch.sources, limit)
        assert {*map(tuple, map(set, decisions.delays()))} == {(n,) for n in decisions.source_lengths.tolist()}


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("seed", [3, 4])
def test_alternate_decisions_are_the_wait_k_schedule(batches, k, seed):
    model, wait_k = make_model(seed), make_model(seed, window="wait-k", wait=k)
    wait_k.load_state_dict(model.state_dict())
    batch = batches([0, 1, 2])
    actions = [READ] * (k - 1) + [WRITE, READ] * 10
    decisions = roll_out(model, batch.sources, LIMIT, 1, forced(actions))
    assert decisions.words() == greedy_words(wait_k, batch.sources)
    for delays, length in zip(decisions.delays(), decisions.source_lengths.tolist(), strict=True):
        assert delays == [min(t + k, length) for t in range(len(delays))]


@pytest.mark.parametrize("normalises", [False, True])
def test_gradient_is_that_of_the_expected_reward(model, batches, monkeypatch, normalises):
    """The mean over all decisions of one sentence, by enumeration; normalised advantages divide it by a constant."""
    batch = batches([0])
    method = objective(samples=1)
    paths = {}
    for actions in product([WRITE, READ], repeat=8):
        decisions = roll_out(model, batch.sources, LIMIT, 1, forced(actions))
        paths[tuple(decisions.writes[0][decisions.is_free[0]].tolist())] = decisions
    baseline, scale = agent_baseline(model), 1.0
    if normalises:
        baseline.update(torch.tensor(0.3), torch.tensor(0.25))
        scale = 1 / np.sqrt(0.25 - 0.3**2 + EPSILON)
    agent = [*model.agent.parameters()]
    expected_reward, estimate, total_probability = 0.0, [torch.zeros_like(p) for p in agent], 0.0
    for decisions in paths.values():
        logits = model.agent(decisions.observations, decisions.mask)
        signs = decisions.writes.double() * 2 - 1
        log_p = torch.nn.functional.logsigmoid(signs * logits)[decisions.is_free].sum()
        monkeypatch.setattr(read_write, "roll_out", lambda *_, path=decisions: path)
        loss, statistics = method.sequence_loss(model, batch, 1)
        expected_reward = expected_reward + log_p.exp() * float(statistics["reward.sum"])
        probability = float(log_p.detach().exp())
        total_probability += probability
        estimate = [e + probability * g for e, g in zip(estimate, gradients(loss, agent), strict=True)]
    assert len(paths) > 10 and total_probability == pytest.approx(1.0)
    for result, exact in zip(estimate, gradients(expected_reward, agent), strict=True):
        torch.testing.assert_close(result, -scale * exact, rtol=1e-6, atol=1e-9)
    assert max(float(e.abs().max()) for e in estimate) > 1e-3


def test_entropy_is_raised_and_baseline_learns_returns(model, batches):
    batch = batches([0, 1])
    noise = action_noise(batch.sources, 3, 2)
    decisions = roll_out(model, batch.sources, LIMIT, 3, noise)
    losses = [objective(entropy=weight).sequence_loss(model, batch, 2)[0] for weight in (0.0, 0.7)]
    p = model.agent(decisions.observations, decisions.mask).sigmoid()[decisions.is_free]
    entropy = -(p * p.log() + (1 - p) * (1 - p).log()).sum()
    torch.testing.assert_close(losses[0] - losses[1], 0.7 * entropy / 3)

    references = [words for words in reference_words(batch) for _ in range(3)]
    rewards, _ = read_write.score_decisions(decisions, references, objective().options, GENERATION.detokenize)
    returns = torch.tensor(np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1].copy())
    network = agent_baseline(model).network
    errors = (returns - network(decisions.observations)[:, :, 0])[decisions.is_free]
    parameters = [*network.parameters()]
    for result, exact in zip(
        gradients(losses[0], parameters), gradients(errors.square().sum() / 3, parameters), strict=True
    ):
        torch.testing.assert_close(result, exact)


def test_moments_are_those_of_the_advantages_and_reports_are_means(model, batches):
    batch = batches([0, 1])
    method = objective()
    _, statistics = method.sequence_loss(model, batch, 4)
    decisions = roll_out(model, batch.sources, LIMIT, 3, action_noise(batch.sources, 3, 4))
    references = [words for words in reference_words(batch) for _ in range(3)]
    rewards, _ = read_write.score_decisions(decisions, references, method.options, GENERATION.detokenize)
    returns = torch.tensor(np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1].copy())
    baseline = agent_baseline(model)
    errors = (returns - baseline(decisions.observations))[decisions.is_free].detach()
    method.after_update(model, statistics)
    assert float(baseline.total / baseline.weight) == pytest.approx(float(errors.mean()))
    assert float(baseline.squares / baseline.weight) == pytest.approx(float(errors.square().mean()))
    normalised = baseline.normalise(errors[None])
    assert float(normalised.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(normalised.std(unbiased=False)) == pytest.approx(1.0, rel=1e-2)
    report = method.report(statistics)
    assert float(report["reward"]) == pytest.approx(rewards.sum(1).mean())
    proportions = []
    for delays, length in zip(decisions.delays(), decisions.source_lengths.tolist(), strict=True):
        proportions.append(sum(delays) / len(delays) / length)
    assert float(report["proportion"]) == pytest.approx(np.mean(proportions))
    assert set(report) == {"reward", "reward_variance", "quality", "lagging", "proportion"}


def test_agent_learns_to_read_less_when_waiting_costs_more(model, batches):
    batch = batches([0, 1, 2])
    method = objective(samples=20, wait_penalty=0.0, proportion_penalty=5.0, target_proportion=0.0)
    optimiser = torch.optim.Adam([*model.agent.parameters(), *agent_baseline(model).network.parameters()], lr=0.02)
    proportions = []
    for update in range(1, 31):
        optimiser.zero_grad()
        loss, statistics = method.sequence_loss(model, batch, update)
        loss.backward()
        optimiser.step()
        method.after_update(model, statistics)
        proportions.append(float(method.report(statistics)["proportion"]))
    assert np.mean(proportions[-5:]) < np.mean(proportions[:5]) - 0.05


def test_splitting_a_batch_changes_nothing(model, batches):
    assert_splitting_changes_nothing(objective(), model, batches([0, 1, 2]))


def test_banned_tokens_are_not_written(model, batches):
    batch = batches([0, 1])
    [source] = batch.sources.values()
    memories = model.encode(batch.sources)
    free, restricted = Interpreter(model, LIMIT), Interpreter(model, LIMIT, frozenset({4, 5}))
    candidates = free.observe(free.start(memories), memories, source.num_words).candidate.tolist()
    banned = restricted.observe(restricted.start(memories), memories, source.num_words).candidate.tolist()
    assert not {4, 5} & {*banned} and [c for c in candidates if c in (4, 5)]
