"""Symmetric training maximises both likelihoods and the agreement of the two attention matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rnnsearch.models.translation_model import TranslationPair
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.symmetry import SymmetricLikelihood, attention_agreement
from tests.objectives.passes import passed, real_weights


def test_agreement_is_a_trace(make, batches):
    onward, back, batch = make(), make(seed=2, turned=True), batches([0, 1, 2])
    there, again = passed(onward, batch), passed(back, batch.reversed())
    expected = sum(np.trace(real_weights(there, row).T @ real_weights(again, row).T) for row in range(3))
    assert attention_agreement(there, again).item() == pytest.approx(expected, rel=1e-6)


def test_loss_is_both_directions_minus_the_agreement(make, batches):
    pair, batch = TranslationPair(make(), make(seed=2, turned=True)), batches([0, 1, 2])
    loss = SymmetricLikelihood(0.4, Likelihood(0.1))(pair, batch, None)
    there, again = Likelihood(0.1)(pair.onward, batch, None), Likelihood(0.1)(pair.back, batch.reversed(), None)
    agreed = attention_agreement(passed(pair.onward, batch), passed(pair.back, batch.reversed()))
    expected = there.total + again.total - 0.4 * agreed
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-9)
    assert loss.nll.item() == pytest.approx((there.nll + again.nll).item() / 2, rel=1e-9)
    loss.total.backward()
    assert all(p.grad is not None for p in pair.parameters())


def test_agreement_bonus_increases_agreement(make, batches):
    def agreed(weight):
        pair, batch = TranslationPair(make(), make(seed=2, turned=True)), batches([0, 1, 2])
        optimiser = torch.optim.Adam(pair.parameters(), lr=0.05)
        for _ in range(30):
            optimiser.zero_grad()
            SymmetricLikelihood(weight, Likelihood())(pair, batch, None).total.backward()
            optimiser.step()
        return attention_agreement(passed(pair.onward, batch), passed(pair.back, batch.reversed())).item()

    assert agreed(3.0) > agreed(1e-9) + 1.0
