"""Maximum likelihood, as the training loop sees it."""

import math

import pytest
import torch

from rnnsearch.config import AttentionConfig, ModelConfig
from rnnsearch.data.batches import make_batch
from rnnsearch.data.sides import Side
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.systems.build import build
from rnnsearch.text.vocabulary import BOS, EOS

PAIRS = [([5, 6, 7], [4, 8]), ([8], [9, 4, 5, 6]), ([9, 4], [])]
V = 12


@pytest.fixture
def model():
    config = ModelConfig(
        embedding=3,
        encoder={"type": "bidirectional", "cell": "gru", "size": 4},
        attention=AttentionConfig(size=4),
        decoder={"type": "bahdanau", "cell": "gru", "size": 5, "maxout": 3},
    )
    made = build(config, V, V, seed=1)
    for parameter in made.parameters():
        parameter.data.mul_(3)
    return made


@pytest.fixture
def batch():
    return make_batch(PAIRS, [0, 1, 2])


def log_p(model, source, target):
    """log p of all symbols at each position of one sentence, position by position."""
    memory = model.encode({"source": Side.of(torch.tensor([[*source, EOS]]))})
    state, rows = model.start(memory), []
    for y in [BOS, *target]:
        readout, state, _ = model.step(torch.tensor([y]), state, memory)
        rows.append(model.log_probs(readout)[0])
    return torch.stack(rows)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_sums_over_words_and_sentences_of_nothing_but_real_symbols(smoothing, model, batch):
    nll = smoothed = 0.0
    for source, target in PAIRS:
        rows = log_p(model, source, target)
        for row, y in zip(rows, [*target, EOS], strict=True):
            nll -= row[y].item()
            smoothed -= (1 - smoothing) * row[y].item() + smoothing * row.mean().item()
    loss = likelihood(smoothing)(model, batch, None)
    assert loss.nll.item() == pytest.approx(nll, rel=1e-5)
    assert loss.total.item() == pytest.approx(smoothed, rel=1e-5)
    assert not loss.nll.requires_grad


def test_a_model_that_knows_nothing_pays_log_v_a_symbol(model, batch):
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.zero_()
    symbols = sum(len(target) + 1 for _, target in PAIRS)
    assert likelihood(0.1)(model, batch, None).nll.item() == pytest.approx(symbols * math.log(V), rel=1e-6)


def test_a_batch_is_the_sum_of_its_halves(model, batch):
    whole = likelihood(0.1)(model, batch, None)
    halves = [likelihood(0.1)(model, half, None) for half in batch.split()]
    assert whole.nll.item() == pytest.approx(sum(h.nll.item() for h in halves), rel=1e-5)
    assert whole.total.item() == pytest.approx(sum(h.total.item() for h in halves), rel=1e-5)
