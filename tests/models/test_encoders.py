"""Encoders that keep all positions equal loops over layers and positions, with padding and with dropout."""

from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch.config import DropoutConfig, encoders
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.cells import CELLS
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.utils.tensors import lengths_mask
from tests.models import reference as paper
from tests.models.reference import close, within

LENGTHS = [2, 5, 1]
MASK = lengths_mask(torch.tensor(LENGTHS), 5)
STACKED = {"type": "stacked", "layers": 3}
WAYS = [
    *product(["forward"], [None, 2, 3], [False, True]),
    *product(["bottom"], [None, 3], [False, True]),
    *product(["both"], [None, 2], [False]),
]
"""Values of direction, residual_from and reverse."""
CASES = [
    *product(CELLS, [{"type": "unidirectional"}, {"type": "bidirectional"}]),
    ("lstm", {"type": "unidirectional", "reverse": True}),
    *[
        (cell, STACKED | {"direction": direction, "residual_from": first, "reverse": reverse})
        for cell, (direction, first, reverse) in product(("gru", "lstm"), WAYS)
    ],
]


def options_of(options):
    return encoders.ENCODERS[options["type"]].model_validate({"cell": "lstm", "size": 4} | options)


def make(dropout=None, **options):
    return ENCODERS[options["type"]](options_of(options), 3, dropout)


def layer_by_layer(p, words, cell, type, layers=1, direction="forward", residual_from=None, reverse=False):
    """Return the annotations, the summary and each layer's last state of one unpadded sentence."""
    if reverse:
        words = np.concatenate([words[-2::-1], words[-1:]])
    finals = []
    for l in range(layers):
        both_ways = type == "bidirectional" or direction == "both" or (direction == "bottom" and l == 0)
        own = within(p, f"layers.{l}") if type == "stacked" else p
        given, summary, final = paper.encode(cell, own, words, 4, both_ways)
        words = given + words if residual_from is not None and l + 1 >= residual_from else given
        finals.append(final)
    if reverse:
        words = np.concatenate([words[-2::-1], words[-1:]])
    return words, summary, finals


@pytest.mark.parametrize(
    ("cell", "options"),
    CASES,
    ids=lambda given: given if isinstance(given, str) else " ".join(map(str, given.values())),
)
def test_annotations_summary_and_last_states_equal_the_reference(cell, options, drawn, numbers):
    encoder, p = drawn(make(cell=cell, **options))
    known = options_of(options | {"cell": cell})
    assert known.annotation_size == encoder.annotation_size
    assert known.layer_sizes == tuple(shape.size for shape in encoder.shapes)
    x = numbers(3, 5, 3)
    encoded = encoder(x, MASK)
    assert encoded.mask is MASK
    assert encoded.origin is None
    assert encoded.annotations.shape == (3, 5, encoder.annotation_size)
    assert encoded.summary.shape == (3, encoder.summary_size)
    assert [(type(state), state.h.shape[1]) for state in encoded.finals] == list(encoder.shapes)
    for b, length in enumerate(LENGTHS):
        annotations, summary, finals = layer_by_layer(p, x[b, :length].numpy(), cell, **options)
        close(encoded.annotations[b, :length], annotations)
        close(encoded.summary[b], summary)
        for got, want in zip(encoded.finals, finals, strict=True):
            for part, expected in zip(got, want, strict=True):
                close(part[b], expected)


@pytest.mark.parametrize("type", ["bidirectional", "unidirectional", "stacked", "pyramid"])
def test_encoder_without_end_token_reads_only_words(type, numbers):
    """EOS is handled like padding; a sentence of only EOS keeps it."""
    own = {"stacked": STACKED | {"direction": "both"}, "pyramid": {"type": type, "layers": 2, "reduce": 1}}
    encoder = make(reads_end=False, **own.get(type, {"type": type})).double()
    x, mask = numbers(3, 5, 3), torch.arange(5) < torch.tensor([[5], [3], [1]])
    words = torch.arange(5) < torch.tensor([[4], [2], [1]])
    found, expected = encoder(x, mask), encoder.encode(x, words)
    assert torch.equal(found.annotations, expected.annotations)
    assert torch.equal(found.mask, expected.mask)
    assert int(found.mask[0].sum()) == (2 if type == "pyramid" else 4)
    alone = encoder.encode(x[:1, :4], words[:1, :4])
    close(found.annotations[0, : alone.annotations.shape[1]], alone.annotations[0].detach().numpy())
    close(found.finals[-1].h[0], alone.finals[-1].h[0].detach().numpy())


@pytest.mark.parametrize("type", ["unidirectional", "stacked"])
def test_reversed_encoder_without_end_token_reads_all_words_from_the_last(type, drawn, numbers):
    """Luong et al.'s code: the source is w_J ... w_1 without EOS, and annotations keep the order of the text."""
    own = {"type": type} if type == "unidirectional" else STACKED | {"direction": "forward"}
    encoder, p = drawn(make(reverse=True, reads_end=False, **own))
    x = numbers(3, 5, 3)
    encoded = encoder(x, torch.arange(5) < torch.tensor([[5], [3], [1]]))
    for b, words in enumerate([4, 2, 1]):
        annotations, summary, _ = layer_by_layer(p, x[b, :words].numpy()[::-1], "lstm", **own)
        close(encoded.annotations[b, :words], annotations[::-1])
        close(encoded.summary[b], summary)


def test_summary_vector_requires_a_complete_encoder():
    assert {name for name, kind in encoders.ENCODERS.items() if kind.one_vector} == {
        "unidirectional",
        "stacked",
        "hierarchical",
    }


WITH_ALL = [
    {"type": "unidirectional", "reverse": True},
    {"type": "bidirectional"},
    STACKED | {"direction": "bottom", "residual_from": 3, "reverse": True},
    {"type": "pyramid", "layers": 3, "reduce": 2},
    {"type": "convolutional", "filters": 2, "widths": 3, "stride": 2, "highway": 1},
]


@pytest.mark.parametrize("options", WITH_ALL, ids=lambda options: options["type"])
@pytest.mark.parametrize("share", ["state", "layers", "layer_outputs"])
def test_dropout(options, share, drawn, numbers):
    """Dropout needs a BatchRng, repeats with its seed, and has no effect in encoders without a place for it."""
    encoder, _ = drawn(make(DropoutConfig(**{share: 0.5}), **options))
    x = numbers(3, 5, 3)
    plain, one, again, other = (
        encoder(x, MASK, rng).annotations for rng in (None, BatchRng(1), BatchRng(1), BatchRng(2))
    )
    assert torch.equal(one, again)
    has_place = share == "state" or "layers" in options
    assert torch.equal(one, plain) != has_place
    assert torch.equal(one, other) != has_place
    assert torch.equal(plain, drawn(make(**options))[0](x, MASK).annotations)


@pytest.mark.parametrize("residual_from", [None, 2])
def test_layer_output_dropout_precedes_the_residual_sum(residual_from, drawn, numbers):
    options = STACKED | {"direction": "both", "residual_from": residual_from}
    encoder, _ = drawn(make(DropoutConfig(layer_outputs=0.5), **options))
    x, rng = numbers(3, 5, 3), BatchRng(1)
    below = x
    for l, layer in enumerate(encoder.layers):
        given = layer(below, MASK).annotations
        given = given * rng.mask(tuple(given.shape), 0.5, given)
        below = given + below if residual_from is not None and l + 1 >= residual_from else given
    torch.testing.assert_close(encoder(x, MASK, BatchRng(1)).annotations, below)


@pytest.mark.parametrize(("share", "shapes"), [("state", [(3, 4)] * 4), ("layers", [(3, 5, 8), (3, 5, 4)])])
def test_state_mask_is_fixed_per_sentence_and_direction(share, shapes, drawn, numbers, monkeypatch):
    drawn_masks, mask = [], BatchRng.mask
    monkeypatch.setattr(BatchRng, "mask", lambda *given: drawn_masks.append(tuple(given[1])) or mask(*given))
    encoder, _ = drawn(make(DropoutConfig(**{share: 0.5}), **STACKED, direction="bottom"))
    encoder(numbers(3, 5, 3), MASK, BatchRng(1))
    assert drawn_masks == shapes


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_hierarchical_encoder_equals_loops_over_sentences_and_words(cell, drawn, numbers):
    encoder, p = drawn(make(type="hierarchical", cell=cell))
    separators = torch.tensor([[0, 1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0, 0]], dtype=torch.bool)
    lengths = [7, 4, 5]
    ends = [[1, 4, 6], [3], [0, 2, 4]]
    x = numbers(3, 7, 3)
    encoded = encoder.encode_sentences(x, lengths_mask(torch.tensor(lengths), 7), separators)
    for b, last_positions in enumerate(ends):
        assert encoded.origin.fraction[b].nonzero()[:, 0].tolist() == last_positions
        assert encoded.origin.position[b, last_positions].tolist() == list(range(len(last_positions)))
        assert encoded.mask[b].tolist() == [k < len(last_positions) for k in range(3)]
        starts = [0, *[end + 1 for end in last_positions[:-1]]]
        vectors = []
        for start, end in zip(starts, last_positions, strict=True):
            states = paper.read(cell, within(p, "word_cell"), x[b, start : end + 1].numpy(), 4)
            vectors.append(states[-1][0])
        states = paper.read(cell, within(p, "sentence_cell"), np.stack(vectors), 4)
        close(encoded.annotations[b, : len(states)], np.stack([state[0] for state in states]))
        close(encoded.summary[b], states[-1][0])
        for part, expected in zip(encoded.finals[0], states[-1], strict=True):
            close(part[b], expected)


def test_hierarchical_encoder_may_have_more_annotations_than_sentences(drawn, numbers, monkeypatch):
    """On a GPU, it has as many as there are positions."""
    encoder, _ = drawn(make(type="hierarchical", cell="gru"))
    x, separators = numbers(2, 6, 3), torch.tensor([[0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]], dtype=torch.bool)
    mask = lengths_mask(torch.tensor([5, 2]), 6)
    fewest = encoder.encode_sentences(x, mask, separators)
    monkeypatch.setattr("rnnsearch.models.encoders.max_sentences", lambda is_end: is_end.shape[1])
    most = encoder.encode_sentences(x, mask, separators)
    assert (fewest.mask.shape[1], most.mask.shape[1]) == (2, 6)
    assert torch.equal(most.mask[:, :2], fewest.mask) and not most.mask[:, 2:].any()
    alphas = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    close(most.annotations[:, :2][fewest.mask], fewest.annotations[fewest.mask].detach().numpy())
    close(most.summary, fewest.summary.detach().numpy())
    expected = torch.tensor([[0, 0.25, 0, 0, 0.75, 0], [0, 1.0, 0, 0, 0, 0]])
    assert torch.equal(fewest.origin.to_source(alphas), expected)
    assert torch.equal(most.origin.to_source(torch.nn.functional.pad(alphas, (0, 4))), expected)


def test_hierarchical_encoder_does_not_read_padding(drawn, numbers):
    encoder, _ = drawn(make(type="hierarchical", cell="gru"))
    x, separators = numbers(2, 6, 3), torch.zeros(2, 6, dtype=torch.bool)
    separators[0, 1] = True
    whole = encoder.encode_sentences(x, lengths_mask(torch.tensor([4, 6]), 6), separators)
    alone = encoder.encode_sentences(x[:1, :4], lengths_mask(torch.tensor([4]), 4), separators[:1, :4])
    assert alone.mask.all() and whole.mask[0].tolist() == alone.mask[0].tolist()
    close(whole.annotations[:1], alone.annotations.detach().numpy())
    close(whole.summary[0], alone.summary[0].detach().numpy())
