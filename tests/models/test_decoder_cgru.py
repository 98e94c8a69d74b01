"""The conditional GRU, its deep transition and BiDeep, against loops from the papers."""

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig, DropoutConfig
from rnnsearch.config.model import GlorotOptions
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.bideep import BiDeep
from rnnsearch.models.decoders.cgru import ConditionalGRU
from rnnsearch.models.decoders.conditional import Transitions
from rnnsearch.models.decoders.deep_transition import DeepTransition
from rnnsearch.models.draws import Draws
from rnnsearch.models.initialise import INITS, generator, initialise
from rnnsearch.models.memory import Encoded, Hidden
from rnnsearch.tensors import lengths_mask

LENGTHS = [3, 2]
E, H, D, R, T = 3, 6, 4, 5, 3
"""Embedding, annotation, decoder state, readout, target positions."""


def sigma(x):
    return 1.0 / (1.0 + np.exp(-x))


@pytest.fixture
def encoded(numbers):
    return Encoded(numbers(2, 3, H), lengths_mask(torch.tensor(LENGTHS), 3), numbers(2, 2), ())


@pytest.fixture
def words(numbers):
    return numbers(2, T, E)


def attention():
    return Attention.make(AttentionConfig(size=5), D, H)


def run(decoder, words, encoded):
    memory = decoder.remember(encoded)
    reading = decoder.unroll(decoder.inputs(words), decoder.start(memory), memory)
    return reading, decoder.readout(words, reading).detach().numpy()


def tanh_output(p, s, y, c):
    return [
        np.tanh(
            p["output.state.weight"][k] @ s
            + p["output.state.bias"][k]
            + p["output.word.weight"][k] @ y
            + p["output.context.weight"][k] @ c
        )
        for k in range(R)
    ]


def nematus_gru(p, x, s):
    """Nematus: r and z of W x + U s, the candidate tanh(W x + r * (U s + b)), the old state carried by z."""
    n, new = len(s), np.empty(len(s))
    W, b, U, b_U = p["input.weight"], p["input.bias"], p["recurrent.weight"], p["recurrent.bias"]
    for k in range(n):
        r = sigma(W[k] @ x + b[k] + U[k] @ s + b_U[k])
        z = sigma(W[n + k] @ x + b[n + k] + U[n + k] @ s + b_U[n + k])
        candidate = np.tanh(W[2 * n + k] @ x + b[2 * n + k] + r * (U[2 * n + k] @ s + b_U[2 * n + k]))
        new[k] = (1 - z) * candidate + z * s[k]
    return new


def test_nematus_unit_by_unit(drawn, encoded, words, paper, within):
    decoder, p = drawn(ConditionalGRU(CELLS["torch-gru"], attention(), E, H, D, R))
    reading, readouts = run(decoder, words, encoded)
    for row, length in enumerate(LENGTHS):
        annotations = encoded.annotations[row, :length].numpy()
        mean = sum(annotations) / length
        s = np.array([np.tanh(p["initial.weight"][k] @ mean + p["initial.bias"][k]) for k in range(D)])
        for i in range(T):
            y = words[row, i].numpy()
            between = nematus_gru(within(p, "cell.word"), y, s)
            alpha = paper.softmax(paper.energies(within(p, "cell.attention.score"), between, annotations))
            c = paper.context(alpha, annotations)
            s = nematus_gru(within(p, "cell.context"), c, between)
            np.testing.assert_allclose(reading.alpha[row, i, :length].detach().numpy(), alpha, atol=1e-12)
            np.testing.assert_allclose(reading.state[row, i].detach().numpy(), s, atol=1e-12)
            np.testing.assert_allclose(readouts[row, i], tanh_output(p, s, y, c), atol=1e-12)


@pytest.mark.parametrize("cell", ["gru", "lstm", "tanh"])
@pytest.mark.parametrize("transitions", [0, 2])
def test_deep_transition_in_any_cell(cell, transitions, drawn, encoded, words, paper, within):
    decoder, p = drawn(DeepTransition(CELLS[cell], attention(), E, H, D, R, transitions))
    _, readouts = run(decoder, words, encoded)
    step = paper.cells[cell]
    for row, length in enumerate(LENGTHS):
        annotations = encoded.annotations[row, :length].numpy()
        mean = sum(annotations) / length
        state = paper.start(cell, np.tanh(paper.product(p["initial.weight"], mean) + p["initial.bias"]))
        for i in range(T):
            y = words[row, i].numpy()
            own = within(p, "cell.word")
            state = step(own, paper.inputs(own, y), state)
            energies = paper.energies(within(p, "cell.attention.score"), state[0], annotations)
            c = paper.context(paper.softmax(energies), annotations)
            own = within(p, "cell.context")
            state = step(own, paper.inputs(own, c), state)
            for k in range(transitions):
                own = within(p, f"cell.transitions.cells.{k}")
                state = step(own, own["input.bias"], state)  # GRU_k(0, s): the biases alone
            np.testing.assert_allclose(readouts[row, i], tanh_output(p, state[0], y, c), atol=1e-12)


@pytest.mark.parametrize("residual_from", [None, 2, 3])
def test_bideep_layer_by_layer(residual_from, drawn, encoded, words, paper, within):
    decoder, p = drawn(BiDeep(CELLS["gru"], attention(), E, H, D, R, 1, 3, residual_from))
    _, readouts = run(decoder, words, encoded)

    def step(name, x, s):
        own = within(p, name)
        share = own["input.bias"] if x is None else paper.inputs(own, x)
        return paper.cells["gru"](own, share, (s,))[0]

    for row, length in enumerate(LENGTHS):
        annotations = encoded.annotations[row, :length].numpy()
        first = np.tanh(paper.product(p["initial.weight"], sum(annotations) / length) + p["initial.bias"])
        s = [first[:D], first[D : 2 * D], first[2 * D :]]
        for i in range(T):
            y = words[row, i].numpy()
            between = step("first.word", y, s[0])
            energies = paper.energies(within(p, "first.attention.score"), between, annotations)
            c = paper.context(paper.softmax(energies), annotations)
            s[0] = step("first.transitions.cells.0", None, step("first.context", c, between))
            w = s[0]
            for r in (1, 2):
                new = step(f"upper.{r - 1}.cell", np.concatenate([w, c]), s[r])
                s[r] = step(f"upper.{r - 1}.transitions.cells.0", None, new)
                w = s[r] + w if residual_from and r + 1 >= residual_from else s[r]
            np.testing.assert_allclose(readouts[row, i], tanh_output(p, w, y, c), atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_without_inputs_reads_its_state_and_learns_a_bias(cell, numbers):
    made = CELLS[cell](None, D)
    initialise(made, INITS["glorot"](GlorotOptions(), generator(1)))
    assert made.input.bias.shape == (made.blocks * D,)
    made.double()
    state = made.start(numbers(2, D))
    new = made.step(made.inputs(numbers(2, 0)), state)
    (new.h * numbers(2, D)).sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())
    assert made.input.bias.grad.any()


def test_transitions_of_no_cells_leave_the_state():
    state = Hidden(torch.ones(2, D))
    assert Transitions(CELLS["gru"], D, 0)(state, None, 2) is state


@pytest.mark.parametrize("kind", ["cgru", "bideep"])
def test_state_dropout_masks_what_each_cell_feeds_back(kind, drawn, encoded, words):
    """With masks of ones, nothing changes; zeros for one cell change what that cell makes, and so each cell counts."""
    if kind == "cgru":
        decoder, _ = drawn(ConditionalGRU(CELLS["gru"], attention(), E, H, D, R, 1, 0.5))
    else:
        dropout = DropoutConfig(state=0.5, layers=0.5)
        decoder, _ = drawn(BiDeep(CELLS["gru"], attention(), E, H, D, R, 1, 2, None, dropout))
    memory = decoder.remember(encoded)
    start = decoder.start(memory, Draws(1), T)
    assert start.masks.shape == (2, 3 if kind == "cgru" else 5, D)

    def readout(state):
        return decoder.readout(words, decoder.unroll(decoder.inputs(words), state, memory))

    plain, whole = decoder.start(memory), torch.ones_like(start.masks)
    expected = readout(plain)
    torch.testing.assert_close(readout(plain._replace(masks=whole)), expected, rtol=0, atol=0)
    for cell in range(whole.shape[1]):
        masks = whole.clone()
        masks[:, cell] = 0.0
        assert not torch.allclose(readout(plain._replace(masks=masks)), expected), cell
    if kind == "bideep":
        assert start.up.shape == (2, T, 1, D)
        for position in range(T):
            up = torch.ones_like(start.up)
            torch.testing.assert_close(readout(plain._replace(up=up)), expected, rtol=0, atol=0)
            up[:, position] = 0.0
            changed = (readout(plain._replace(up=up)) != expected).flatten(2).any(2).any(0)
            assert changed.tolist() == [i >= position for i in range(T)]
