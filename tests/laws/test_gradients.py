"""Gradients by finite differences, through whole models in float64, and one precision lower."""

import pytest
import torch

from rnnsearch.models.draws import Draws
from rnnsearch.objectives.likelihood import likelihood


def test_whole_models_by_finite_differences(system, make, batch):
    """Along random directions of all parameters together, dropout, smoothing, fast twins and all."""
    model = make(system).double()
    parameters = list(model.parameters())

    def loss():
        return likelihood(0.1)(model, batch, Draws(3)).total

    gradients = torch.autograd.grad(loss(), parameters)
    generator = torch.Generator().manual_seed(4)

    def slope(directions, step=1e-5):
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
        assert slope(directions) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bf16_products_change_the_loss_and_gradients_by_rounding_alone(smoothing, system, make, batch):
    results = []
    for on in (False, True):
        model = make(system)
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            loss = likelihood(smoothing)(model, batch, Draws(1))
        loss.total.backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert gradient.dtype == loss.total.dtype == loss.nll.dtype == torch.float32
        results.append((loss.total.item(), gradient))
    (total, gradient), (rounded_total, rounded) = results
    assert rounded_total != total
    assert rounded_total == pytest.approx(total, rel=0.02)
    assert (rounded - gradient).norm() < 0.1 * gradient.norm()
