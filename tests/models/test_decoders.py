"""The decoders against the papers' equations: what each step computes, feeds on and gives to its output."""

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauTanh
from rnnsearch.models.decoders.cho import Cho
from rnnsearch.models.decoders.readouts import DeepOutput
from rnnsearch.models.decoders.rnnencdec import RNNencdec
from rnnsearch.models.memory import Encoded
from rnnsearch.tensors import lengths_mask

LENGTHS = [3, 2]
E, H, S, D, L, T = 3, 6, 2, 4, 5, 3
"""Embedding, annotation, summary, decoder state, maxout, target positions."""


def sigma(x):
    return 1.0 / (1.0 + np.exp(-x))


@pytest.fixture
def encoded(numbers):
    return Encoded(numbers(2, 3, H), lengths_mask(torch.tensor(LENGTHS), 3), numbers(2, S), ())


@pytest.fixture
def words(numbers):
    return numbers(2, T, E)


def run(decoder, words, encoded):
    """Readings and readouts [B, I, ...] by repeated steps, as NumPy."""
    memory = decoder.remember(encoded)
    reading = decoder.unroll(decoder.inputs(words), decoder.start(memory), memory)
    return reading, decoder.readout(words, reading).detach().numpy()


def test_bahdanau_with_his_gru_unit_by_unit(drawn, encoded, words, paper, within):
    decoder, p = drawn(Bahdanau(CELLS["gru"], Attention.make(AttentionConfig(size=5), D, H), E, H, S, D, L))
    reading, readouts = run(decoder, words, encoded)
    W, b, C = p["cell.input.weight"], p["cell.input.bias"], p["context.weight"]
    U_zr, U = p["cell.recurrent_gates.weight"], p["cell.recurrent.weight"]
    for row, length in enumerate(LENGTHS):
        h = encoded.annotations[row, :length].numpy()
        backward_h_1 = encoded.summary[row].numpy()
        s = np.array([np.tanh(p["initial.weight"][k] @ backward_h_1 + p["initial.bias"][k]) for k in range(D)])
        for i in range(T):
            y = words[row, i].numpy()
            alpha = paper.softmax(paper.energies(within(p, "attention.score"), s, h))
            c = paper.context(alpha, h)
            # The output reads s_{i-1}, the state BEFORE this step's update.
            t = paper.deep_output(within(p, "deep_output"), s, y, c)
            np.testing.assert_allclose(reading.alpha[row, i, :length].detach().numpy(), alpha, atol=1e-12)
            np.testing.assert_allclose(reading.context[row, i].detach().numpy(), c, atol=1e-12)
            np.testing.assert_allclose(reading.state[row, i].detach().numpy(), s, atol=1e-12)
            np.testing.assert_allclose(readouts[row, i], t, atol=1e-12)
            z, r, candidate = np.empty(D), np.empty(D), np.empty(D)
            for k in range(D):
                z[k] = sigma(W[k] @ y + b[k] + U_zr[k] @ s + C[k] @ c)
                r[k] = sigma(W[D + k] @ y + b[D + k] + U_zr[D + k] @ s + C[D + k] @ c)
            for k in range(D):
                candidate[k] = np.tanh(W[2 * D + k] @ y + b[2 * D + k] + U[k] @ (r * s) + C[2 * D + k] @ c)
            s = (1 - z) * s + z * candidate


def test_bahdanau_under_a_tanh_layer_has_his_recurrence_and_nematus_s_output(drawn, encoded, words, within):
    parts = (CELLS["gru"], Attention.make(AttentionConfig(size=5), D, H), E, H, S, D, L)
    decoder, p = drawn(BahdanauTanh(*parts))
    plain, _ = drawn(Bahdanau(*parts))
    plain.load_state_dict({k: v for k, v in decoder.state_dict().items() if "deep_output" not in k}, strict=False)
    reading, readouts = run(decoder, words, encoded)
    same, _ = run(plain, words, encoded)
    assert torch.equal(reading.state, same.state)
    assert torch.equal(reading.context, same.context)
    o = within(p, "deep_output")
    for row in range(2):
        for i in range(T):
            s, c = (part[row, i].detach().numpy() for part in (reading.state, reading.context))
            t = np.tanh(
                o["state.weight"] @ s
                + o["state.bias"]
                + o["word.weight"] @ words[row, i].numpy()
                + o["context.weight"] @ c
            )
            np.testing.assert_allclose(readouts[row, i], t, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_bahdanau_in_any_cell(cell, drawn, encoded, words, paper, within):
    decoder, p = drawn(Bahdanau(CELLS[cell], Attention.make(AttentionConfig(size=5), D, H), E, H, S, D, L))
    _, readouts = run(decoder, words, encoded)
    for row, length in enumerate(LENGTHS):
        h = encoded.annotations[row, :length].numpy()
        s_0 = np.tanh(paper.product(p["initial.weight"], encoded.summary[row].numpy()) + p["initial.bias"])
        state = paper.start(cell, s_0)
        for i in range(T):
            y = words[row, i].numpy()
            c = paper.context(paper.softmax(paper.energies(within(p, "attention.score"), state[0], h)), h)
            t = paper.deep_output(within(p, "deep_output"), state[0], y, c)
            np.testing.assert_allclose(readouts[row, i], t, atol=1e-12)
            gates = paper.inputs(within(p, "cell"), y) + paper.product(p["context.weight"], c)
            state = paper.cells[cell](within(p, "cell"), gates, state)


@pytest.mark.parametrize("cell", CELLS)
def test_rnnencdec_feeds_its_one_context_to_every_step_and_to_the_output(cell, drawn, encoded, words, paper, within):
    decoder, p = drawn(RNNencdec(CELLS[cell], E, S, D, L))
    reading, readouts = run(decoder, words, encoded)
    assert reading.alpha is None
    for row in range(2):
        c = encoded.summary[row].numpy()
        state = paper.start(cell, np.tanh(paper.product(p["initial.weight"], c) + p["initial.bias"]))
        for i in range(T):
            y = words[row, i].numpy()
            t = paper.deep_output(within(p, "deep_output"), state[0], y, c)
            np.testing.assert_allclose(readouts[row, i], t, atol=1e-12)
            np.testing.assert_allclose(reading.context[row, i].detach().numpy(), c)
            gates = paper.inputs(within(p, "cell"), y) + paper.product(p["context.weight"], c)
            state = paper.cells[cell](within(p, "cell"), gates, state)


def test_cho_unit_by_unit_with_the_output_on_the_new_state(drawn, encoded, words, paper, within):
    decoder, p = drawn(Cho(E, S, D, L))
    reading, readouts = run(decoder, words, encoded)
    assert reading.alpha is None
    W, b, U, C = p["word.weight"], p["word.bias"], p["recurrent.weight"], p["context.weight"]
    for row in range(2):
        h_N = encoded.summary[row].numpy()
        c = np.tanh(paper.product(p["summary.weight"], h_N) + p["summary.bias"])
        h = np.tanh(paper.product(p["initial.weight"], c) + p["initial.bias"])
        for i in range(T):
            y = words[row, i].numpy()
            new = np.empty(D)
            for k in range(D):
                z = sigma(W[k] @ y + b[k] + U[k] @ h + C[k] @ c)
                r = sigma(W[D + k] @ y + b[D + k] + U[D + k] @ h + C[D + k] @ c)
                # The reset acts on the state's product and the context's together.
                candidate = np.tanh(W[2 * D + k] @ y + b[2 * D + k] + r * (U[2 * D + k] @ h + C[2 * D + k] @ c))
                new[k] = z * h[k] + (1 - z) * candidate
            h = new
            np.testing.assert_allclose(reading.state[row, i].detach().numpy(), h, atol=1e-12)
            t = paper.deep_output(within(p, "deep_output"), h, y, c)
            np.testing.assert_allclose(readouts[row, i], t, atol=1e-12)


def test_deep_output_takes_the_larger_of_each_pair_of_neighbours():
    layer = DeepOutput(1, 1, 1, 2)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
        layer.state.bias.copy_(torch.tensor([1.0, 5.0, 4.0, 2.0]))
    assert layer(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1)).tolist() == [[5.0, 4.0]]
