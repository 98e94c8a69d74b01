"""Modules with lively parameters beside these as NumPy, and seeded numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from rnnsearch.accel.registry import choose
from tests.models.reference import Array


@pytest.fixture
def drawn() -> Callable[[Any], tuple[Any, dict[str, Array]]]:
    """Gives a module float64 parameters, biases too, large enough to bend every curve, and its fast twins; returns it
    and them."""

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
    """Seeded normal numbers, [*shape] float64; another call gives others."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return draw
