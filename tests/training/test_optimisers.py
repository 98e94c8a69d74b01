"""Optimisers, compared with the equations of their papers in NumPy, and gradient clipping."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from rnnsearch.config import training
from rnnsearch.errors import ConfigError
from rnnsearch.training.optimisers import OPTIMISERS, AdaptiveClipping, add_l2, clip

Array = NDArray[np.float64]
RATE = 0.05


def sgd(w: Array, g: Array, _memory: dict[str, Any], _t: int) -> Array:
    return w - RATE * g


def momentum(w: Array, g: Array, memory: dict[str, Any], _t: int) -> Array:
    """Polyak's momentum: the velocity sums gradients, and the rate multiplies the velocity."""
    memory["v"] = 0.8 * memory.get("v", 0.0) + g
    return w - RATE * memory["v"]


def adadelta(w: Array, g: Array, memory: dict[str, Any], _t: int) -> Array:
    """Zeiler 2012, algorithm 1."""
    rho, epsilon = 0.9, 1e-3
    memory["g2"] = rho * memory.get("g2", 0.0) + (1 - rho) * g**2
    step = -np.sqrt(memory.get("d2", 0.0) + epsilon) / np.sqrt(memory["g2"] + epsilon) * g
    memory["d2"] = rho * memory.get("d2", 0.0) + (1 - rho) * step**2
    return w + step


def adam(w: Array, g: Array, memory: dict[str, Any], t: int) -> Array:
    """Kingma & Ba 2015, algorithm 1."""
    b1, b2, epsilon = 0.85, 0.95, 1e-4
    memory["m"] = b1 * memory.get("m", 0.0) + (1 - b1) * g
    memory["v"] = b2 * memory.get("v", 0.0) + (1 - b2) * g**2
    m, v = memory["m"] / (1 - b1**t), memory["v"] / (1 - b2**t)
    return w - RATE * m / (np.sqrt(v) + epsilon)


def adamw(w: Array, g: Array, memory: dict[str, Any], t: int) -> Array:
    """Loshchilov & Hutter 2019, algorithm 2, with the decay scaled by the rate."""
    return adam(w, g, memory, t) - RATE * 0.3 * w


ADAM = {"learning_rate": RATE, "beta1": 0.85, "beta2": 0.95, "epsilon": 1e-4}
CASES: dict[str, tuple[Callable[..., Array], dict[str, Any]]] = {
    "sgd": (sgd, {"type": "sgd", "learning_rate": RATE}),
    "momentum": (momentum, {"type": "sgd", "learning_rate": RATE, "momentum": 0.8}),
    "adadelta": (adadelta, {"type": "adadelta", "rho": 0.9, "epsilon": 1e-3}),
    "adam": (adam, {"type": "adam", **ADAM}),
    "adamw": (adamw, {"type": "adamw", **ADAM, "weight_decay": 0.3}),
}


def test_every_optimiser_is_tested():
    assert {settings["type"] for _, settings in CASES.values()} == set(OPTIMISERS)


@pytest.mark.parametrize("name", CASES)
def test_six_steps_equal_the_equations_of_the_paper_without_a_compiler(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # importing it is an error
    reference, settings = CASES[name]
    rng = np.random.default_rng(3)
    w = rng.normal(size=(3, 4))
    parameter = nn.Parameter(torch.tensor(w))
    optimiser = OPTIMISERS[settings["type"]]([parameter], training.OPTIMISERS[settings["type"]](**settings))
    optimiser.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    memory: dict[str, Any] = {}
    for t in range(1, 7):
        g = rng.normal(size=w.shape) * t
        parameter.grad = torch.tensor(g)
        optimiser.step()
        w = reference(w, g, memory, t)
        np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-9, err_msg=f"step {t}")


def parameters(rng: np.random.Generator) -> list[nn.Parameter]:
    params = [nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in ((2, 3), (4,))]
    for parameter in params:
        parameter.grad = torch.tensor(rng.normal(size=tuple(parameter.shape)))
    return [*params, nn.Parameter(torch.zeros(2))]  # the last one has no gradient


def gradients(params: list[nn.Parameter]) -> Array:
    return np.concatenate([p.grad.numpy().ravel() for p in params if p.grad is not None])


@pytest.mark.parametrize("fraction", [0.3, 1.0, 1.7])
def test_norm_clipping_scales_gradients_above_the_limit(fraction):
    params = parameters(np.random.default_rng(5))
    g = gradients(params)
    norm = float(np.sqrt((g**2).sum()))
    c = fraction * norm
    assert float(clip(params, norm=c, value=None)) == pytest.approx(norm)
    expected = g * c / norm if norm >= c else g
    np.testing.assert_allclose(gradients(params), expected, rtol=1e-12)


@pytest.mark.parametrize("fraction", [0.5, 2.0])
def test_uncounted_gradients_are_scaled_but_not_part_of_the_norm(fraction):
    """Luong et al.'s code: the norm without embeddings is compared with the limit, and scales all gradients."""
    params = parameters(np.random.default_rng(5))
    embedding = params[0]
    g = gradients(params)
    norm = float(np.linalg.norm(gradients(params[1:])))
    assert float(clip(params, fraction * norm, None, {embedding})) == pytest.approx(float(np.linalg.norm(g)))
    np.testing.assert_allclose(gradients(params), g * min(1.0, fraction), rtol=1e-12)


def test_elementwise_clipping_keeps_signs():
    params = parameters(np.random.default_rng(6))
    g = gradients(params)
    clip(params, norm=None, value=0.5)
    np.testing.assert_array_equal(gradients(params), np.minimum(0.5, np.abs(g)) * np.sign(g))
    assert (np.abs(g) > 0.5).any()
    assert (np.abs(g) < 0.5).any()


def test_clip_without_limits_only_returns_the_norm():
    params = parameters(np.random.default_rng(7))
    g = gradients(params)
    assert float(clip(params, None, None)) == pytest.approx(float(np.linalg.norm(g)))
    np.testing.assert_array_equal(gradients(params), g)


def test_l2_adds_gradient_of_half_the_squared_norm():
    params = parameters(np.random.default_rng(8))
    g = gradients(params)
    values = np.concatenate([p.detach().numpy().ravel() for p in params if p.grad is not None])
    add_l2(params, 0.25)
    np.testing.assert_allclose(gradients(params), g + 0.25 * values, rtol=1e-12)


def test_adaptive_clipping_equals_its_equations():
    """Chen et al. 2018: m and s of log(1 + |g|), moving by 0.005, from 0.75 of their weight on."""
    norms = list(np.random.default_rng(9).lognormal(1.0, 0.3, 400))
    norms[100] = norms[300] = norms[301] = 1e6
    clipping = AdaptiveClipping(4.0)
    decisions = []
    weight = mean = square = 0.0
    for norm in norms:
        x = np.log(1 + norm)
        m = mean / max(weight, 1e-6)
        limit = m + 4 * np.sqrt(max(square / max(weight, 1e-6) - m**2, 1e-6))
        expected = not (weight > 0.75 and x > limit)
        decisions.append(bool(clipping.accepts(torch.tensor(norm, dtype=torch.float64))))
        assert decisions[-1] == expected
        x = x if expected else limit
        weight, mean, square = (0.995 * old + 0.005 * new for old, new in ((weight, 1), (mean, x), (square, x * x)))
    assert [n for n, accepted in enumerate(decisions) if not accepted] == [300, 301]  # at 100, too few norms are known
    assert AdaptiveClipping(None).accepts(torch.tensor(1e9)) is None


def test_clipping_zero_gradients_keeps_them_zero():
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.zeros(3)
    assert float(clip([parameter], norm=1.0, value=None)) == 0.0
    assert parameter.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"type": "sgd"}, "learning_rate: must be given for the sgd optimiser"),
        ({"type": "sgd", "learning_rate": 1.0, "beta1": 0.9}, "beta1: has no effect with the sgd optimiser; remove it"),
        ({"type": "adamm", "learning_rate": 1.0}, "type: must be one of sgd, adadelta, adam, adamw; got"),
        ({"type": "adadelta", "rho": 0.95}, "epsilon: must be given for the adadelta optimiser"),
    ],
)
def test_missing_and_ignored_options_are_reported(configure, table, problem):
    with pytest.raises(ConfigError, match=rf"^training\.optimiser\.{problem}"):
        configure(optimiser=table, max_updates=1)
