"""MEMDEC's reading, writing and addressing against a loop from the paper."""

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.memdec import MemDec
from rnnsearch.models.draws import Draws
from rnnsearch.models.memory import Encoded
from rnnsearch.tensors import lengths_mask

LENGTHS = [3, 2]
E, H, S, D, R, T, N, M = 3, 6, 2, 4, 5, 4, 3, 2
"""Embedding, annotation, summary, decoder state, maxout, target positions, slots, slot size."""


def sigma(x):
    return 1.0 / (1.0 + np.exp(-x))


@pytest.fixture
def encoded(numbers):
    return Encoded(numbers(2, 3, H), lengths_mask(torch.tensor(LENGTHS), 3), numbers(2, S), ())


@pytest.fixture
def words(numbers):
    return numbers(2, T, E)


def make(cell, state_dropout=0.0):
    attention = Attention.make(AttentionConfig(size=5), D, H)
    return MemDec(CELLS[cell], attention, E, H, S, D, N, M, R, state_dropout)


def addressed(p, buffer, s, before):
    """w(k) = g w_before(k) + (1 - g) softmax_k v^T tanh(A M(k) + B s)."""
    energies = [
        sum(p["vector"][a] * np.tanh(p["slot.weight"][a] @ cell + p["query.weight"][a] @ s) for a in range(M))
        for cell in buffer
    ]
    total = sum(np.exp(e) for e in energies)
    g = sigma(p["gate.weight"][0] @ s + p["gate.bias"][0])
    return np.array([g * w + (1 - g) * np.exp(e) / total for w, e in zip(before, energies, strict=True)])


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_memdec_reads_erases_and_adds(cell, drawn, encoded, words, paper, within):
    decoder, p = drawn(make(cell))
    memory = decoder.remember(encoded)
    state = decoder.start(memory)
    x = decoder.inputs(words)
    states, readings = [], []
    for i in range(T):
        state, reading = decoder.step(x[:, i], state, memory)
        states.append(state)
        readings.append((reading, decoder.readout(words[:, i], reading)))
    own = within(p, "cell")
    for row, length in enumerate(LENGTHS):
        annotations = encoded.annotations[row, :length].numpy()
        s_0 = np.tanh(paper.product(p["initial.weight"], encoded.summary[row].numpy()) + p["initial.bias"])
        controller = paper.start(cell, s_0)
        flat = paper.product(p["first_buffer.weight"], sum(annotations) / length) + p["first_buffer.bias"]
        buffer = np.tanh(flat).reshape(N, M)
        read = write = np.full(N, 1 / N)
        for i in range(T):
            y = words[row, i].numpy()
            fed_back = paper.product(p["recurrent.weight"], controller[0])
            between = np.tanh(paper.product(p["word.weight"], y) + p["word.bias"] + fed_back)
            read = addressed(within(p, "reader"), buffer, between, read)
            r = sum(w * slot for w, slot in zip(read, buffer, strict=True))
            alpha = paper.softmax(paper.energies(within(p, "attention.score"), between, annotations))
            c = paper.context(alpha, annotations)
            controller = paper.cells[cell](own, paper.inputs(own, np.concatenate([c, r])), (between, *controller[1:]))
            s = controller[0]
            write = addressed(within(p, "writer"), buffer, s, write)
            erase, add = sigma(paper.product(p["erase.weight"], s)), sigma(paper.product(p["add.weight"], s))
            new = np.empty((N, M))
            for k in range(N):
                for m in range(M):
                    new[k, m] = buffer[k, m] * (1 - write[k] * erase[m]) + write[k] * add[m]
            buffer = new
            np.testing.assert_allclose(states[i].read[row].detach().numpy(), read, atol=1e-12)
            np.testing.assert_allclose(states[i].write[row].detach().numpy(), write, atol=1e-12)
            np.testing.assert_allclose(states[i].buffer[row].detach().numpy(), buffer, atol=1e-12)
            reading, readout = readings[i]
            np.testing.assert_allclose(reading.alpha[row, :length].detach().numpy(), alpha, atol=1e-12)
            t = paper.deep_output(within(p, "deep_output"), s, y, c)
            np.testing.assert_allclose(readout[row].detach().numpy(), t, atol=1e-12)


def test_weights_of_reading_and_writing_sum_to_one(drawn, encoded, words):
    decoder, _ = drawn(make("gru"))
    memory = decoder.remember(encoded)
    state = decoder.start(memory)
    for x in decoder.inputs(words).unbind(1):
        state, _ = decoder.step(x, state, memory)
        for weights in (state.read, state.write):
            torch.testing.assert_close(weights.sum(1), torch.ones(2, dtype=weights.dtype))


def test_what_was_written_reaches_later_words(drawn, encoded, words):
    """With nothing added and nothing erased the buffer stays, and later readouts are others."""
    decoder, _ = drawn(make("gru"))
    memory = decoder.remember(encoded)

    def readouts():
        reading = decoder.unroll(decoder.inputs(words), decoder.start(memory), memory)
        return decoder.readout(words, reading)

    before = readouts()
    with torch.no_grad():
        decoder.add.weight.mul_(-3.0)
    after = readouts()
    assert torch.equal(after[:, 0], before[:, 0])
    assert not torch.allclose(after[:, 1], before[:, 1])


def test_state_dropout_masks_both_ways_back(drawn, encoded, words):
    decoder, _ = drawn(make("gru", 0.5))
    memory = decoder.remember(encoded)
    assert decoder.start(memory, Draws(1), T).masks.shape == (2, 2, D)
    plain = decoder.start(memory)
    expected = decoder.unroll(decoder.inputs(words), plain, memory).state
    for way in (0, 1):
        masks = torch.ones(2, 2, D, dtype=torch.float64)
        same = decoder.unroll(decoder.inputs(words), plain._replace(masks=masks), memory).state
        torch.testing.assert_close(same, expected, rtol=0, atol=0)
        masks[:, way] = 0.0
        other = decoder.unroll(decoder.inputs(words), plain._replace(masks=masks), memory).state
        assert not torch.allclose(other, expected)
