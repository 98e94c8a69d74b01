"""The stacked encoder against a loop over layers, source reversal, dropout, and the options that are refused."""

from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch.config import DropoutConfig, encoders
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import turned
from rnnsearch.models.encoders import ENCODERS, Bidirectional, Unidirectional
from rnnsearch.tensors import lengths_mask

LENGTHS = [2, 5, 1]
MASK = lengths_mask(torch.tensor(LENGTHS), 5)
OPTIONS = {"layers": 3, "direction": "bottom", "residual_from": 3, "reverse": True, "reduce": 2}


def make(dropout=None, **options):
    table = {"type": "stacked", "cell": "lstm", "size": 4} | options
    made = encoders.ENCODERS[table["type"]].model_validate(table)
    return ENCODERS[made.type].make(made, 3, dropout)


def read(paper, name, p, xs):
    """A cell's states over the rows of xs, from a zero state."""
    state, states = paper.start(name, np.zeros(4)), []
    for x in xs:
        state = paper.cells[name](p, paper.inputs(p, x), state)
        states.append(state)
    return states


def layer_by_layer(paper, within, name, p, xs, direction, residual_from, reverse):
    """Annotations, each layer's final state, and the summary, of one sentence without padding."""
    words, finals = list(xs), []
    if reverse:
        words = [*words[-2::-1], words[-1]]
    for l in range(3):
        forward = read(paper, name, within(p, f"layers.{l}.forward_cell"), words)
        given, final, summary = [state[0] for state in forward], forward[-1], forward[-1][0]
        if direction == "both" or (direction == "bottom" and l == 0):
            backward = read(paper, name, within(p, f"layers.{l}.backward_cell"), words[::-1])[::-1]
            given = [np.concatenate([a, b[0]]) for a, b in zip(given, backward, strict=True)]
            final = tuple(np.concatenate(pair) for pair in zip(final, backward[0], strict=True))
            summary = backward[0][0]
        adds = residual_from is not None and l + 1 >= residual_from
        words = [a + b for a, b in zip(given, words, strict=True)] if adds else given
        finals.append(final)
    if reverse:
        words = [*words[-2::-1], words[-1]]
    return np.stack(words), finals, summary


@pytest.mark.parametrize("name", ["gru", "lstm"])
@pytest.mark.parametrize(
    ("direction", "residual_from", "reverse"),
    [
        *product(["forward"], [None, 2, 3], [False, True]),
        *product(["bottom"], [None, 3], [False, True]),
        *product(["both"], [None, 2], [False]),
    ],
)
def test_annotations_finals_and_summary(name, direction, residual_from, reverse, paper, drawn, within, numbers):
    encoder, p = drawn(make(cell=name, layers=3, direction=direction, residual_from=residual_from, reverse=reverse))
    x = numbers(3, 5, 3)
    encoded = encoder(x, MASK)
    assert encoded.mask is MASK
    assert encoded.origin is None
    assert encoded.annotations.shape == (3, 5, encoder.annotation_size)
    assert encoded.summary.shape == (3, encoder.summary_size)
    for b, length in enumerate(LENGTHS):
        expected, finals, summary = layer_by_layer(
            paper, within, name, p, x[b, :length].numpy(), direction, residual_from, reverse
        )
        np.testing.assert_allclose(encoded.annotations[b, :length].detach().numpy(), expected, atol=1e-12)
        np.testing.assert_allclose(encoded.summary[b].detach().numpy(), summary, atol=1e-12)
        for got, want in zip(encoded.finals, finals, strict=True):
            for part, number in zip(got, want, strict=True):
                np.testing.assert_allclose(part[b].detach().numpy(), number, atol=1e-12)


def test_a_reversed_unidirectional_encoder_is_one_of_reversed_words(drawn, numbers):
    plain, p = drawn(make(type="unidirectional"))
    reversed_, q = drawn(make(type="unidirectional", reverse=True))
    assert p.keys() == q.keys()
    x = numbers(3, 5, 3)
    annotations, _, summary, *_ = reversed_(x, MASK)
    expected, _, expected_summary, *_ = plain(turned(x, MASK), MASK)
    torch.testing.assert_close(turned(annotations, MASK), expected)
    torch.testing.assert_close(summary, expected_summary)
    assert (annotations - plain(x, MASK).annotations)[1].abs().max() > 0.01


def test_turning_keeps_the_end_symbol_last_and_padding_where_it_is():
    x = torch.arange(1.0, 16).view(3, 5, 1)
    assert turned(x, MASK)[..., 0].tolist() == [[1, 2, 3, 4, 5], [9, 8, 7, 6, 10], [11, 12, 13, 14, 15]]
    x = torch.arange(1.0, 6).view(1, 5, 1)
    assert turned(x, lengths_mask(torch.tensor([4]), 5))[0, :, 0].tolist() == [3, 2, 1, 4, 5]
    assert torch.equal(turned(turned(x, MASK[1:2]), MASK[1:2]), x)


def legal(name, cell):
    """The options of each encoder, with all that it may have."""
    kind = encoders.ENCODERS[name]
    return kind(cell=cell, size=4, **{key: OPTIONS[key] for key in kind.own() if key in OPTIONS})


def make_legal(name, dropout=None):
    return ENCODERS[name].make(legal(name, "lstm"), 3, dropout)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_sizes_are_known_before_an_encoder_is_built(name, cell, numbers):
    options = legal(name, cell)
    encoder = ENCODERS[name].make(options, 3)
    assert options.annotation_size == encoder.annotation_size
    assert options.layer_sizes == tuple(shape.size for shape in encoder.shapes)
    encoded = encoder(numbers(3, 5, 3).float(), MASK)
    assert encoded.annotations.shape[2] == encoder.annotation_size
    assert encoded.summary.shape[1] == encoder.summary_size
    assert tuple((type(final), final.h.shape[1]) for final in encoded.finals) == encoder.shapes


@pytest.mark.parametrize("name", ENCODERS)
def test_padding_changes_nothing_not_even_gradients(name, drawn, numbers):
    x, weight = numbers(3, 5, 3), numbers(3, 5, 8)
    results = []
    for padding, more in ((0.0, 0), (100.0, 0), (-3.0, 4)):
        encoder, _ = drawn(make_legal(name))
        mask = torch.nn.functional.pad(MASK, (0, more))
        wide = torch.nn.functional.pad(x, (0, 0, 0, more)).masked_fill(~mask[:, :, None], padding)
        encoded = encoder(wide, mask)
        J, H = (3, 2)[name == "pyramid"], encoded.annotations.shape[2]
        real = encoded.annotations.masked_fill(~encoded.mask[:, :, None], 0.0)[:, : max(J, encoded.mask.sum(1).max())]
        states = [part for final in encoded.finals for part in final]
        total = (real * weight[:, : real.shape[1], :H]).sum() + sum(part.sum() for part in states)
        total.backward()
        results.append((real, encoded.summary, *states, *(p.grad for p in encoder.parameters())))
    for found in results[1:]:
        for got, want in zip(found, results[0], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("share", ["state", "layers"])
def test_dropout(name, share, drawn, numbers):
    """It applies with draws alone, the same for the same seed, and not at all where there is no place for it."""
    encoder, _ = drawn(make_legal(name, DropoutConfig(**{share: 0.5})))
    x = numbers(3, 5, 3)
    plain, one, again, other = (encoder(x, MASK, draws).annotations for draws in (None, Draws(1), Draws(1), Draws(2)))
    assert torch.equal(one, again)
    has_place = share == "state" or name in {"stacked", "pyramid"}
    assert torch.equal(one, plain) != has_place
    assert torch.equal(one, other) != has_place
    assert torch.equal(plain, drawn(make_legal(name))[0](x, MASK).annotations)


def test_a_state_mask_is_one_a_sentence_and_direction(drawn, numbers, monkeypatch):
    drawn_masks = []
    mask = Draws.mask

    def remember(self, shape, share, like):
        drawn_masks.append(mask(self, shape, share, like))
        return drawn_masks[-1]

    monkeypatch.setattr(Draws, "mask", remember)
    encoder, _ = drawn(make(DropoutConfig(state=0.5), layers=3, direction="bottom"))
    encoder(numbers(3, 5, 3), MASK, Draws(1))
    assert [tuple(found.shape) for found in drawn_masks] == [(3, 4)] * 4
    drawn_masks.clear()
    encoder, _ = drawn(make(DropoutConfig(layers=0.5), layers=3, direction="bottom"))
    encoder(numbers(3, 5, 3), MASK, Draws(1))
    assert [tuple(found.shape) for found in drawn_masks] == [(3, 5, 8), (3, 5, 4)]


def test_layers_are_the_single_encoders():
    layers = list(make(layers=3, direction="bottom").layers)
    assert [type(layer) for layer in layers] == [Bidirectional, Unidirectional, Unidirectional]


@pytest.fixture
def encoder_faults(faults):
    """Those of an RNNsearch with some `[model.encoder]` and `[model.dropout]`."""

    def of(encoder, dropout=None, decoder=None):
        attends = decoder is None
        model = {
            "embedding": 3,
            "encoder": {"cell": "lstm", "size": 4} | encoder,
            "decoder": decoder or {"type": "bahdanau", "cell": "gru", "size": 4, "maxout": 4},
            "dropout": dropout or {},
            **({"attention": {"score": "additive", "size": 4}} if attends else {}),
        }
        return faults({"model": model})

    return of


STACKED = {"type": "stacked", "layers": 3, "direction": "forward"}


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        ({"type": "stacked", "layers": 2}, ["model.encoder.direction: must be given for the stacked encoder"]),
        ({"type": "pyramid", "layers": 2}, ["model.encoder.reduce: must be given for the pyramid encoder"]),
        (
            {"type": "bidirectional", "reverse": True, "layers": 2},
            [
                'model.encoder.layers: has no effect with the bidirectional encoder; remove it (or say "unset")',
                'model.encoder.reverse: has no effect with the bidirectional encoder; remove it (or say "unset")',
            ],
        ),
        (
            STACKED | {"reduce": 1},
            ['model.encoder.reduce: has no effect with the stacked encoder; remove it (or say "unset")'],
        ),
        (
            STACKED | {"direction": "both", "reverse": True},
            ['model.encoder.reverse: has no effect with direction = "both"; remove it'],
        ),
        (
            STACKED | {"residual_from": 4},
            ["model.encoder.residual_from: must be a layer from 2 to 3 (model.encoder.layers); got 4"],
        ),
        (
            STACKED | {"direction": "bottom", "residual_from": 2},
            [
                "model.encoder.residual_from: must be a layer from 3 to 3 (model.encoder.layers); layer 2 reads both "
                "ways of the bottom layer, which is twice its own size; got 2"
            ],
        ),
        (
            STACKED | {"direction": "bottom", "layers": 1},
            [
                'model.encoder.direction: "bottom" must have model.encoder.layers of at least 2; got 1 '
                '(use type = "bidirectional")'
            ],
        ),
        (
            {"type": "pyramid", "layers": 2, "reduce": 3},
            ["model.encoder.reduce: must be at most model.encoder.layers (2); got 3"],
        ),
        (STACKED | {"residual_from": 3, "reverse": True}, []),
        ({"type": "unidirectional", "reverse": True}, []),
        ({"type": "pyramid", "layers": 3, "reduce": 3}, []),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_options_that_do_not_fit_are_refused(encoder, expected, encoder_faults):
    assert encoder_faults(encoder) == expected


def test_dropout_between_layers_needs_layers(encoder_faults):
    assert encoder_faults({"type": "bidirectional"}, {"layers": 0.2}) == [
        "model.dropout.layers: has no effect with an encoder and a decoder of one layer; remove it"
    ]
    assert encoder_faults(STACKED, {"layers": 0.2, "state": 0.2}) == []


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        (STACKED, []),
        (STACKED | {"direction": "bottom"}, []),
        (
            STACKED | {"direction": "both"},
            [
                "model.encoder.direction: must be forward or bottom for the cho decoder, whose context is the "
                'encoder\'s last state; got "both"'
            ],
        ),
        (
            {"type": "pyramid", "layers": 2, "reduce": 1},
            [
                "model.encoder.type: must be unidirectional, stacked for the cho decoder, whose context is the "
                'encoder\'s last state; got "pyramid"'
            ],
        ),
    ],
)
def test_a_decoder_without_attention_needs_one_vector(encoder, expected, encoder_faults):
    """Where it is the backward first state alone, the top forward reader would learn nothing."""
    assert encoder_faults(encoder, decoder={"type": "cho", "size": 4, "maxout": 4}) == expected
