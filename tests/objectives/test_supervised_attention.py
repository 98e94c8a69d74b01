"""Supervised attention equals NumPy loops, and training with it learns the links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rnnsearch.config import SupervisionConfig
from rnnsearch.objectives.attention_penalties import ALIGNMENT_LOSSES, SupervisedAttention
from tests.objectives.passes import passed, real_weights


def plain_gold(batch, row, to_end, spread=None):
    height, width = int(batch.target.mask[row].sum()), int(batch.source.mask[row].sum())
    gold = np.zeros((height, width))
    for i in range(height):
        linked = [j for j in range(width) if batch.links[row, i, j]]
        for j in linked:
            gold[i, j] = 1 / len(linked)
        if linked and spread:
            bells = [sum(np.exp(-((j - k) ** 2) / (2 * spread**2)) for k in linked) for j in range(width - 1)]
            gold[i] = [*(bell / sum(bells) for bell in bells), 0.0]
        if not linked and to_end:
            gold[i, width - 1] = 1
    return gold


PLAIN = {
    "cross-entropy": lambda a, g: -sum(g[j] * np.log(a[j]) for j in range(len(a)) if g[j] > 0),
    "squared-error": lambda a, g: 0.5 * sum((a[j] - g[j]) ** 2 for j in range(len(a))),
    "product": lambda a, g: -np.log(sum(a[j] * g[j] for j in range(len(a)))),
}


def test_each_loss_has_a_reference_loop():
    assert PLAIN.keys() == ALIGNMENT_LOSSES.keys()


@pytest.mark.parametrize("spread", [None, 0.7])
@pytest.mark.parametrize("unaligned", ["skip", "end"])
@pytest.mark.parametrize(("kind", "word"), [*((kind, "predicted") for kind in PLAIN), ("cross-entropy", "read")])
def test_supervision_loss_equals_the_paper(make, batches, kind, word, unaligned, spread):
    """With `word = "read"`, a link trains the weights one position later."""
    model, batch = make(), batches([0, 1, 2])
    done = passed(model, batch)
    penalty = SupervisedAttention(SupervisionConfig(type=kind, unaligned=unaligned, word=word, spread=spread))
    expected = 0.0
    for row in range(3):
        gold, alpha = plain_gold(batch, row, unaligned == "end", spread), real_weights(done, row)
        for i in range(1, len(gold)) if word == "read" else range(len(gold)):
            links = gold[i - (word == "read")]
            if links.any():
                expected += PLAIN[kind](alpha[i], links)
    found = penalty(done)
    assert found.item() == pytest.approx(expected, rel=1e-6)
    alone = sum(penalty(passed(model, batches([n]))).item() for n in range(3))
    assert found.item() == pytest.approx(alone, rel=1e-9)
    found.backward()
    assert model.decoder.attention.score.query.weight.grad.any()


@pytest.mark.parametrize("kind", PLAIN)
def test_zero_weights_give_finite_losses_and_gradients(kind):
    alpha = torch.tensor([[[0.0, 1.0, 0.0]]], requires_grad=True)
    gold = torch.tensor([[[0.5, 0.0, 0.5]]])
    loss = ALIGNMENT_LOSSES[kind](alpha, gold).sum()
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(alpha.grad).all()


def test_batches_without_links_are_rejected(make, batches):
    penalty = SupervisedAttention(SupervisionConfig(type="cross-entropy"))
    with pytest.raises(AssertionError, match="needs batches with links"):
        penalty(passed(make(), replace(batches([0]), links=None)))
