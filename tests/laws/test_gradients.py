"""Gradients by finite differences, through whole models in float64, and one precision lower."""

import pytest
import torch

from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.draws import Draws
from rnnsearch.objectives.likelihood import likelihood


def test_whole_models_by_finite_differences(system, make, batch):
    """Along random directions of all parameters together, dropout, smoothing, fast twins and all. Where positions are
    drawn, what they are drawn by makes no difference in small, and has no gradient (but REINFORCE's)."""
    model = make(system).double()
    parameters = list(model.parameters())

    def loss():
        return likelihood(0.1)(model, batch, Draws(3)).total

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


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bf16_products_change_the_loss_and_gradients_by_rounding_alone(smoothing, system, make, batch):
    """Where rounding can move a window or a choice, it makes any difference. A norm of few numbers can make more of
    it, but then of the weights' rounding alone as well, or not with the next seed's numbers."""
    attention = system.model.attention
    if attention and (NORMALISERS[attention.normaliser].draws_noise or WINDOWS[attention.window].weighs):
        return

    def loss_and_gradient(seed, products, weights):
        model = make(system, seed)
        for parameter in model.parameters():
            parameter.data.copy_(parameter.to(weights))
        with torch.autocast("cpu", torch.bfloat16, enabled=products is torch.bfloat16):
            loss = likelihood(smoothing)(model, batch, Draws(1))
        loss.total.backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert gradient.dtype == loss.total.dtype == loss.nll.dtype == torch.float32
        return loss.total.item(), gradient

    def off(seed):
        """How far rounding goes, in units of what it may."""
        total, gradient = loss_and_gradient(seed, torch.float32, torch.float32)
        rounded_total, rounded = loss_and_gradient(seed, torch.bfloat16, torch.float32)
        assert rounded_total != total
        assert rounded_total == pytest.approx(total, rel=0.02)
        distance, allowed = (rounded - gradient).norm(), 0.1 * gradient.norm()
        if distance >= allowed:
            _, of_rounded_weights = loss_and_gradient(seed, torch.float32, torch.bfloat16)
            allowed = 3 * (of_rounded_weights - gradient).norm()
        return distance / allowed

    assert any(off(seed) < 1 for seed in (1, 2))
