"""The pyramid against a loop of the paper, and its attention put back onto the source positions."""

import numpy as np
import pytest
import torch

from rnnsearch.config import resolve
from rnnsearch.config.encoders import PyramidOptions
from rnnsearch.data.batches import make_batch
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.models.memory import Memory
from rnnsearch.models.pyramid import merged, origin
from rnnsearch.models.translation_model import only
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.search.beam import beam
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import make_sources
from rnnsearch.search.forced import forced
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.systems.build import build
from rnnsearch.systems.model_checks import check_model as check
from rnnsearch.tensors import lengths_mask

LENGTHS = [7, 1, 4, 2]
MASK = lengths_mask(torch.tensor(LENGTHS), 7)


def make(layers, reduce, cell="gru"):
    return ENCODERS["pyramid"].make(PyramidOptions(cell=cell, size=4, layers=layers, reduce=reduce), 3)


@pytest.mark.parametrize(("layers", "reduce"), [(1, 1), (2, 1), (3, 2), (3, 3)])
def test_annotations_are_the_papers(layers, reduce, paper, drawn, within, numbers):
    """Chan et al. 2016, eq. 5, sentence by sentence without padding."""
    encoder, p = drawn(make(layers, reduce))
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
            annotations, summary = paper.encode("gru", within(p, f"layers.{l}"), np.stack(rows), 4, True)
            rows = list(annotations)
        assert encoded.mask[b].tolist() == [k < len(rows) for k in range(encoded.mask.shape[1])]
        np.testing.assert_allclose(encoded.annotations[b, : len(rows)].detach().numpy(), np.stack(rows), atol=1e-12)
        np.testing.assert_allclose(encoded.summary[b].detach().numpy(), summary, atol=1e-12)


def test_merging_puts_zeros_beside_an_odd_last_position_whatever_the_padding_holds():
    x = torch.arange(1.0, 11).view(2, 5, 1)
    mask = lengths_mask(torch.tensor([5, 3]), 5)
    pairs, real = merged(x, mask)
    assert pairs.tolist() == [[[1, 2], [3, 4], [5, 0]], [[6, 7], [8, 0], [0, 0]]]
    assert real.tolist() == [[True, True, True], [True, True, False]]


def test_where_annotations_come_from():
    found = origin(MASK, 4)
    assert found.position[0].tolist() == [0, 0, 0, 0, 1, 1, 1]
    quarter, third = [0.25] * 4, [1 / 3] * 3
    expected = [[*quarter, *third], [1.0, *[0.0] * 6], [*quarter, 0, 0, 0], [0.5, 0.5, *[0.0] * 5]]
    torch.testing.assert_close(found.share, torch.tensor(expected))


def test_weights_are_divided_over_the_source_positions(numbers):
    """Of each annotation over its own real positions; rows of a beam and of all target positions alike."""
    spread = origin(MASK, 2)
    kept = lengths_mask(torch.tensor([4, 1, 2, 1]), 4)
    memory = Memory(numbers(4, 4, 8), kept, numbers(4, 4), (), spread)
    alpha = torch.softmax(numbers(4, 3, 4).masked_fill(~kept[:, None], -torch.inf), -1)
    on_source = memory.on_source(alpha)
    for b, length in enumerate(LENGTHS):
        for i in range(3):
            expected = [0.0] * 7
            for j in range(length):
                together = [k for k in range(length) if k // 2 == j // 2]
                expected[j] = alpha[b, i, j // 2].item() / len(together)
            assert on_source[b, i].tolist() == pytest.approx(expected)
    torch.testing.assert_close(on_source.sum(-1), torch.ones(4, 3, dtype=torch.float64))
    torch.testing.assert_close(memory.on_source(alpha.flatten(0, 1)), on_source.flatten(0, 1))
    one_to_one = memory._replace(origin=None)
    assert one_to_one.on_source(alpha) is alpha


@pytest.fixture
def model():
    tables = {
        "embedding": 6,
        "encoder": {"type": "pyramid", "cell": "lstm", "size": 5, "layers": 3, "reduce": 2},
        "attention": {"score": "additive", "size": 4},
        "decoder": {"type": "bahdanau", "cell": "gru", "size": 7, "maxout": 6},
    }
    data = {"source": "en", "target": "de", "corpus": "x"}
    config = resolve(
        {"data": data, "model": tables, "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}}}
    )
    assert check(config) == []
    made = build(config.model, 12, 12, seed=1)
    for n, parameter in enumerate(made.parameters()):
        parameter.data.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n)), alpha=0.3)
    return made


PAIRS = [([5, 6, 7, 8, 9, 4], [4, 5]), ([9], [6, 7, 8, 9, 10]), ([10, 4, 5, 6], [11])]


def test_search_and_training_agree_and_attention_has_the_sources_width(model):
    sources = make_sources([source for source, _ in PAIRS], torch.device("cpu"))
    found = forced(ModelScorer(model), sources, [target for _, target in PAIRS])
    batch = make_batch(PAIRS, range(3))
    assert -sum(h.log_prob for h in found) == pytest.approx(likelihood()(model, batch, None).nll.item(), rel=1e-5)
    best = [first for first, *_ in beam(ModelScorer(model), sources, SearchOptions(beam=3, max_extra=3))]
    for hypotheses in (found, best):
        for (source, _), hypothesis in zip(PAIRS, hypotheses, strict=True):
            [weights] = hypothesis.attention.values()
            assert weights.shape[1] == len(source) + 1
            np.testing.assert_allclose(weights.sum(1), 1.0, rtol=1e-5)
            # neighbours that were merged share alike
            for j in range(len(source) + 1):
                np.testing.assert_allclose(weights[:, j], weights[:, j - j % 4])


def test_training_sees_the_annotations_weights(model):
    batch = make_batch(PAIRS, range(3))
    memory = model.encode(batch.sources)
    unrolled = model.unroll(batch.target.previous(), memory)
    assert unrolled.reading.alpha.shape == (3, batch.target.ids.shape[1], 2)
    state, alphas = model.start(memory), []
    for y in batch.target.previous().unbind(1):
        _, state, alpha = model.step(y, state, memory)
        alphas.append(alpha["source"])
    torch.testing.assert_close(torch.stack(alphas, 1), only(memory).on_source(unrolled.reading.alpha))
