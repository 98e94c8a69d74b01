"""Fixtures: modules with random weights, their parameters as NumPy arrays, and seeded random tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from rnnsearch.accel.registry import choose
from tests.models.reference import Array


@pytest.fixture
def drawn() -> Callable[[Any], tuple[Any, dict[str, Array]]]:
    """Return a function that fills a module with random float64 parameters, biases included.

    The values are large enough for the nonlinearities to matter. Fast implementations are chosen for the module. The
    function returns the module and its parameters by name as NumPy arrays.
    """

    def draw(module: nn.Module, seed: int = 0) -> tuple[nn.Module, dict[str, Array]]:
        generator = torch.Generator().manual_seed(seed)
        module.double()
        for parameter in module.parameters():
            parameter.data.normal_(std=0.7, generator=generator)
        choose(module)
        return module, {name: value.detach().numpy().copy() for name, value in module.named_parameters()}

    return draw


@pytest.fixture
def numbers() -> Callable[..., torch.Tensor]:
    """Return a function that returns a new normal tensor, [*shape] float64, from one seeded generator per test."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return draw
