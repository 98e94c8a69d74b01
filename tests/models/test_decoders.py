"""Each decoder equals its paper's equations: its states, its attention and the readout."""

import pytest
import torch

from rnnsearch.config import AttentionConfig, DropoutConfig, ModelConfig, decoders
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders import DECODERS
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.memory import Encoded, HiddenAndCell, StateShape
from rnnsearch.utils.tensors import lengths_mask
from tests.models import decoder_equations as equations
from tests.models.decoder_equations import Sentence
from tests.models.reference import close

LENGTHS = [3, 2]
E, H, S, D, R, T, L, N, M = 3, 6, 2, 4, 5, 4, 3, 3, 2
"""Embedding, annotation, summary, decoder state, readout, target positions, layers, slots, slot size."""
OPTIONS = {
    "cell": "lstm",
    "size": D,
    "maxout": R,
    "readout": R,
    "layers": L,
    "bridge": "copy",
    "transitions": 1,
    "slots": N,
    "slot_size": M,
}


@pytest.fixture
def encoded(numbers):
    finals = tuple(HiddenAndCell(numbers(2, D), numbers(2, D)) for _ in range(L))
    return Encoded(numbers(2, 3, H), lengths_mask(torch.tensor(LENGTHS), 3), numbers(2, S), finals)


@pytest.fixture
def words(numbers):
    return numbers(2, T, E)


class Sizes(Encoder):
    """Encoder that declares its sizes and is never run."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.annotation_size, self.summary_size, self.shapes = H, S, (StateShape(HiddenAndCell, D),) * L

    def encode(self, x, mask, rng=None):
        raise NotImplementedError


def make(name, dropout=None, **given):
    """Return a decoder with its required options and the options in `given`."""
    options = {
        option: value
        for option, value in (OPTIONS | given).items()
        if option in decoders.DECODERS[name].option_fields()
    }
    model = ModelConfig(
        embedding=E,
        encoder={"type": "bidirectional", "cell": "gru", "size": 1},
        attention=AttentionConfig(size=5) if DECODERS[name].component.attends else None,
        decoder={"type": name, **options},
        dropout=dropout or DropoutConfig(),
    )
    return DECODERS[name](model.decoder, model, Sizes())


def cases():
    """Yield the name of each decoder, a module, and the arguments of its equations."""
    for cell in CELLS:
        yield "bahdanau", make("bahdanau", cell=cell), (cell,)
        yield "rnnencdec", make("rnnencdec", cell=cell), (cell,)
        yield "cohn", make("cohn", cell=cell), (cell,)
    yield "bahdanau-tanh", make("bahdanau-tanh", cell="gru"), ("gru", equations.tanh_output)
    yield "cho", make("cho"), ()
    yield "cgru", make("cgru", cell="torch-gru"), ("torch-gru",)
    for cell in ("gru", "lstm", "tanh"):
        yield "cgru", make("cgru", cell=cell), (cell,)
        yield "deep-transition", make("deep-transition", cell=cell, transitions=2), (cell, 2)
    yield "bi-scale", make("bi-scale"), ()
    for first in (None, 2, 3):
        yield "bideep", make("bideep", cell="gru", residual_from=first), (L, first)
        for name in ("sutskever", "luong", "luong-input-feeding", "neubig", "rnmt-plus"):
            yield name, make(name, residual_from=first), (first,)
    for name in ("luong", "luong-input-feeding"):
        for kind in ("linear", "tanh-bias"):
            yield name, make(name, attentional=kind), (None, kind)
    for cell in ("gru", "lstm"):
        yield "memdec", make("memdec", cell=cell), (cell, N)
        yield "memory", make("memory", cell=cell), (cell, N, True)


EQUATIONS = {
    "bahdanau": equations.bahdanau,
    "bahdanau-tanh": equations.bahdanau,
    "cohn": equations.cohn,
    "rnnencdec": equations.rnnencdec,
    "cho": equations.cho,
    "cgru": equations.cgru,
    "deep-transition": equations.cgru,
    "bideep": equations.bideep,
    "bi-scale": equations.bi_scale,
    "sutskever": equations.sutskever,
    "luong": equations.luong,
    "luong-input-feeding": equations.luong_input_feeding,
    "neubig": equations.neubig,
    "rnmt-plus": equations.rnmt_plus,
    "memdec": equations.memdec,
    "memory": equations.memdec,
}


def test_each_decoder_has_a_reference_equation():
    alone = {"copynet"}  # tested in test_copying, because it depends on the copied words
    assert EQUATIONS.keys() == DECODERS.keys() - alone == {name for name, *_ in cases()}


@pytest.mark.parametrize(
    ("name", "decoder", "told"), [pytest.param(*case, id=f"{case[0]} {n}") for n, case in enumerate(cases())]
)
def test_each_position_equals_the_papers_equations(name, decoder, told, drawn, encoded, words):
    decoder, p = drawn(decoder)
    memory = decoder.remember(encoded)
    reading = decoder.unroll(decoder.inputs(words), decoder.start(memory), memory)
    readouts = decoder.readout(words, reading)
    assert readouts.shape == (2, T, decoder.readout_size)
    assert (reading.alpha is not None) == decoder.attends
    for row, length in enumerate(LENGTHS):
        finals = tuple(tuple(part[row].numpy() for part in state) for state in encoded.finals)
        of_row = (words[row], encoded.annotations[row, :length], encoded.summary[row])
        sentence = Sentence(*(part.numpy() for part in of_row), finals)
        for i, position in enumerate(EQUATIONS[name](p, sentence, *told)):
            close(readouts[row, i], position.readout)
            close(reading.state[row, i], position.state)
            close(reading.context[row, i], position.context)
            if decoder.attends:
                close(reading.alpha[row, i, :length], position.alpha)


@pytest.mark.parametrize("name", ["luong-input-feeding", "neubig"])
def test_feeding_dropout_masks_only_the_fed_vector(name, drawn, encoded, words):
    """Masks of ones change nothing; zeros at all positions remove the product with the fed vector."""
    decoder, _ = drawn(make(name, DropoutConfig(feeding=0.5), cell="lstm"))
    memory = decoder.remember(encoded)
    plain, start = decoder.start(memory), decoder.start(memory, BatchRng(1), T)
    masks = start.stack.masks
    assert masks.fed.shape == (2, T, decoder.fed_size)
    assert set(masks.fed.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(masks.fed[:, 0], masks.fed[:, 1])

    def readout(state):
        return decoder.readout(words, decoder.unroll(decoder.inputs(words), state, memory))

    def masked(fed):
        return readout(plain._replace(stack=plain.stack._replace(masks=masks._replace(fed=fed))))

    ones = torch.ones_like(masks.fed)
    torch.testing.assert_close(masked(ones), readout(plain), rtol=0, atol=0)
    without = masked(torch.zeros_like(ones))
    layer = decoder.feeding if name == "luong-input-feeding" else decoder.context
    layer.weight.data.zero_()
    torch.testing.assert_close(without, readout(plain))


@pytest.mark.parametrize(
    ("name", "shares", "cells"),
    [
        ("deep-transition", {"state": 0.5}, 3),
        ("bideep", {"state": 0.5, "layers": 0.5}, 5),
        ("memory", {"state": 0.5}, 2),
    ],
)
def test_state_dropout_masks_the_recurrent_input_of_each_cell(name, shares, cells, drawn, encoded, words):
    """Masks of ones change nothing; zeros for one cell change the readout, so every cell is masked."""
    decoder, _ = drawn(make(name, DropoutConfig(**shares), cell="gru", layers=2))
    memory = decoder.remember(encoded)
    plain, start = decoder.start(memory), decoder.start(memory, BatchRng(1), T)
    assert start.masks.shape == (2, cells, D)

    def readout(**masks):
        state = plain._replace(**masks)
        return decoder.readout(words, decoder.unroll(decoder.inputs(words), state, memory))

    expected, ones = readout(), torch.ones_like(start.masks)
    torch.testing.assert_close(readout(masks=ones), expected, rtol=0, atol=0)
    for cell in range(cells):
        masks = ones.clone()
        masks[:, cell] = 0.0
        assert not torch.allclose(readout(masks=masks), expected), cell
    if name == "bideep":
        assert start.layer_masks.shape == (2, T, 1, D)
        for position in range(T):
            up = torch.ones_like(start.layer_masks)
            torch.testing.assert_close(readout(layer_masks=up), expected, rtol=0, atol=0)
            up[:, position] = 0.0
            changed = (readout(layer_masks=up) != expected).flatten(2).any(2).any(0)
            assert changed.tolist() == [i >= position for i in range(T)]
