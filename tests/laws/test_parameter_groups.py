"""Frozen parameters get no gradient, and the others the same as without them, whichever twin computes it."""

import pytest
import torch

from rnnsearch.models.draws import Draws
from rnnsearch.objectives.likelihood import likelihood


@pytest.mark.parametrize("parity", [0, 1])
def test_frozen_parameters_leave_the_others_gradients(parity, system, make, batch):
    def gradients(frozen):
        model = make(system)
        for number, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(number not in frozen)
        likelihood(0.1)(model, batch, Draws(3)).total.backward()
        return [parameter.grad for parameter in model.parameters()]

    whole = gradients(set())
    frozen = set(range(parity, len(whole), 2))
    for number, (part, expected) in enumerate(zip(gradients(frozen), whole, strict=True)):
        if number in frozen or expected is None:
            assert part is None
        else:
            torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-6)
