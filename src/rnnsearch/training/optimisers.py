"""The optimisers by name, and gradient clipping."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim

from rnnsearch.config import OptimiserConfig, training
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.config.training import AdadeltaOptions, AdamOptions, AdamWOptions, SGDOptions
from rnnsearch.systems.system import ParameterGroup

Make = Callable[[list[nn.Parameter], Any], optim.Optimizer]
"""Makes an optimiser over parameters from its own options."""


@implements(SGDOptions)
def sgd(parameters: list[nn.Parameter], options: SGDOptions) -> optim.Optimizer:
    """Stochastic gradient descent, with momentum if given."""
    return optim.SGD(parameters, lr=options.learning_rate, momentum=options.momentum)


@implements(AdadeltaOptions)
def adadelta(parameters: list[nn.Parameter], options: AdadeltaOptions) -> optim.Optimizer:
    """Zeiler 2012; learning rate 1, and in the papers rho 0.95, epsilon 1e-6."""
    return optim.Adadelta(parameters, lr=options.learning_rate, rho=options.rho, eps=options.epsilon)


@implements(AdamOptions)
def adam(parameters: list[nn.Parameter], options: AdamOptions) -> optim.Optimizer:
    """Kingma & Ba 2015."""
    betas = (options.beta1, options.beta2)
    return optim.Adam(parameters, lr=options.learning_rate, betas=betas, eps=options.epsilon, fused=True)


@implements(AdamWOptions)
def adamw(parameters: list[nn.Parameter], options: AdamWOptions) -> optim.Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""
    rate, betas, decay = options.learning_rate, (options.beta1, options.beta2), options.weight_decay
    return optim.AdamW(parameters, lr=rate, betas=betas, eps=options.epsilon, weight_decay=decay, fused=True)


OPTIMISERS: Implementations[Make] = Implementations(training.OPTIMISERS)


def make_optimiser(groups: Sequence[ParameterGroup], config: OptimiserConfig) -> optim.Optimizer:
    """The config's optimiser over groups of parameters, in their order, each at its own learning rate."""
    optimiser = OPTIMISERS[config.type](groups[0].parameters, config)
    for group in groups[1:]:
        optimiser.add_param_group({"params": group.parameters})
    for group, made in zip(groups, optimiser.param_groups, strict=True):
        made["lr"] *= group.factor
        if group.frozen:
            for parameter in group.parameters:
                parameter.requires_grad_(False)
    return optimiser


def add_l2(parameters: Iterable[nn.Parameter], share: float) -> None:
    """To gradients, in place, that of `share` / 2 |theta|^2."""
    learned = [(p.grad, p.detach()) for p in parameters if p.grad is not None]
    torch._foreach_add_([grad for grad, _ in learned], [value for _, value in learned], alpha=share)


def clip(parameters: Iterable[nn.Parameter], norm: float | None, value: float | None) -> Tensor:
    """Clip gradients in place and return their norm before clipping (a scalar on their device). Sparse ones must be
    coalesced.

    norm: g <- g * c / |g| where |g| >= c (tutorial 2a, "norm clipping"; Pascanu et al. 2013).
    value: g_i <- min(c, |g_i|) sgn(g_i) ("element-wise clipping"), before the norm.
    """
    grads = [p.grad.values() if p.grad.is_sparse else p.grad for p in parameters if p.grad is not None]
    if value is not None:
        for grad in grads:
            grad.clamp_(-value, value)
    total: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    if norm is not None and not (total.device.type == "cpu" and total <= norm):  # which on a GPU would be waited for
        scale = (norm / total.clamp_min(1e-12)).clamp_max(1.0)
        torch._foreach_mul_(grads, scale)
    return total


# Adaptive clipping: which gradients are of a usual length (Chen et al. 2018, section 3.3).

DECAY = 0.995
"""Of the moving mean and deviation, in each update."""
SEEN = 0.75
"""Nothing is unusual before the weights of what was seen add up to so much (after 277 updates)."""


class AdaptiveClipping:
    """A moving mean m and standard deviation s of x = log(1 + |g|); a norm with x > m + `deviations` s is unusual,
    "usually an indication of an imminent gradient explosion". It moves them as if it were m + `deviations` s."""

    def __init__(self, deviations: float | None, state: dict[str, float]) -> None:
        """deviations: None: all norms are usual. state: of earlier updates, or empty."""
        self.deviations = deviations
        self.state = state
        """weight: of what was seen so far, up to 1; mean, square: of x and x^2, times it."""

    def accepts(self, norm: float) -> bool:
        """Whether this update's norm is usual, compared to those before it."""
        if self.deviations is None:
            return True
        x, weight = math.log1p(norm), self.state.get("weight", 0.0)
        mean, square = (self.state.get(name, 0.0) / max(weight, 1e-6) for name in ("mean", "square"))
        most = mean + self.deviations * math.sqrt(max(square - mean**2, 1e-6))
        usual = x <= most or weight <= SEEN
        if not usual:
            x = most
        for name, value in {"weight": 1.0, "mean": x, "square": x * x}.items():
            old = self.state.get(name, 0.0)
            self.state[name] = old + (1 - DECAY) * (value - old)
        return usual
