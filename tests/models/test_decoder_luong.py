"""Luong et al.'s decoder, with and without input feeding, and Sutskever et al.'s, against loops from the papers."""

import numpy as np
import pytest
import torch

from rnnsearch.backend.twins import choose
from rnnsearch.config import AttentionConfig, DropoutConfig
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.bridges import Copy, Zero
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.luong import Luong
from rnnsearch.models.decoders.luong_input_feeding import LuongInputFeeding
from rnnsearch.models.decoders.sutskever import Sutskever
from rnnsearch.models.draws import Draws
from rnnsearch.models.memory import Encoded, Hidden, HiddenAndCell
from rnnsearch.models.stack import Stack
from rnnsearch.tensors import lengths_mask, select

LENGTHS = [3, 2]
E, H, D, R, T, L = 3, 6, 4, 5, 3, 2
"""Embedding, annotation, decoder state, h~, target positions, layers."""
DROPOUT = DropoutConfig(layers=0.3, state=0.2)


@pytest.fixture
def encoded(numbers):
    finals = tuple(HiddenAndCell(numbers(2, D), numbers(2, D)) for _ in range(L))
    return Encoded(numbers(2, 3, H), lengths_mask(torch.tensor(LENGTHS), 3), numbers(2, 2), finals)


@pytest.fixture
def words(numbers):
    return numbers(2, T, E)


def stack_of(cell="lstm", residual_from=None, dropout=None):
    return Stack(CELLS[cell], E, D, L, residual_from, dropout)


def luong(kind, cell="lstm", residual_from=None, dropout=None):
    stack = stack_of(cell, residual_from, dropout)
    return kind(stack, Copy(stack.shapes, stack.shapes), Attention.make(AttentionConfig(size=5), D, H), H, R)


def run(decoder, words, encoded):
    """The reading and the readouts [B, I, ...] of the decoder's own unroll."""
    memory = decoder.remember(encoded)
    reading = decoder.unroll(decoder.inputs(words), decoder.start(memory), memory)
    return reading, decoder.readout(words, reading).detach().numpy()


class Layers:
    """The stack by the equations: each layer reads the h of the one below."""

    def __init__(self, paper, within, p, cell, states, residual_from=L + 1):
        self.paper, self.cell, self.states, self.residual_from = paper, cell, list(states), residual_from
        self.p = [within(p, f"stack.cells.{l}") for l in range(L)]

    def step(self, x, more=0.0):
        for l, p in enumerate(self.p):
            share = self.paper.inputs(p, x) + (more if l == 0 else 0.0)
            self.states[l] = self.paper.cells[self.cell](p, share, self.states[l])
            h = self.states[l][0]
            x = h + x if l + 1 >= self.residual_from else h
        return x


def finals(encoded, row):
    return [tuple(part[row].numpy() for part in state) for state in encoded.finals]


def test_sutskever_sees_the_source_in_its_first_states_alone(drawn, encoded, words, paper, within):
    stack = stack_of()
    decoder, p = drawn(Sutskever(stack, Copy(stack.shapes, stack.shapes)))
    reading, readouts = run(decoder, words, encoded)
    assert reading.alpha is None
    assert reading.context.shape == (2, T, 0)
    for row in range(2):
        layers = Layers(paper, within, p, "lstm", finals(encoded, row))
        for i in range(T):
            np.testing.assert_allclose(readouts[row, i], layers.step(words[row, i].numpy()), atol=1e-12)
    other = encoded._replace(annotations=encoded.annotations + 1, summary=encoded.summary + 1)
    assert np.array_equal(run(decoder, words, other)[1], readouts)


@pytest.mark.parametrize("residual_from", [None, 2])
def test_luong_attends_after_the_top_layer(residual_from, drawn, encoded, words, paper, within):
    decoder, p = drawn(luong(Luong, residual_from=residual_from))
    reading, readouts = run(decoder, words, encoded)
    W_c = p["attentional.combine.weight"]
    for row, length in enumerate(LENGTHS):
        annotations = encoded.annotations[row, :length].numpy()
        layers = Layers(paper, within, p, "lstm", finals(encoded, row), residual_from or L + 1)
        for i in range(T):
            h = layers.step(words[row, i].numpy())
            alpha = paper.softmax(paper.energies(within(p, "attention.score"), h, annotations))
            c = paper.context(alpha, annotations)
            np.testing.assert_allclose(reading.alpha[row, i, :length].detach().numpy(), alpha, atol=1e-12)
            np.testing.assert_allclose(reading.state[row, i].detach().numpy(), h, atol=1e-12)
            expected = [np.tanh(W_c[k, :H] @ c + W_c[k, H:] @ h) for k in range(R)]
            np.testing.assert_allclose(readouts[row, i], expected, atol=1e-12)


def test_input_feeding_reads_the_last_h_tilde_beside_the_word(drawn, encoded, words, paper, within):
    decoder, p = drawn(luong(LuongInputFeeding))
    reading, readouts = run(decoder, words, encoded)
    W_c = p["attentional.combine.weight"]
    for row, length in enumerate(LENGTHS):
        annotations = encoded.annotations[row, :length].numpy()
        layers = Layers(paper, within, p, "lstm", finals(encoded, row))
        fed = np.zeros(R)
        for i in range(T):
            h = layers.step(words[row, i].numpy(), paper.product(p["feeding.weight"], fed))
            alpha = paper.softmax(paper.energies(within(p, "attention.score"), h, annotations))
            c = paper.context(alpha, annotations)
            fed = np.array([np.tanh(W_c[k, :H] @ c + W_c[k, H:] @ h) for k in range(R)])
            np.testing.assert_allclose(reading.alpha[row, i, :length].detach().numpy(), alpha, atol=1e-12)
            np.testing.assert_allclose(readouts[row, i], fed, atol=1e-12)
            np.testing.assert_allclose(reading.state[row, i].detach().numpy(), fed, atol=1e-12)


def test_input_feeding_without_its_weights_is_luong(drawn, encoded, words):
    plain, _ = drawn(luong(Luong))
    feeding, _ = drawn(luong(LuongInputFeeding))
    own = dict(plain.named_parameters())
    with torch.no_grad():
        for name, parameter in feeding.named_parameters():
            parameter.copy_(own[name]) if name in own else parameter.zero_()
    np.testing.assert_allclose(run(feeding, words, encoded)[1], run(plain, words, encoded)[1], atol=1e-12)


@pytest.mark.parametrize("kind", ["sutskever", "luong"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "torch-gru"])
@pytest.mark.parametrize("seed", [None, 3])
def test_all_positions_at_once_are_the_step_repeated(kind, cell, seed, drawn, numbers, encoded, words):
    """Readouts, weights and every gradient; with a seed, under dropout between the layers and on their states."""
    if cell != "lstm":
        encoded = encoded._replace(finals=tuple(Hidden(state.h) for state in encoded.finals))
    dropout = None if seed is None else DROPOUT
    weights, results = numbers(2, T, D if kind == "sutskever" else R), []
    for fast in (False, True):
        if kind == "luong":
            decoder, _ = drawn(luong(Luong, cell, 2, dropout))
        else:
            stack = stack_of(cell, 2, dropout)
            decoder, _ = drawn(Sutskever(stack, Copy(stack.shapes, stack.shapes)))
        choose(decoder, fast)
        memory = decoder.remember(encoded)
        state = decoder.start(memory, None if seed is None else Draws(seed), T)
        reading = decoder.unroll(decoder.inputs(words), state, memory)
        readout = decoder.readout(words, reading)
        (readout * weights).sum().backward()
        results.append((readout, reading.alpha, {n: p.grad for n, p in decoder.named_parameters()}))
    (readout, alpha, gradients), (again, alpha_again, gradients_again) = results
    torch.testing.assert_close(again, readout, rtol=0, atol=1e-12)
    if alpha is not None:
        torch.testing.assert_close(alpha_again, alpha, rtol=0, atol=1e-12)
    for name, gradient in gradients.items():
        assert gradient.any(), name
        torch.testing.assert_close(gradients_again[name], gradient, rtol=1e-9, atol=1e-12)


ATTENTIONS = {
    "dot": {"score": "dot"},
    "location": {"score": "location", "max_source": 8},
    "local-m": {"score": "general", "window": "local-m", "width": 1},
    "local-p": {"score": "general", "window": "local-p", "width": 1},
    "heads": {"score": "multi-head-additive", "size": 4, "heads": 2},
    "hard": {"size": 4, "normaliser": "hard"},
    "position": {"size": 4, "features": ["position"]},
    "markov": {"size": 4, "features": ["markov"], "neighbours": 1},
}


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("seed", [None, 3])
def test_all_positions_at_once_in_every_kind_of_attention(name, seed, drawn, numbers, encoded, words):
    """Where attention merges, attention over all positions is the step's, hard attention's draws too; where it carries
    something from position to position (Markov), the step is repeated."""
    annotations = numbers(2, 3, D)
    encoded = encoded._replace(annotations=annotations)
    results = []
    for fast in (False, True):
        stack = stack_of()
        attention = Attention.make(AttentionConfig(**ATTENTIONS[name]), D, D)
        decoder, _ = drawn(Luong(stack, Copy(stack.shapes, stack.shapes), attention, D, R))
        assert attention.merges == (name != "markov")
        choose(decoder, fast)
        memory = decoder.remember(encoded)
        state = decoder.start(memory, None if seed is None else Draws(seed), T)
        reading = decoder.unroll(decoder.inputs(words), state, memory)
        readout = decoder.readout(words, reading)
        readout.square().sum().backward()
        gradients = {n: p.grad for n, p in decoder.named_parameters() if p.grad is not None}
        results.append((readout, reading.alpha, reading.expected, gradients))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [Luong, LuongInputFeeding])
def test_dropout_makes_a_difference_and_the_same_draws_the_same(kind, drawn, encoded, words):
    decoder, _ = drawn(luong(kind, dropout=DROPOUT))
    memory = decoder.remember(encoded)

    def readout(seed):
        state = decoder.start(memory, None if seed is None else Draws(seed), T)
        return decoder.readout(words, decoder.unroll(decoder.inputs(words), state, memory))

    assert torch.equal(readout(1), readout(1))
    assert not torch.equal(readout(1), readout(2))
    assert not torch.equal(readout(1), readout(None))


@pytest.mark.parametrize("kind", [Luong, LuongInputFeeding])
def test_hypotheses_are_rows_and_memory_stays_one_row_a_sentence(kind, drawn, encoded, words):
    """K = 2 hypotheses of each sentence, in any order, give what each gives by itself."""
    decoder, _ = drawn(luong(kind))
    memory = decoder.remember(encoded)
    x = decoder.inputs(words)
    single, _ = decoder.step(x[:, 0], decoder.start(memory), memory)
    doubled = select(single, torch.tensor([0, 0, 1, 1]))
    both = torch.stack([x[0, 1], x[0, 2], x[1, 1], x[1, 2]])
    _, reading = decoder.step(both, doubled, memory)
    for k in (0, 1):
        _, alone = decoder.step(x[:, k + 1], single, memory)
        torch.testing.assert_close(reading.state[[k, 2 + k]], alone.state)
        torch.testing.assert_close(reading.alpha[[k, 2 + k]], alone.alpha)


def test_zero_first_states(drawn, encoded, words, paper, within):
    stack = stack_of()
    attention = Attention.make(AttentionConfig(size=5), D, H)
    decoder, p = drawn(Luong(stack, Zero(stack.shapes, stack.shapes), attention, H, R))
    reading, _ = run(decoder, words, encoded)
    layers = Layers(paper, within, p, "lstm", [(np.zeros(D), np.zeros(D))] * L)
    np.testing.assert_allclose(reading.state[0, 0].detach().numpy(), layers.step(words[0, 0].numpy()), atol=1e-12)
