"""The optimisers by name, and gradient clipping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn, optim

from rnnsearch.config import OptimiserConfig
from rnnsearch.systems.parameters import ParameterGroup


class Kind(ABC):
    """An optimiser: which options of `[training.optimiser]` it needs, which it may have, and how it is made."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset({"learning_rate"})
    takes: ClassVar[frozenset[str]] = frozenset()

    @staticmethod
    @abstractmethod
    def make(parameters: list[nn.Parameter], config: OptimiserConfig) -> optim.Optimizer:
        """The optimiser over parameters."""


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


class SGD(Kind):
    """Stochastic gradient descent, with momentum if given."""

    name = "sgd"
    takes = frozenset({"momentum"})

    @staticmethod
    def make(parameters: list[nn.Parameter], config: OptimiserConfig) -> optim.Optimizer:
        return optim.SGD(parameters, lr=config.learning_rate or 0.0, momentum=config.momentum or 0.0)


class Adadelta(Kind):
    """Zeiler 2012; learning rate 1, and in the papers rho 0.95, epsilon 1e-6."""

    name = "adadelta"
    needs = frozenset({"rho", "epsilon"})
    takes = frozenset({"learning_rate"})

    @staticmethod
    def make(parameters: list[nn.Parameter], config: OptimiserConfig) -> optim.Optimizer:
        rho, epsilon = _or(config.rho, 0.95), _or(config.epsilon, 1e-6)
        return optim.Adadelta(parameters, lr=_or(config.learning_rate, 1.0), rho=rho, eps=epsilon)


def _adam_settings(config: OptimiserConfig) -> tuple[tuple[float, float], float]:
    return (_or(config.beta1, 0.9), _or(config.beta2, 0.999)), _or(config.epsilon, 1e-8)


class Adam(Kind):
    """Kingma & Ba 2015."""

    name = "adam"
    takes = frozenset({"beta1", "beta2", "epsilon"})

    @staticmethod
    def make(parameters: list[nn.Parameter], config: OptimiserConfig) -> optim.Optimizer:
        betas, epsilon = _adam_settings(config)
        return optim.Adam(parameters, lr=config.learning_rate or 0.0, betas=betas, eps=epsilon, fused=True)


class AdamW(Kind):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    name = "adamw"
    needs = frozenset({"learning_rate", "weight_decay"})
    takes = frozenset({"beta1", "beta2", "epsilon"})

    @staticmethod
    def make(parameters: list[nn.Parameter], config: OptimiserConfig) -> optim.Optimizer:
        betas, epsilon = _adam_settings(config)
        decay = config.weight_decay or 0.0
        rate = config.learning_rate or 0.0
        return optim.AdamW(parameters, lr=rate, betas=betas, eps=epsilon, weight_decay=decay, fused=True)


OPTIMISERS: dict[str, type[Kind]] = {c.name: c for c in (SGD, Adadelta, Adam, AdamW)}


def make_optimiser(groups: Sequence[ParameterGroup], config: OptimiserConfig) -> optim.Optimizer:
    """The config's optimiser over groups of parameters, in their order, each at its own learning rate."""
    optimiser = OPTIMISERS[config.type].make(groups[0].parameters, config)
    for group in groups[1:]:
        optimiser.add_param_group({"params": group.parameters})
    for group, made in zip(groups, optimiser.param_groups, strict=True):
        made["lr"] *= group.factor
        if group.frozen:
            for parameter in group.parameters:
                parameter.requires_grad_(False)
    return optimiser


def clip(parameters: Iterable[nn.Parameter], norm: float | None, value: float | None) -> Tensor:
    """Clip gradients in place and return their norm before clipping (a scalar on their device).

    norm: g <- g * c / |g| where |g| >= c (tutorial 2a, "norm clipping"; Pascanu et al. 2013).
    value: g_i <- min(c, |g_i|) sgn(g_i) ("element-wise clipping"), before the norm.
    """
    grads = [p.grad for p in parameters if p.grad is not None]
    if value is not None:
        for grad in grads:
            grad.clamp_(-value, value)
    total: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    if norm is not None:
        scale = (norm / total.clamp_min(1e-12)).clamp_max(1.0)
        torch._foreach_mul_(grads, scale)
    return total
