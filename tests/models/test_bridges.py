"""Bridges from the encoder's last states to the decoder's first states equal their equations."""

import numpy as np
import pytest
import torch

from rnnsearch.config.cells import LayerState
from rnnsearch.models.bridges import BRIDGES, Copy, LastAnnotation, Learned, LearnedTop, Rectified
from rnnsearch.models.memory import Hidden, HiddenAndCell, Memory, StateShape
from tests.models.reference import close, product

GRU, LSTM = (lambda size: StateShape(Hidden, size)), (lambda size: StateShape(HiddenAndCell, size))


def declared(shapes):
    """Return the states of some layers as `config` declares them."""
    return [LayerState(tuple(shape[0]._fields), shape.size) for shape in shapes]


def memory_of(shapes, numbers):
    finals = tuple(kind(*(numbers(2, size) for _ in kind._fields)) for kind, size in shapes)
    mask = torch.ones(2, 3, dtype=torch.bool)
    return Memory(numbers(2, 3, 4), mask, numbers(2, 4), finals)


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [
        ((LSTM(4), LSTM(4)), (LSTM(4), LSTM(4))),
        ((GRU(8),), (LSTM(3), LSTM(3), LSTM(3))),
        ((LSTM(8), LSTM(4), LSTM(4)), (GRU(5), GRU(5))),
    ],
    ids=["alike", "one to three", "three to two"],
)
@pytest.mark.parametrize("name", BRIDGES)
def test_each_bridge_returns_decoder_states_or_is_rejected(name, encoder, decoder, numbers):
    reason = BRIDGES[name].component.unsupported_reason(declared(encoder), declared(decoder))
    has_other_size = any(layer.size != encoder[-1].size for layer in decoder)
    assert (reason is not None) == (
        (name == "copy" and encoder != decoder) or (name == "annotation" and has_other_size)
    )
    if reason is None:
        memory = memory_of(encoder, numbers)
        states = BRIDGES[name](encoder, decoder).double()(memory)
        found = tuple(StateShape(type(state), state.h.shape[1]) for state in states)
        assert found == decoder
        assert all(
            part.shape == (2, shape.size) for state, shape in zip(states, decoder, strict=True) for part in state
        )
        assert any(part.any() for state in states for part in state) == (name != "zero")
        assert (states is memory.finals) == (name == "copy")


@pytest.mark.parametrize(
    ("encoder", "decoder", "reason"),
    [
        ((LSTM(4),), (LSTM(4), LSTM(4)), "as many encoder layers as decoder layers; got 1 and 2"),
        ((LSTM(8), LSTM(4)), (LSTM(4), LSTM(4)), "layer 1 has 8 units in the encoder and 4 in the decoder"),
        ((GRU(4),), (LSTM(4),), "whose cells carry the same"),
    ],
)
def test_copy_bridge_rejects_other_sizes(encoder, decoder, reason):
    message = Copy.component.unsupported_reason(declared(encoder), declared(decoder))
    assert message is not None
    assert reason in message
    assert '"learned"' in message


@pytest.mark.parametrize("kind", [GRU, LSTM], ids=["gru", "lstm"])
def test_annotation_bridge_starts_from_the_annotation_of_the_last_position(kind, numbers):
    """Neubig's tutorial, eq. 72: h_0 = h_{|F|+1}."""
    memory = memory_of((GRU(4),), numbers)._replace(mask=torch.tensor([[True, True, True], [True, True, False]]))
    states = LastAnnotation((GRU(4),), (kind(4), kind(4)))(memory)
    for state in states:
        assert torch.equal(state.h, torch.stack([memory.annotations[0, 2], memory.annotations[1, 1]]))
        assert not any(part.any() for part in state[1:])


@pytest.mark.parametrize(
    ("encoder", "decoder", "reads"),
    [
        ((4, 4), (4, 4), (0, 1)),
        ((8,), (4, 4, 4), (0, 0, 0)),
        ((8, 4, 4), (4, 4), (1, 2)),
        ((8, 4), (3, 3, 3), (0, 0, 1)),
    ],
)
def test_learned_bridge_equals_its_equation_per_layer(encoder, decoder, reads, drawn, numbers):
    """s^l_0 = tanh(W_l [h; c] + b_l), from the encoder layer at the same distance from the top."""
    shapes = tuple(LSTM(size) for size in encoder)
    bridge, p = drawn(Learned(shapes, tuple(LSTM(size) for size in decoder)))
    assert bridge.encoder_layers == reads
    memory = memory_of(shapes, numbers)
    states = bridge(memory)
    for l, e in enumerate(reads):
        W, b = p[f"layers.{l}.weight"], p[f"layers.{l}.bias"]
        for n in range(2):
            f = np.concatenate([part[n].numpy() for part in memory.finals[e]])
            close(torch.cat(tuple(states[l]), -1)[n], np.tanh(product(W, f) + b))


def test_learned_top_bridge_reads_the_top_layer(drawn, numbers):
    """s^l_0 = tanh(W_l [h^L; c^L] + b_l)."""
    bridge, p = drawn(LearnedTop((LSTM(4), LSTM(2)), (GRU(3), GRU(3))))
    memory = memory_of((LSTM(4), LSTM(2)), numbers)
    for l, state in enumerate(bridge(memory)):
        W, b = p[f"layers.{l}.weight"], p[f"layers.{l}.bias"]
        for n in range(2):
            top = np.concatenate([part[n].numpy() for part in memory.finals[1]])
            close(state.h[n], np.tanh(product(W, top) + b))


@pytest.mark.parametrize("encoder", [(LSTM(4), LSTM(2)), (GRU(5),)], ids=["lstm", "gru"])
def test_rectified_bridge_reads_all_layers(encoder, drawn, numbers):
    """max(0, W_h [h^1; h^2] + b_h) (OpenNMT-py); the memory cells have separate weights."""
    bridge, p = drawn(Rectified(encoder, (LSTM(3), LSTM(3))))
    memory = memory_of(encoder, numbers)
    states = bridge(memory)
    for part, name in enumerate(("h", "c")):
        W, b = p[f"layers.{part}.weight"], p[f"layers.{part}.bias"]
        for n in range(2):
            read = np.concatenate([getattr(final, name, final.h)[n].numpy() for final in memory.finals])
            expected = np.maximum(product(W, read) + b, 0)
            close(torch.cat([states[0][part][n], states[1][part][n]]), expected)
