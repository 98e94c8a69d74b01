"""Optimisers by name, L2 regularisation and gradient clipping.

`tasks.py` makes the optimiser, `gradients.py` clips, and `loop.py` asks `AdaptiveClipping` before each update. Names in
`OPTIMISERS` and options are those of `[training.optimiser]` (`config/training.py`). Checkpoints store PyTorch's
optimiser state by parameter number, so the order of parameters must stay.
"""

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
"""A function that builds an optimiser of parameters from its options."""


@implements(SGDOptions)
def sgd(parameters: list[nn.Parameter], options: SGDOptions) -> optim.Optimizer:
    """Return stochastic gradient descent, with momentum if given."""
    return optim.SGD(parameters, lr=options.learning_rate, momentum=options.momentum)


@implements(AdadeltaOptions)
def adadelta(parameters: list[nn.Parameter], options: AdadeltaOptions) -> optim.Optimizer:
    """Return Adadelta (Zeiler 2012); the papers use learning rate 1, rho 0.95 and epsilon 1e-6."""
    return optim.Adadelta(parameters, lr=options.learning_rate, rho=options.rho, eps=options.epsilon)


@implements(AdamOptions)
def adam(parameters: list[nn.Parameter], options: AdamOptions) -> optim.Optimizer:
    """Return Adam (Kingma & Ba 2015)."""
    betas = (options.beta1, options.beta2)
    # Fused: one kernel updates all parameters, instead of several small ones for each.
    return optim.Adam(parameters, lr=options.learning_rate, betas=betas, eps=options.epsilon, fused=True)


@implements(AdamWOptions)
def adamw(parameters: list[nn.Parameter], options: AdamWOptions) -> optim.Optimizer:
    """Return Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""
    return optim.AdamW(
        parameters,
        lr=options.learning_rate,
        betas=(options.beta1, options.beta2),
        eps=options.epsilon,
        weight_decay=options.weight_decay,
        fused=True,  # see `adam`
    )


OPTIMISERS: Implementations[Make] = Implementations(training.OPTIMISERS)
"""Function that creates an optimiser, by `type` of `[training.optimiser]`; names are stored in model folders."""


def make_optimiser(groups: Sequence[ParameterGroup], config: OptimiserConfig) -> optim.Optimizer:
    """Return the configured optimiser of the parameter groups, in their order.

    A group's learning rate is multiplied by its factor; parameters of frozen groups no longer require gradients.
    """
    optimiser = OPTIMISERS[config.type](groups[0].parameters, config)
    for group in groups[1:]:
        optimiser.add_param_group({"params": group.parameters})
    for group, options in zip(groups, optimiser.param_groups, strict=True):
        options["lr"] *= group.learning_rate_factor
        if group.frozen:
            for parameter in group.parameters:
                parameter.requires_grad_(False)
    return optimiser


def add_l2(parameters: Iterable[nn.Parameter], weight: float) -> None:
    """Add the gradient of `weight` / 2 |theta|^2 to the gradients, in place."""
    pairs = [(parameter.grad, parameter.detach()) for parameter in parameters if parameter.grad is not None]
    torch._foreach_add_([gradient for gradient, _ in pairs], [value for _, value in pairs], alpha=weight)


def clip(parameters: Iterable[nn.Parameter], norm: float | None, value: float | None) -> Tensor:
    """Clip gradients in place and return their norm before clipping, a scalar on their device.

    Sparse gradients must be coalesced.

    Args:
        parameters: Parameters whose gradients are clipped.
        norm: Max norm c: g <- g * c / |g| if |g| >= c (tutorial 2a, "norm clipping"; Pascanu et al. 2013).
        value: Max absolute value c: g_i <- min(c, |g_i|) sgn(g_i) ("element-wise clipping"), applied before the norm.
    """
    # The values of a sparse gradient share its memory, so that it is clipped in place like the others.
    grads = [p.grad.values() if p.grad.is_sparse else p.grad for p in parameters if p.grad is not None]
    if value is not None:
        for grad in grads:
            grad.clamp_(-value, value)
    total: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    # The comparison skips work on the CPU; on a GPU it would wait for the device.
    if norm is not None and not (total.device.type == "cpu" and total <= norm):
        scale = (norm / total.clamp_min(1e-12)).clamp_max(1.0)  # no division by 0
        torch._foreach_mul_(grads, scale)
    return total


NORM_DECAY = 0.995
"""Decay per update of the moving mean and deviation of the gradient norm."""
MIN_NORM_WEIGHT = 0.75
"""Total weight of past updates before any norm is rejected; reached after 277 updates."""


class AdaptiveClipping:
    """Rejects updates whose gradient norm is unusually large (Chen et al. 2018, section 3.3).

    Keeps a moving mean m and standard deviation s of x = log(1 + |g|). A norm with x > m + `deviations` s is "usually
    an indication of an imminent gradient explosion"; it moves the statistics as if it were m + `deviations` s.
    """

    def __init__(self, deviations: float | None, state: dict[str, float]) -> None:
        """Initialise the statistics.

        Args:
            deviations: Allowed number of standard deviations above the mean; None accepts every norm.
            state: Statistics of earlier updates, or empty: "weight" is the total weight of past updates, up to 1;
                "mean" and "square" are the moving means of x and x^2, times that weight. `accepts` updates it in
                place: it is `norms` of the loop's state (`checkpoint.py`), which checkpoints store.
        """
        self.deviations = deviations
        self.state = state

    def accepts(self, norm: float) -> bool:
        """Return True if this update's norm is not unusually large, and add it to the statistics."""
        if self.deviations is None:
            return True
        x = math.log1p(norm)
        weight = self.state.get("weight", 0.0)
        # Sums started at 0: dividing by the total weight removes that bias, as in Adam.
        mean = self.state.get("mean", 0.0) / max(weight, 1e-6)
        square = self.state.get("square", 0.0) / max(weight, 1e-6)
        # Rounding may make the variance negative.
        limit = mean + self.deviations * math.sqrt(max(square - mean**2, 1e-6))
        accepted = x <= limit or weight <= MIN_NORM_WEIGHT
        if not accepted:
            x = limit
        for name, value in {"weight": 1.0, "mean": x, "square": x * x}.items():
            old = self.state.get(name, 0.0)
            self.state[name] = old + (1 - NORM_DECAY) * (value - old)
        return accepted
