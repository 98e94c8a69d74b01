"""What is trained of a module, and how fast."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn


class ParameterGroup(NamedTuple):
    """Parameters that are trained alike. Every parameter of what is trained is in one group."""

    parameters: list[nn.Parameter]
    factor: float = 1.0
    """Of the run's learning rate."""
    frozen: bool = False
    """Whether they stay as they are: they get no gradient."""
