"""Two directions trained together: the agreement."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rnnsearch.models.translation_pair import TranslationPair
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.objectives.symmetry import Symmetric, agreement


def test_the_agreement_is_a_trace(make, batches):
    onward, back, batch = make(), make(seed=2, turned=True), batches([0, 1, 2])
    _, there = likelihood().passed(onward, batch, None)
    _, again = likelihood().passed(back, batch.turned(), None)
    expected = 0.0
    for row in range(3):
        height, width = int(batch.target.mask[row].sum()), int(batch.source.mask[row].sum())
        A = there.unrolled.reading.alpha[row, :height, :width].detach().numpy()
        A_back = again.unrolled.reading.alpha[row, :width, :height].detach().numpy().T
        expected += np.trace(A.T @ A_back)
    assert agreement(there, again).item() == pytest.approx(expected, rel=1e-6)


def test_the_loss_is_both_directions_less_the_agreement(make, batches):
    pair, batch = TranslationPair(make(), make(seed=2, turned=True)), batches([0, 1, 2])
    loss = Symmetric(0.4, likelihood(0.1))(pair, batch, None)
    there, again = likelihood(0.1)(pair.onward, batch, None), likelihood(0.1)(pair.back, batch.turned(), None)
    _, one = likelihood().passed(pair.onward, batch, None)
    _, two = likelihood().passed(pair.back, batch.turned(), None)
    expected = there.total + again.total - 0.4 * agreement(one, two)
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-9)
    assert loss.nll.item() == pytest.approx((there.nll + again.nll).item() / 2, rel=1e-9)
    loss.total.backward()
    assert all(p.grad is not None for p in pair.parameters())


def test_the_bonus_makes_them_agree(make, batches):
    def agreed(weight):
        pair, batch = TranslationPair(make(), make(seed=2, turned=True)), batches([0, 1, 2])
        optimiser = torch.optim.Adam(pair.parameters(), lr=0.05)
        for _ in range(30):
            optimiser.zero_grad()
            Symmetric(weight, likelihood())(pair, batch, None).total.backward()
            optimiser.step()
        _, one = likelihood().passed(pair.onward, batch, None)
        _, two = likelihood().passed(pair.back, batch.turned(), None)
        return agreement(one, two).item()

    assert agreed(3.0) > agreed(1e-9) + 1.0
