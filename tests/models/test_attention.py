"""Attention equals the papers' equations, with and without features of past weights, words and positions.

The equations are from Bahdanau et al. 2015; the features are from Tu et al. 2016, Mi et al. 2016, Cohn et al. 2016
and Yang et al. 2017.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig
from rnnsearch.config import attention as attention_options
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.attention.features import FEATURES, WordSizes
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.memory import Encoded
from rnnsearch.utils.tensors import lengths_mask
from tests.models import reference as paper
from tests.models.reference import close, within

QUERY, ANNOTATION, UNITS, STEPS = 4, 5, 6, 4
WORDS = WordSizes(source=7, target=8)
LENGTHS = [3, 1, 6]
OPTIONS = {"fertility": 2.5, "coverage_size": 3, "neighbours": 1, "recurrent_size": 2}


def make(*features):
    options = {
        option: OPTIONS[option] for name in features for option in attention_options.FEATURES[name].option_fields()
    }
    config = AttentionConfig(size=UNITS, features=list(features), **options)
    return Attention(config, QUERY, ANNOTATION, words=WORDS)


@pytest.fixture
def encoded(numbers):
    annotations = numbers(3, max(LENGTHS), ANNOTATION)
    mask = lengths_mask(torch.tensor(LENGTHS), max(LENGTHS))
    return Encoded(annotations, mask, annotations[:, 0], (), words=numbers(3, max(LENGTHS), WORDS.source))


class Told(NamedTuple):
    """Inputs of the features of one sentence.

    Args:
        h: Annotations of the source.
        x: Embedded source words.
        states: Query of each previous target position.
        alphas: Attention weights of each previous target position.
        read: Embedded previous word of each target position up to the current one.
    """

    h: np.ndarray
    x: np.ndarray
    states: list[np.ndarray]
    alphas: list[np.ndarray]
    read: list[np.ndarray]


def linguistic(p, told):
    """C_ij = (1 / Phi_j) sum_{k<=i} alpha_kj, Phi_j = N sigma(U_f h_j) (Tu et al. 2016, section 3.1.1)."""
    coverage = np.zeros((len(told.h), 1))
    for j in range(len(told.h)):
        phi = OPTIONS["fertility"] / (1 + np.exp(-(p["fertility.weight"][0] @ told.h[j])))
        for alpha in told.alphas:
            coverage[j, 0] += alpha[j] / phi
    return coverage


def neural(p, told):
    """C_ij = f(C_{i-1,j}, alpha_ij, h_j, s_{i-1}) with Bahdanau's GRU as f (Tu et al. 2016, section 3.1.2)."""
    cell = within(p, "cell")
    coverage = np.zeros((len(told.h), OPTIONS["coverage_size"]))
    for s, alpha in zip(told.states, told.alphas, strict=True):
        for j in range(len(told.h)):
            read = np.concatenate([[alpha[j]], told.h[j], s])
            coverage[j] = paper.gru(cell, paper.inputs(cell, read), (coverage[j],))[0]
    return coverage


def embedding(p, told):
    """c_tj = f(c_{t-1,j}, alpha_tj, y_t) with Bahdanau's GRU as f and c_0j from the source word (Mi et al. 2016)."""
    cell, coverage = within(p, "cell"), [p["full.weight"] @ x for x in told.x]
    for alpha, y in zip(told.alphas, told.read[1:], strict=True):
        for j in range(len(coverage)):
            read = paper.inputs(cell, np.concatenate([[alpha[j]], y]))
            coverage[j] = paper.gru(cell, read, (coverage[j],))[0]
    return np.array(coverage)


def position(_p, told):
    """[log(1 + i), log(1 + j), log(1 + J)], counted from 1 (Cohn et al. 2016, section 3.1)."""
    i, J = len(told.alphas) + 1, len(told.h)
    return np.array([[np.log(1 + i), np.log(1 + j), np.log(1 + J)] for j in range(1, J + 1)])


def window(weights, k):
    """Return [w_{j-k}, ..., w_{j+k}] for each j, with zeros outside the sentence."""
    J = len(weights)
    return np.array([[weights[m] if 0 <= m < J else 0.0 for m in range(j - k, j + k + 1)] for j in range(J)])


def markov(_p, told):
    """Previous weights around each position (Cohn et al. 2016, section 3.2)."""
    return window(told.alphas[-1] if told.alphas else np.zeros(len(told.h)), OPTIONS["neighbours"])


def fertility(_p, told):
    """Summed weights around each position (Cohn et al. 2016, section 3.3)."""
    return window(sum(told.alphas, np.zeros(len(told.h))), OPTIONS["neighbours"])


def recurrent(p, told):
    """LSTM over the past weights around each position (Yang et al. 2017, section 3)."""
    cell, size = within(p, "cell"), OPTIONS["recurrent_size"]
    states = [(np.zeros(size), np.zeros(size)) for _ in told.h]
    for alpha in told.alphas:
        around = window(alpha, OPTIONS["neighbours"])
        states = [paper.lstm(cell, paper.inputs(cell, a), state) for a, state in zip(around, states, strict=True)]
    return np.array([state[0] for state in states])


EQUATIONS = {
    "coverage-linguistic": linguistic,
    "coverage-neural": neural,
    "coverage-embedding": embedding,
    "position": position,
    "markov": markov,
    "fertility-local": fertility,
    "recurrent": recurrent,
}


def test_each_feature_has_a_reference_equation():
    assert EQUATIONS.keys() == FEATURES.keys()


@pytest.mark.parametrize("names", [(), *((name,) for name in FEATURES), tuple(FEATURES)], ids=" ".join)
def test_weights_and_contexts_equal_the_papers_equations(names, encoded, numbers, drawn):
    """e_ij = v_a^T tanh(W_a s + U_a h_j + sum_f W_f f_ij) at each step, with and without padding."""
    attention, p = drawn(make(*names))
    queries, memory, words = numbers(3, STEPS, QUERY), attention.on(encoded), numbers(3, STEPS, WORDS.target)
    state, steps = attention.start(memory), []
    assert (state == AttentionState()) == (not names)
    for t in range(STEPS):
        attended, state = attention.step(queries[:, t], state, memory, words[:, t])
        steps.append(attended)
    score = within(p, "score")
    for b, length in enumerate(LENGTHS):
        h, x = encoded.annotations[b, :length].numpy(), encoded.words[b, :length].numpy()
        told = Told(h, x, [], [], [])
        for t in range(STEPS):
            s, energies = queries[b, t].numpy(), np.zeros(length)
            told.read.append(words[b, t].numpy())
            given = {name: EQUATIONS[name](within(p, f"features.{n}"), told) for n, name in enumerate(names)}
            for j in range(length):
                inside = score["query.weight"] @ s + score["key.weight"] @ h[j]
                for n, values in enumerate(given.values()):
                    inside = inside + p[f"feature_weights.{n}.weight"] @ values[j]
                energies[j] = score["vector"] @ np.tanh(inside)
            alpha = paper.softmax(energies)
            told.alphas.append(alpha)
            told.states.append(s)
            close(steps[t].alpha[b, :length], alpha)
            close(steps[t].context[b], paper.context(alpha, h))
            assert not steps[t].alpha[b, length:].any()
            if "coverage-embedding" in names:
                close(steps[t].untranslated[b, :length], [np.sqrt((c**2).sum()) for c in given["coverage-embedding"]])
            else:
                assert steps[t].untranslated is None


@pytest.mark.parametrize("heads", [1, 3])
def test_dropout_applies_to_the_weights_of_the_context(heads, encoded, numbers, drawn):
    """Each head and position has a separate mask; the reported weights and those of search have no dropout."""
    score = {"score": "multi-head-additive", "heads": heads, "size": UNITS} if heads > 1 else {"size": UNITS}
    annotations = numbers(3, max(LENGTHS), 6)
    encoded = encoded._replace(annotations=annotations)
    attention, _ = drawn(Attention(AttentionConfig(**score), QUERY, 6, dropout=0.5))
    queries, memory = numbers(3, STEPS, QUERY), attention.on(encoded)
    plain = attention.attend_all(queries, attention.start(memory), memory)
    state = attention.start(memory, BatchRng(1), STEPS)
    masks = state.random
    assert masks.shape == (3, STEPS, heads, max(LENGTHS))
    assert set(masks.unique().tolist()) == {0.0, 2.0}
    found = attention.attend_all(queries, state, memory)
    torch.testing.assert_close(found.alpha, plain.alpha)
    if heads == 1:
        torch.testing.assert_close(found.context, (plain.alpha * masks[:, :, 0]) @ annotations)
    assert not torch.allclose(found.context, plain.context)
    for t in range(STEPS):
        attended, state = attention.step(queries[:, t], state, memory)
        torch.testing.assert_close(attended.context, found.context[:, t])
    halves = torch.full_like(masks, 0.5)
    halved = attention.attend_all(queries, attention.start(memory, BatchRng(1), STEPS)._replace(random=halves), memory)
    torch.testing.assert_close(halved.context, 0.5 * plain.context)


def test_keys_are_computed_once_per_sentence_and_stored_in_memory_only(encoded, numbers, drawn, monkeypatch):
    attention, _ = drawn(make())
    memory = attention.on(encoded)
    torch.testing.assert_close(memory.keys, attention.score.keys(encoded.annotations, encoded.mask))
    monkeypatch.setattr(attention.score, "keys", None)
    attention.step(numbers(3, QUERY), attention.start(memory), memory)
    assert not list(attention.buffers())
