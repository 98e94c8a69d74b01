"""Neubig's attentional decoder (eq. 72-75) and RNMT+'s, against loops from the papers."""

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.bridges import Copy
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.neubig import Neubig
from rnnsearch.models.decoders.rnmt_plus import RNMTPlus
from rnnsearch.models.memory import Encoded, HiddenAndCell
from rnnsearch.models.stack import Stack
from rnnsearch.tensors import lengths_mask

LENGTHS = [3, 2]
E, H, D, T, L = 3, 6, 4, 3, 3
"""Embedding, annotation, decoder state, target positions, layers."""


@pytest.fixture
def encoded(numbers):
    finals = tuple(HiddenAndCell(numbers(2, D), numbers(2, D)) for _ in range(L))
    return Encoded(numbers(2, 3, H), lengths_mask(torch.tensor(LENGTHS), 3), numbers(2, 2), finals)


@pytest.fixture
def words(numbers):
    return numbers(2, T, E)


def run(decoder, words, encoded):
    memory = decoder.remember(encoded)
    reading = decoder.unroll(decoder.inputs(words), decoder.start(memory), memory)
    return reading, decoder.readout(words, reading).detach().numpy()


@pytest.mark.parametrize("layers", [1, 3])
def test_neubig_equation_by_equation(layers, drawn, encoded, words, paper, within):
    stack = Stack(CELLS["lstm"], E, D, layers)
    bridge = Copy(stack.shapes, stack.shapes)
    encoded = encoded._replace(finals=encoded.finals[:layers])
    decoder, p = drawn(Neubig(stack, bridge, Attention.make(AttentionConfig(size=5), D, H), H))
    reading, readouts = run(decoder, words, encoded)
    assert decoder.readout_size == D + H
    for row, length in enumerate(LENGTHS):
        F = encoded.annotations[row, :length].numpy()
        states = [tuple(part[row].numpy() for part in state) for state in encoded.finals]
        c = np.zeros(H)
        for i in range(T):
            # (72): the word's columns of W, and those of c_{t-1}
            x, more = words[row, i].numpy(), paper.product(p["context.weight"], c)
            for l in range(layers):
                own = within(p, f"stack.cells.{l}")
                states[l] = paper.cells["lstm"](own, paper.inputs(own, x) + (more if l == 0 else 0), states[l])
                x = states[l][0]
            alpha = paper.softmax(paper.energies(within(p, "attention.score"), x, F))  # (73), (74)
            c = paper.context(alpha, F)  # (71)
            np.testing.assert_allclose(reading.alpha[row, i, :length].detach().numpy(), alpha, atol=1e-12)
            np.testing.assert_allclose(readouts[row, i], np.concatenate([x, c]), atol=1e-12)  # (75)


def test_rnmt_plus_feeds_the_context_to_every_layer_and_the_output(drawn, encoded, words, paper, within):
    stack = Stack(CELLS["lstm"], E, D, L, residual_from=3, context_size=D)
    bridge = Copy(stack.shapes, stack.shapes)
    decoder, p = drawn(RNMTPlus(stack, bridge, Attention.make(AttentionConfig(size=5), D, D), H))
    reading, readouts = run(decoder, words, encoded)
    assert decoder.readout_size == 2 * D
    for row, length in enumerate(LENGTHS):
        W, b = p["projection.weight"], p["projection.bias"]
        annotations = np.stack([paper.product(W, h.numpy()) + b for h in encoded.annotations[row, :length]])
        states = [tuple(part[row].numpy() for part in state) for state in encoded.finals]
        for i in range(T):
            bottom = states[0][0]  # h^1_{t-1}
            alpha = paper.softmax(paper.energies(within(p, "attention.score"), bottom, annotations))
            c = paper.context(alpha, annotations)
            np.testing.assert_allclose(reading.alpha[row, i, :length].detach().numpy(), alpha, atol=1e-12)
            for l in range(L):
                own = within(p, f"stack.cells.{l}")
                if l == 0:
                    share = paper.inputs(own, words[row, i].numpy()) + paper.product(p["context.weight"], c)
                else:
                    share = paper.inputs(own, np.concatenate([x, c]))
                states[l] = paper.cells["lstm"](own, share, states[l])
                x = states[l][0] + (x if l == 2 else 0.0)  # residual from the third layer
            np.testing.assert_allclose(readouts[row, i], np.concatenate([x, c]), atol=1e-12)
