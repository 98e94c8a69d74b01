"""Supervised attention against loops, and on a model that learns the links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rnnsearch.config import SupervisionConfig
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.objectives.supervised_attention import ALIGNMENT_LOSSES, SupervisedAttention, gold_weights


def passed(model, batch):
    return likelihood().passed(model, batch, None)[1]


def plain_gold(batch, row, to_end):
    height, width = int(batch.target.mask[row].sum()), int(batch.source.mask[row].sum())
    gold = np.zeros((height, width))
    for i in range(height):
        linked = [j for j in range(width) if batch.links[row, i, j]]
        for j in linked:
            gold[i, j] = 1 / len(linked)
        if not linked and to_end:
            gold[i, width - 1] = 1
    return gold


PLAIN = {
    "cross-entropy": lambda a, g: -sum(g[j] * np.log(a[j]) for j in range(len(a)) if g[j] > 0),
    "squared-error": lambda a, g: 0.5 * sum((a[j] - g[j]) ** 2 for j in range(len(a))),
}


def test_every_loss_has_its_loop():
    assert PLAIN.keys() == ALIGNMENT_LOSSES.keys()


@pytest.mark.parametrize("unaligned", ["skip", "end"])
@pytest.mark.parametrize("kind", PLAIN)
def test_the_loss_is_the_papers(make, batches, kind, unaligned):
    model, batch = make(), batches([0, 1, 2])
    done = passed(model, batch)
    penalty = SupervisedAttention(SupervisionConfig(type=kind, unaligned=unaligned))
    expected = 0.0
    for row in range(3):
        gold = plain_gold(batch, row, unaligned == "end")
        alpha = done.unrolled.reading.alpha[row].detach().numpy()
        for i in range(len(gold)):
            if gold[i].any():
                expected += PLAIN[kind](alpha[i, : gold.shape[1]], gold[i])
    assert penalty(done).item() == pytest.approx(expected, rel=1e-6)
    alone = sum(penalty(passed(model, batches([n]))).item() for n in range(3))
    assert penalty(done).item() == pytest.approx(alone, rel=1e-9)


def test_gold_weights_sum_to_one_where_there_is_a_link(batches):
    batch = batches([0, 1, 2])
    assert torch.equal(gold_weights(batch, False).sum(-1), batch.links.any(-1).float())
    assert torch.equal(gold_weights(batch, True).sum(-1), batch.target.mask.float())


@pytest.mark.parametrize("unaligned", ["skip", "end"])
def test_the_links_of_read_words_are_learnt_one_position_later(make, batches, unaligned):
    batch = batches([0, 1, 2])
    done = passed(make(), batch)
    expected = 0.0
    for row in range(3):
        gold = plain_gold(batch, row, unaligned == "end")
        alpha = done.unrolled.reading.alpha[row].detach().numpy()
        for i in range(1, len(gold)):
            if gold[i - 1].any():
                expected += PLAIN["cross-entropy"](alpha[i, : gold.shape[1]], gold[i - 1])
    penalty = SupervisedAttention(SupervisionConfig(type="cross-entropy", unaligned=unaligned, word="read"))
    assert penalty(done).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", PLAIN)
def test_weights_of_zero_give_finite_losses_and_gradients(kind):
    alpha = torch.tensor([[[0.0, 1.0, 0.0]]], requires_grad=True)
    gold = torch.tensor([[[0.5, 0.0, 0.5]]])
    loss = ALIGNMENT_LOSSES[kind].distance(alpha, gold).sum()
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(alpha.grad).all()


def test_batches_without_links_are_no_use(make, batches):
    penalty = SupervisedAttention(SupervisionConfig(type="cross-entropy"))
    with pytest.raises(AssertionError, match="needs batches with links"):
        penalty(passed(make(), replace(batches([0]), links=None)))


@pytest.mark.parametrize("kind", PLAIN)
def test_attention_learns_the_links(make, batches, kind):
    model, batch = make(), batches([0, 1, 2])
    objective = likelihood(0.0, [(5.0, SupervisedAttention(SupervisionConfig(type=kind, unaligned="end")))])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(50):
        optimiser.zero_grad()
        objective(model, batch, None).total.backward()
        optimiser.step()
    alpha, gold = passed(model, batch).weights(), gold_weights(batch, True)
    best = alpha.argmax(-1, keepdim=True)
    assert ((gold.gather(2, best)[:, :, 0] > 0) == batch.target.mask).float().mean() > 0.9
