"""Whole models from ids to log p(y|x), against the papers' equations in NumPy loops."""

import numpy as np
import pytest
import torch

from rnnsearch.config import AttentionConfig, DropoutConfig, ModelConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.models.draws import Draws
from rnnsearch.models.translation_model import only
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.systems.build import build
from rnnsearch.text.vocabulary import BOS, EOS

PAIRS = [([5, 6, 7], [4, 8]), ([8], [9, 4, 5, 6]), ([9, 4], [])]
E, N, D, L = 3, 4, 5, 3


def config_of(decoder, cell, first, dropout=None):
    attends = decoder == "bahdanau"
    return ModelConfig(
        embedding=E,
        encoder={"type": "bidirectional" if attends else "unidirectional", "cell": cell, "size": N},
        attention=AttentionConfig(size=4) if attends else None,
        decoder={"type": decoder, "cell": cell, "size": D, "maxout": L, "first": first},
        dropout=dropout or DropoutConfig(),
    )


def negative_log_likelihood(paper, within, p, decoder, cell, zero_bos, source, target):
    """-log p(y|x) of one sentence, equation by equation."""

    def part(prefix):
        return within(p, prefix)

    xs = p["source_embedding.weight"][[*source, EOS]]
    h, summary = paper.encode(cell, part("encoder"), xs, N, both_ways=decoder == "bahdanau")
    s_0 = np.tanh(paper.product(p["decoder.initial.weight"], summary) + p["decoder.initial.bias"])
    state, nll, previous = paper.start(cell, s_0), 0.0, BOS
    for y in [*target, EOS]:
        e_y = p["target_embedding.weight"][previous]
        if previous == BOS and zero_bos:
            e_y = np.zeros(E)
        c = summary
        if decoder == "bahdanau":
            c = paper.context(paper.softmax(paper.energies(part("decoder.attention.score"), state[0], h)), h)
        t = paper.deep_output(part("decoder.deep_output"), state[0], e_y, c)
        nll -= np.log(paper.softmax(paper.product(p["output.weight"], t) + p["output.bias"])[y])
        gates = paper.inputs(part("decoder.cell"), e_y) + paper.product(p["decoder.context.weight"], c)
        state = paper.cells[cell](part("decoder.cell"), gates, state)
        previous = y
    return nll


@pytest.mark.parametrize("first", ["zero", "bos"])
@pytest.mark.parametrize("decoder", ["bahdanau", "rnnencdec"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_batchs_nll_is_the_papers(decoder, cell, first, paper, drawn, within):
    model, p = drawn(build(config_of(decoder, cell, first), 11, 12, seed=None))
    expected = [negative_log_likelihood(paper, within, p, decoder, cell, first == "zero", *pair) for pair in PAIRS]
    total, nll, _ = likelihood()(model, make_batch(PAIRS, [0, 1, 2]), None)
    assert total.item() == nll.item() == pytest.approx(sum(expected), rel=1e-10)
    for pair, alone in zip(PAIRS, expected, strict=True):
        assert likelihood()(model, make_batch([pair], [0]), None).nll.item() == pytest.approx(alone, rel=1e-10)


def test_dropout_works_in_the_four_places_and_only_with_draws():
    batch = make_batch(PAIRS, [0, 1, 2])
    plain = build(config_of("bahdanau", "gru", "bos"), 11, 12, seed=1)
    expected = likelihood()(plain, batch, Draws(1)).nll
    for place in ("embedding", "annotations", "readout", "word"):
        model = build(config_of("bahdanau", "gru", "bos", {place: 0.5}), 11, 12, seed=1)
        assert likelihood()(model, batch, None).nll == expected, place
        dropped = likelihood()(model, batch, Draws(1)).nll
        assert dropped != expected, place
        assert dropped == likelihood()(model, batch, Draws(1)).nll, place


@pytest.mark.parametrize("place", ["embedding", "word"])
def test_words_are_dropped_on_both_sides(place):
    batch = make_batch(PAIRS, [0, 1, 2])
    model = build(config_of("bahdanau", "gru", "bos", {place: 0.5}), 11, 12, seed=1)
    memory = model.encode(batch.sources)
    dropped = model.encode(batch.sources, Draws(1))
    assert not torch.equal(only(dropped).annotations, only(memory).annotations)
    one, other = (model.unroll(batch.target.previous(), memory, draws).readout for draws in (None, Draws(1)))
    assert not torch.equal(one, other)


def test_tied_embeddings_are_one_parameter():
    def names(tie):
        config = config_of("bahdanau", "gru", "bos").model_copy(update={"tie": tie})
        model = build(config, 12, 12, seed=1)
        assert (model.output.weight is model.target_embedding.weight) == (tie != "none")
        assert (model.source_embedding.weight is model.target_embedding.weight) == (tie == "all")
        return {name for name, _ in model.named_parameters()}

    assert names("none") - names("target") == {"output.weight"}
    assert names("target") - names("all") == {"target_embedding.weight"}


def test_a_tied_table_is_drawn_once_and_as_an_embedding():
    config = config_of("bahdanau", "gru", "bos").model_copy(update={"tie": "target", "embedding": L})
    torch.testing.assert_close(
        build(config, 12, 12, seed=1).target_embedding.weight,
        build(config.model_copy(update={"tie": "none"}), 12, 12, seed=1).target_embedding.weight,
    )
