"""Encoders that merge or omit positions equal loops of the papers, and attention maps back to source positions."""

import numpy as np
import pytest
import torch

from rnnsearch.config.encoders import ConvolutionalOptions, PyramidOptions, RationaleOptions
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.encoders import ENCODERS, segment_origin
from rnnsearch.models.memory import Memory
from rnnsearch.utils.tensors import lengths_mask
from tests.models import reference as paper
from tests.models.reference import close, within

LENGTHS = [7, 1, 4, 2]
MASK = lengths_mask(torch.tensor(LENGTHS), 7)


@pytest.mark.parametrize(("layers", "reduce"), [(1, 1), (2, 1), (3, 2), (3, 3)])
def test_pyramidal_annotations_equal_the_paper(layers, reduce, drawn, numbers):
    """Chan et al. 2016, eq. 5, for each sentence without padding."""
    options = PyramidOptions(cell="gru", size=4, layers=layers, reduce=reduce)
    encoder, p = drawn(ENCODERS["pyramid"](options, 3))
    assert options.annotation_size == encoder.annotation_size
    assert options.layer_sizes == tuple(shape.size for shape in encoder.shapes)
    x = numbers(4, 7, 3)
    encoded = encoder(x, MASK)
    assert encoded.annotations.shape == (4, -(-7 // 2**reduce), 8)
    for b, length in enumerate(LENGTHS):
        rows, summary = list(x[b, :length].numpy()), None
        for l in range(layers):
            if l >= layers - reduce:
                if len(rows) % 2:
                    rows.append(np.zeros_like(rows[0]))
                rows = [np.concatenate([rows[2 * j], rows[2 * j + 1]]) for j in range(len(rows) // 2)]
            annotations, summary, final = paper.encode("gru", within(p, f"layers.{l}"), rows, 4, True)
            close(encoded.finals[l].h[b], final[0])
            rows = list(annotations)
        assert encoded.mask[b].tolist() == [k < len(rows) for k in range(encoded.mask.shape[1])]
        close(encoded.annotations[b, : len(rows)], np.stack(rows))
        close(encoded.summary[b], summary)


@pytest.mark.parametrize("stride", [1, 3])
def test_convolutional_encoder_equals_the_paper(stride, drawn, numbers):
    """Lee et al. 2017, section 4.1, for each sentence without padding."""
    options = ConvolutionalOptions(cell="gru", size=4, widths=4, filters=2, stride=stride, highway=2)
    encoder, p = drawn(ENCODERS["convolutional"](options, 3))
    assert options.annotation_size == encoder.annotation_size == 8
    x = numbers(4, 7, 3)
    encoded = encoder(x, MASK)
    for b, length in enumerate(LENGTHS):
        real = x[b, :length].numpy()
        y = np.zeros((length, 8))
        for w in range(1, 5):
            H, bias = p[f"filters.layers.{w - 1}.weight"], p[f"filters.layers.{w - 1}.bias"]
            for j in range(length):
                begin = j - (w - 1) // 2
                window = [real[k] if 0 <= k < length else np.zeros(3) for k in range(begin, begin + w)]
                for f in range(2):
                    y[j, 2 * (w - 1) + f] = max(0.0, H[f] @ np.concatenate(window) + bias[f])
        rows = [y[begin : begin + stride].max(0) for begin in range(0, length, stride)]
        for layer in range(2):
            own = within(p, f"highway.{layer}")
            for number, row in enumerate(rows):
                t = [paper.sigma(own["gate.weight"][k] @ row + own["gate_bias"][k]) for k in range(8)]
                changed = [max(0.0, own["change.weight"][k] @ row + own["change.bias"][k]) for k in range(8)]
                rows[number] = np.array([t[k] * changed[k] + (1 - t[k]) * row[k] for k in range(8)])
        annotations, summary, final = paper.encode("gru", within(p, "reader"), rows, 4, True)
        close(encoded.annotations[b, : len(rows)], annotations)
        close(encoded.summary[b], summary)
        close(encoded.finals[0].h[b], final[0])
        assert encoded.mask[b].tolist() == [k < len(rows) for k in range(encoded.mask.shape[1])]
        assert encoded.origin.position[b].tolist() == [j // stride for j in range(7)]


@pytest.mark.parametrize("rng", [None, BatchRng(5)])
def test_rationale_encoder_equals_the_paper(rng, drawn, numbers):
    """Lei et al. 2016, section 3: one reader selects words, and the encoder reads only the selected words."""
    encoder, p = drawn(ENCODERS["rationale"](RationaleOptions(cell="gru", size=4, chooser=3), 3))
    x = numbers(4, 7, 3)
    encoded = encoder(x, MASK, rng)
    chosen, several = encoded.selection, set()
    for b, length in enumerate(LENGTHS):
        words = list(x[b, :length].numpy())
        seen, *_ = paper.encode("gru", within(p, "chooser"), words, 3, True)
        log_p, kept = 0.0, []
        for j in range(length - 1):
            p_j = paper.sigma(p["choice.weight"][0] @ seen[j] + p["choice.bias"][0])
            read = bool(chosen.selected[b, j])
            assert rng is not None or read == (p_j > 0.5)
            log_p += np.log(p_j if read else 1 - p_j)
            kept += [j] * read
        several.add(len(kept) < length - 1)
        kept.append(length - 1)  # EOS
        assert not chosen.selected[b, length - 1 :].any()
        close(chosen.log_prob[b], log_p)
        annotations, summary, _ = paper.encode("gru", within(p, "reader"), [words[j] for j in kept], 4, True)
        close(encoded.annotations[b, : len(kept)], annotations)
        close(encoded.summary[b], summary)
        assert encoded.mask[b].sum() == len(kept)
        assert [encoded.origin.position[b, j].item() for j in kept] == list(range(len(kept)))
        assert encoded.origin.fraction[b].tolist() == [float(j in kept) for j in range(7)]
    assert several == {False, True}


def test_unselected_words_do_not_affect_the_rationale(drawn, numbers):
    """If the selection stays the same, replacing unselected words changes nothing."""
    encoder, _ = drawn(ENCODERS["rationale"](RationaleOptions(cell="gru", size=4, chooser=3), 3))
    encoder.choice.weight.data.zero_()
    encoder.choice.bias.data.fill_(-1.0)
    x, other = numbers(4, 7, 3), numbers(4, 7, 3)
    read = MASK & ~torch.nn.functional.pad(MASK[:, 1:], (0, 1))
    one, two = (encoder(given, MASK) for given in (x, torch.where(read[:, :, None], x, other)))
    assert one.mask.sum(1).tolist() == [1] * 4
    torch.testing.assert_close(one.annotations, two.annotations)
    assert one.origin.to_source(one.mask.double()).tolist() == read.double().tolist()


@pytest.mark.parametrize("each", [2, 4])
def test_merged_weights_are_divided_over_source_positions(each, numbers):
    """Weights of an annotation are divided evenly over its real positions."""
    kept = lengths_mask(torch.tensor([-(-length // each) for length in LENGTHS]), -(-7 // each))
    memory = Memory(numbers(4, kept.shape[1], 8), kept, numbers(4, 4), (), segment_origin(MASK, each))
    alpha = torch.softmax(numbers(4, 3, kept.shape[1]).masked_fill(~kept[:, None], -torch.inf), -1)
    on_source = memory.to_source(alpha)
    for b, length in enumerate(LENGTHS):
        for i in range(3):
            expected = [0.0] * 7
            for j in range(length):
                together = [k for k in range(length) if k // each == j // each]
                expected[j] = alpha[b, i, j // each].item() / len(together)
            assert on_source[b, i].tolist() == pytest.approx(expected)
    torch.testing.assert_close(memory.to_source(alpha.flatten(0, 1)), on_source.flatten(0, 1))
    one_to_one = memory._replace(origin=None)
    assert one_to_one.to_source(alpha) is alpha
