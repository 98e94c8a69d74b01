"""What the score is told of the weights so far and of positions, against Tu et al. 2016 and Cohn et al. 2016."""

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig
from rnnsearch.config import attention as attention_options
from rnnsearch.config.model import GlorotOptions
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.attention.features import FEATURES
from rnnsearch.models.initialise import INITS, generator, initialise
from rnnsearch.models.memory import Encoded
from rnnsearch.tensors import lengths_mask, select

QUERY, ANNOTATION, UNITS = 4, 5, 6
LENGTHS = [3, 1, 6]
OPTIONS = {"fertility": 2.5, "coverage_size": 3, "neighbours": 1}
STEPS = 4


def config(*features):
    options = {option: OPTIONS[option] for name in features for option in attention_options.FEATURES[name].own()}
    return AttentionConfig(size=UNITS, features=list(features), **options)


@pytest.fixture
def encoded(numbers):
    annotations = numbers(3, max(LENGTHS), ANNOTATION)
    return Encoded(annotations, lengths_mask(torch.tensor(LENGTHS), max(LENGTHS)), annotations[:, 0], ())


def linguistic(p, h, _states, alphas, _paper):
    """Tu et al., section 3.1.1: C_ij = (1 / Phi_j) sum_{k<=i} alpha_kj, Phi_j = N sigma(U_f h_j)."""
    coverage = np.zeros((len(h), 1))
    for j in range(len(h)):
        phi = OPTIONS["fertility"] / (1 + np.exp(-(p["fertility.weight"][0] @ h[j])))
        for alpha in alphas:
            coverage[j, 0] += alpha[j] / phi
    return coverage


def neural(p, h, states, alphas, paper):
    """Tu et al., section 3.1.2: C_ij = f(C_{i-1,j}, alpha_ij, h_j, s_{i-1}) with Bahdanau's GRU as f."""
    cell = {name.removeprefix("cell."): value for name, value in p.items()}
    coverage = np.zeros((len(h), OPTIONS["coverage_size"]))
    for s, alpha in zip(states, alphas, strict=True):
        for j in range(len(h)):
            read = np.concatenate([[alpha[j]], h[j], s])
            coverage[j] = paper.cells["gru"](cell, paper.inputs(cell, read), (coverage[j],))[0]
    return coverage


def position(_p, h, _states, alphas, _paper):
    """Cohn et al., section 3.1: [log(1 + i), log(1 + j), log(1 + J)], counted from 1."""
    i, J = len(alphas) + 1, len(h)
    return np.array([[np.log(1 + i), np.log(1 + j), np.log(1 + J)] for j in range(1, J + 1)])


def window(weights, k):
    """[w_{j-k}, ..., w_{j+k}] of every j, zero outside the sentence."""
    J = len(weights)
    return np.array([[weights[m] if 0 <= m < J else 0.0 for m in range(j - k, j + k + 1)] for j in range(J)])


def markov(_p, h, _states, alphas, _paper):
    """Cohn et al., section 3.2."""
    return window(alphas[-1] if alphas else np.zeros(len(h)), OPTIONS["neighbours"])


def fertility(_p, h, _states, alphas, _paper):
    """Cohn et al., section 3.3."""
    return window(sum(alphas, np.zeros(len(h))), OPTIONS["neighbours"])


EQUATIONS = {
    "coverage-linguistic": linguistic,
    "coverage-neural": neural,
    "position": position,
    "markov": markov,
    "fertility-local": fertility,
}


def test_every_feature_has_its_equation():
    assert EQUATIONS.keys() == FEATURES.keys()


@pytest.mark.parametrize("names", [*((name,) for name in FEATURES), tuple(FEATURES)], ids=" ".join)
def test_weights_of_several_steps_are_the_papers(names, encoded, numbers, drawn, within, paper):
    """e_ij = v_a^T tanh(W_a s + U_a h_j + sum_f W_f f_ij), step after step, with padding and without."""
    attention, p = drawn(Attention.make(config(*names), QUERY, ANNOTATION))
    queries, memory = numbers(3, STEPS, QUERY), attention.on(encoded)
    state, steps = attention.start(memory), []
    for t in range(STEPS):
        attended, state = attention.step(queries[:, t], state, memory)
        steps.append(attended.alpha.detach().numpy())
    score = within(p, "score")
    for b, length in enumerate(LENGTHS):
        h, alphas, states = encoded.annotations[b, :length].numpy(), [], []
        for t in range(STEPS):
            s, energies = queries[b, t].numpy(), np.zeros(length)
            given = [
                EQUATIONS[name](within(p, f"features.{n}"), h, states, alphas, paper) for n, name in enumerate(names)
            ]
            for j in range(length):
                inside = score["query.weight"] @ s + score["key.weight"] @ h[j]
                for n, values in enumerate(given):
                    inside = inside + p[f"feature_weights.{n}.weight"] @ values[j]
                energies[j] = score["vector"] @ np.tanh(inside)
            alphas.append(paper.softmax(energies))
            states.append(s)
            np.testing.assert_allclose(steps[t][b, :length], alphas[-1], atol=1e-12)
            assert not steps[t][b, length:].any()


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_makes_a_difference(name, encoded, numbers, drawn):
    """From the second step at the latest; the first sees no past weights."""
    attention, _ = drawn(Attention.make(config(name), QUERY, ANNOTATION))
    plain, _ = drawn(Attention.make(config(), QUERY, ANNOTATION))
    plain.score.load_state_dict(attention.score.state_dict())
    query, memory = numbers(3, QUERY), attention.on(encoded)
    state = attention.start(memory)
    expected, _ = plain.step(query, plain.start(plain.on(encoded)), plain.on(encoded))
    differs = []
    for _ in range(2):
        attended, state = attention.step(query, state, memory)
        differs.append(not torch.allclose(attended.alpha, expected.alpha))
    assert differs == [not FEATURES[name].remembers, True]


@pytest.mark.parametrize("name", FEATURES)
def test_hypotheses_keep_their_own_past(name, encoded, numbers, drawn):
    """K = 2 rows a sentence, reordered between steps as a beam does, are those of each alone."""
    attention, _ = drawn(Attention.make(config(name), QUERY, ANNOTATION))
    memory = attention.on(encoded)
    rows = torch.arange(3).repeat_interleave(2)
    state, alone = select(attention.start(memory), rows), select(attention.start(memory), rows)
    each = select(memory, rows)
    order = torch.tensor([1, 1, 2, 3, 5, 4])
    for _ in range(3):
        query = numbers(6, QUERY)
        attended, state = attention.step(query, state, memory)
        expected, alone = attention.step(query, alone, each)
        torch.testing.assert_close(attended.alpha, expected.alpha)
        torch.testing.assert_close(attended.context, expected.context)
        state, alone = select(state, order), select(alone, order)


@pytest.mark.parametrize("name", FEATURES)
def test_gradients_reach_every_parameter_through_time(name, encoded, numbers, drawn):
    attention, _ = drawn(Attention.make(config(name), QUERY, ANNOTATION))
    memory = attention.on(encoded)
    state = attention.start(memory)
    for _ in range(3):
        attended, state = attention.step(numbers(3, QUERY), state, memory)
    attended.alpha.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in attention.parameters())


def test_a_feature_that_remembers_nothing_lets_positions_merge(encoded, numbers, drawn):
    for name, kind in FEATURES.items():
        assert Attention.make(config(name), QUERY, ANNOTATION).merges == (not kind.remembers)
    attention, _ = drawn(Attention.make(config("position"), QUERY, ANNOTATION))
    queries, memory = numbers(3, STEPS, QUERY), attention.on(encoded)
    merged, state = attention.attend_all(queries, attention.start(memory), memory), attention.start(memory)
    for t in range(STEPS):
        attended, state = attention.step(queries[:, t], state, memory)
        torch.testing.assert_close(merged.alpha[:, t], attended.alpha)


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("autocast", [False, True])
def test_every_parameter_is_drawn_and_bf16_runs(name, autocast, encoded, numbers):
    attention = Attention.make(config(name), QUERY, ANNOTATION)
    for parameter in attention.parameters():
        parameter.data.fill_(torch.nan)
    initialise(attention, INITS["glorot"](GlorotOptions(), generator(1)))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        memory = attention.on(encoded._replace(annotations=encoded.annotations.float()))
        state = attention.start(memory)
        for _ in range(2):
            attended, state = attention.step(numbers(3, QUERY).float(), state, memory)
    assert attended.alpha.isfinite().all()
    assert attended.alpha.dtype == torch.float32
