"""log p(y|x) of whole models, from token ids, equals the papers' equations in NumPy."""

import numpy as np
import pytest
import torch

from rnnsearch.config import ModelConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import only_memory
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.systems.translation import build
from rnnsearch.text.vocabulary import BOS, EOS
from tests.models import decoder_equations as equations
from tests.models import reference as paper
from tests.models.decoder_equations import Sentence
from tests.models.reference import product, within

PAIRS = [([5, 6, 7], [4, 8]), ([8], [9, 4, 5, 6]), ([9, 4], [])]
BATCH = make_batch(PAIRS, [0, 1, 2])
N = 4
EQUATIONS = {"bahdanau": equations.bahdanau, "rnnencdec": equations.rnnencdec}


def config_of(decoder="bahdanau", cell="gru", first="bos", dropout=None, **more):
    attends = decoder == "bahdanau"
    return ModelConfig.model_validate(
        {
            "embedding": 3,
            "encoder": {"type": "bidirectional" if attends else "unidirectional", "cell": cell, "size": N},
            "attention": {"size": 4} if attends else None,
            "decoder": {"type": decoder, "cell": cell, "size": 5, "maxout": 3, "first": first},
            "dropout": dropout or {},
            **more,
        }
    )


def lexical_logits(p, alpha, xs):
    """W_l h, h = tanh(W f + b) + f, f = tanh(sum_j alpha_j x_j) (Nguyen & Chiang 2018, eq. 4-6)."""
    f = np.tanh(paper.context(alpha, xs))
    h = np.tanh(product(p["lexical.hidden.weight"], f) + p["lexical.hidden.bias"]) + f
    return product(p["output.lexical"], h)


def negative_log_likelihood(p, config, source, target):
    """Return -log p(y|x) of one sentence."""
    name, cell = config.decoder.type, config.encoder.cell
    xs = p["source_embedding.weight"][[*source, EOS]]
    h, summary, _ = paper.encode(cell, within(p, "encoder"), xs, N, both_ways=name == "bahdanau")
    words = p["target_embedding.weight"][[BOS, *target]].copy()
    if config.decoder.first == "zero":
        words[0] = 0.0
    W_o = p["output.weight" if config.tie == "none" else "target_embedding.weight"]
    positions = EQUATIONS[name](within(p, "decoder"), Sentence(words, h, summary), cell)
    nll = 0.0
    for y, position in zip([*target, EOS], positions, strict=True):
        logits = product(W_o, position.readout) + p["output.bias"]
        if config.lexical:
            logits += lexical_logits(p, position.alpha, xs)
        nll -= np.log(paper.softmax(logits)[y])
    return nll


@pytest.mark.parametrize(
    "config",
    [
        *[config_of(name, cell, first) for name in EQUATIONS for cell in ("gru", "lstm") for first in ("zero", "bos")],
        *[config_of(lexical=True, tie=tie) for tie in ("none", "target")],
    ],
    ids=lambda c: f"{c.decoder.type} {c.encoder.cell} {c.decoder.first} {c.tie}{' lexical' * c.lexical}",
)
def test_batch_nll_equals_the_papers_equations(config, drawn):
    model, p = drawn(build(config, 11, 12, seed=None))
    expected = [negative_log_likelihood(p, config, *pair) for pair in PAIRS]
    total, nll, _ = Likelihood()(model, BATCH, None)
    assert total.item() == nll.item() == pytest.approx(sum(expected), rel=1e-10)
    for pair, alone in zip(PAIRS, expected, strict=True):
        assert Likelihood()(model, make_batch([pair], [0]), None).nll.item() == pytest.approx(alone, rel=1e-10)


def test_dropout_applies_in_four_places_and_only_with_rng():
    plain = build(config_of(), 11, 12, seed=1)
    expected = Likelihood()(plain, BATCH, BatchRng(1)).nll
    for place in ("embedding", "annotations", "readout", "word"):
        model = build(config_of(dropout={place: 0.5}), 11, 12, seed=1)
        # Up to rounding: a library's products may depend on the alignment of memory.
        torch.testing.assert_close(Likelihood()(model, BATCH, None).nll, expected)
        dropped = Likelihood()(model, BATCH, BatchRng(1)).nll
        assert not torch.isclose(dropped, expected), place
        torch.testing.assert_close(Likelihood()(model, BATCH, BatchRng(1)).nll, dropped)


@pytest.mark.parametrize("place", ["embedding", "word"])
def test_word_dropout_applies_to_source_and_target(place):
    model = build(config_of(dropout={place: 0.5}), 11, 12, seed=1)
    memory, dropped = (model.encode(BATCH.sources, rng) for rng in (None, BatchRng(1)))
    assert not torch.equal(only_memory(dropped).annotations, only_memory(memory).annotations)
    one, other = (model.unroll(BATCH.target.previous(), memory, rng).readout for rng in (None, BatchRng(1)))
    assert not torch.equal(one, other)


def test_tied_embeddings_are_one_parameter():
    def names(tie):
        model = build(config_of(tie=tie), 12, 12, seed=1)
        assert (model.output.weight is model.target_embedding.weight) == (tie != "none")
        assert (model.source_embedding.weight is model.target_embedding.weight) == (tie == "all")
        return {name for name, _ in model.named_parameters()}

    assert names("none") - names("target") == {"output.weight"}
    assert names("target") - names("all") == {"target_embedding.weight"}
