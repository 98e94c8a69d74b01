"""Gradients of whole models equal finite differences in float64 and stay close in bf16 and with frozen parameters."""

import math

import pytest
import torch

from rnnsearch.accel.registry import choose
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives.likelihood import Likelihood
from tests.properties.rounding import CORNERS, SEEDS, has_kinks, rounded, same_sides, sides, to_bf16


def test_gradients_equal_finite_differences(system, make, batch):
    """The directions are random over all parameters, with dropout, label smoothing and fast implementations.

    Sampled positions have no gradient except that of REINFORCE.
    """
    model = make(system).double()
    parameters = [p for p in model.parameters() if p.requires_grad]

    def loss():
        return Likelihood(0.1)(model, batch, BatchRng(3)).total

    gradients = torch.autograd.grad(loss(), parameters, allow_unused=True, materialize_grads=True)
    generator = torch.Generator().manual_seed(4)

    def slope(directions, step=3e-7):
        values = []
        for sign in (step, -2 * step, step):
            with torch.no_grad():
                for p, d in zip(parameters, directions, strict=True):
                    p.add_(d, alpha=sign)
                values.append(loss().item())
        return (values[0] - values[1]) / (2 * step)

    for _ in range(2):
        directions = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
        expected = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))
        assert slope(directions) == pytest.approx(expected, rel=1e-6, abs=1e-7)


OFTEN = 16
"""Maximum ratio of the bf16 error to the error of rounded operands; the largest measured ratio is 7."""


def test_bf16_changes_loss_and_gradients_only_by_rounding(system, make, batch, choices):
    """bf16 results equal a reference with rounded products, for two models without values that cross a discontinuity.

    Every other model has label smoothing.
    For sampled positions, rounding can change the samples, so only finiteness and precision are tested.
    """
    sides_of = {}
    smoothing = 0.1 * ([*choices["system"].values()].index(system) % 2)

    def loss_and_gradient(model, products):
        with torch.autocast("cpu", torch.bfloat16, enabled=products is torch.bfloat16), sides(model, CORNERS) as found:
            loss = Likelihood(smoothing)(model, batch, BatchRng(1))
        sides_of[products] = found
        loss.total.backward()
        gradient = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()]
        )
        assert gradient.dtype == loss.total.dtype == loss.nll.dtype == torch.float32
        return loss.total.item(), gradient

    def defined(model, products):
        choose(model, fast=False)
        with torch.autocast("cpu", torch.bfloat16, enabled=products is torch.bfloat16), sides(model) as found:
            Likelihood(smoothing)(model, batch, BatchRng(1))
        return found

    attention, held = system.model.attention, 0
    for seed in SEEDS if has_kinks(make(system)) else (1, 2):
        total, gradient = loss_and_gradient(make(system, seed), torch.float32)
        rounded_total, found = loss_and_gradient(make(system, seed), torch.bfloat16)
        assert not torch.equal(found, gradient), "bf16 must round the products"
        if attention and NORMALISERS[attention.normaliser].component.needs_noise:
            assert found.isfinite().all()
            assert math.isfinite(rounded_total)
            return
        if not same_sides(*sides_of.values()):
            continue
        if not same_sides(*(defined(make(system, seed), kind) for kind in (torch.float32, torch.bfloat16))):
            continue
        _, of_rounded_operands = loss_and_gradient(rounded(make(system, seed), to_bf16), torch.float32)
        assert rounded_total == pytest.approx(total, rel=0.02)
        assert (found - gradient).norm() < OFTEN * (of_rounded_operands - gradient).norm()
        if (held := held + 1) == 2:
            return
    pytest.fail("rounding steps over a kink with nearly every seed")


@pytest.mark.parametrize("parity", [0, 1])
def test_frozen_parameters_do_not_change_other_gradients(parity, system, make, batch):
    """Frozen parameters have no gradient, and fast implementations give the others the same gradient."""

    def gradients(frozen):
        model = make(system)
        for number, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(number not in frozen)
        Likelihood(0.1)(model, batch, BatchRng(3)).total.backward()
        return [parameter.grad for parameter in model.parameters()]

    whole = gradients(set())
    frozen = set(range(parity, len(whole), 2))
    for number, (part, expected) in enumerate(zip(gradients(frozen), whole, strict=True)):
        if number in frozen or expected is None:
            assert part is None
        else:
            torch.testing.assert_close(part, expected, rtol=1e-3, atol=1e-5)
