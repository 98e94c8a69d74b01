"""Optimisers by name, L2 regularisation and gradient clipping.

`tasks.py` makes the optimiser, `gradients.py` clips, and `loop.py` asks `AdaptiveClipping` before each update. Names in
`OPTIMISERS` and options are those of `[training.optimiser]` (`config/training.py`). Checkpoints store PyTorch's
optimiser state by parameter number, so the order of parameters must stay.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn, optim

from rnnsearch.config import OptimiserConfig, training
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.config.training import AdadeltaOptions, AdamOptions, AdamWOptions, SGDOptions
from rnnsearch.systems.system import ParameterGroup

Make = Callable[[list[nn.Parameter], Any], optim.Optimizer]
"""A function that builds an optimiser of parameters from its options."""


Class = TypeVar("Class", bound=optim.Optimizer)


def _uncompiled(optimiser: type[Class]) -> type[Class]:
    """Return a subclass whose methods do not import PyTorch's compiler.

    PyTorch wraps them to exclude them from `torch.compile`, which no training uses; the import takes more than a
    second. Where the original methods cannot be found, the wrapped ones stay.
    """
    methods = {
        "add_param_group": inspect.unwrap(optimiser.add_param_group),
        "step": torch.no_grad()(inspect.unwrap(optimiser.step)),
    }
    return cast(type[Class], type(optimiser.__name__, (optimiser,), methods))


SGD = _uncompiled(optim.SGD)
Adadelta = _uncompiled(optim.Adadelta)
Adam = _uncompiled(optim.Adam)
AdamW = _uncompiled(optim.AdamW)


@implements(SGDOptions)
def sgd(parameters: list[nn.Parameter], options: SGDOptions) -> optim.Optimizer:
    """Return stochastic gradient descent, with momentum if given."""
    return SGD(parameters, lr=options.learning_rate, momentum=options.momentum)


@implements(AdadeltaOptions)
def adadelta(parameters: list[nn.Parameter], options: AdadeltaOptions) -> optim.Optimizer:
    """Return Adadelta (Zeiler 2012); the papers use learning rate 1, rho 0.95 and epsilon 1e-6."""
    return Adadelta(parameters, lr=options.learning_rate, rho=options.rho, eps=options.epsilon)


@implements(AdamOptions)
def adam(parameters: list[nn.Parameter], options: AdamOptions) -> optim.Optimizer:
    """Return Adam (Kingma & Ba 2015)."""
    betas = (options.beta1, options.beta2)
    # Fused: one kernel updates all parameters, instead of several small ones for each.
    return Adam(parameters, lr=options.learning_rate, betas=betas, eps=options.epsilon, fused=True)


@implements(AdamWOptions)
def adamw(parameters: list[nn.Parameter], options: AdamWOptions) -> optim.Optimizer:
    """Return Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""
    return AdamW(
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


def clip(
    parameters: Iterable[nn.Parameter],
    norm: float | None,
    value: float | None,
    uncounted: Collection[nn.Parameter] = (),
) -> Tensor:
    """Clip gradients in place and return the norm of all before clipping, a scalar on their device.

    Sparse gradients must be coalesced.

    Args:
        parameters: Parameters whose gradients are clipped.
        norm: Max norm c: g <- g * c / |g| if |g| >= c (tutorial 2a, "norm clipping"; Pascanu et al. 2013).
        value: Max absolute value c: g_i <- min(c, |g_i|) sgn(g_i) ("element-wise clipping"), applied before the norm.
        uncounted: Parameters whose gradients do not count in the norm that is compared with c, but are scaled, too.
    """
    clipped = [p for p in parameters if p.grad is not None]
    # The values of a sparse gradient share its memory, so that it is clipped in place like the others.
    grads = [p.grad.values() if p.grad.is_sparse else p.grad for p in clipped if p.grad is not None]
    if value is not None:
        for grad in grads:
            grad.clamp_(-value, value)
    norms = torch._foreach_norm(grads)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    counted = total
    if uncounted and (counted_norms := [n for p, n in zip(clipped, norms, strict=True) if p not in uncounted]):
        counted = torch.linalg.vector_norm(torch.stack(counted_norms))
    # The comparison skips work on the CPU; on a GPU it would wait for the device.
    if norm is not None and not (total.device.type == "cpu" and counted <= norm):
        scale = (norm / counted.clamp_min(1e-12)).clamp_max(1.0)  # no division by 0
        torch._foreach_mul_(grads, scale)
    return total


NORM_DECAY = 0.995
"""Decay per update of the moving mean and deviation of the gradient norm."""
MIN_NORM_WEIGHT = 0.75
"""Total weight of past updates before any norm is rejected; reached after 277 updates."""
NORM_STATISTICS = ("weight", "mean", "square")
"""Names of the statistics of `AdaptiveClipping` in a checkpoint."""


class AdaptiveClipping:
    """Rejects updates whose gradient norm is unusually large (Chen et al. 2018, section 3.3).

    Keeps a moving mean m and standard deviation s of x = log(1 + |g|). A norm with x > m + `deviations` s is "usually
    an indication of an imminent gradient explosion"; it moves the statistics as if it were m + `deviations` s. All
    values stay on the device of the norms.
    """

    def __init__(self, deviations: float | None, device: torch.device | str = "cpu") -> None:
        """Initialise the statistics.

        Args:
            deviations: Allowed number of standard deviations above the mean; None accepts every norm.
            device: Device of the norms.
        """
        self.deviations = deviations
        # The total weight of past updates, up to 1, and the moving means of x and x^2, times that weight.
        self._sums = torch.zeros(len(NORM_STATISTICS), dtype=torch.float64, device=device)

    @property
    def state(self) -> dict[str, float]:
        """The statistics by name, which checkpoints store; empty if every norm is accepted."""
        if self.deviations is None:
            return {}
        return dict(zip(NORM_STATISTICS, self._sums.tolist(), strict=True))

    @state.setter
    def state(self, values: dict[str, float]) -> None:
        self._sums.copy_(torch.tensor([values.get(name, 0.0) for name in NORM_STATISTICS], dtype=torch.float64))

    def accepts(self, norm: Tensor) -> Tensor | None:
        """Return whether this update's norm is not unusually large, and add it to the statistics.

        Returns:
            A scalar on the device; None if every norm is accepted.
        """
        if self.deviations is None:
            return None
        x = norm.detach().double().log1p()
        weight = self._sums[0]
        # Sums started at 0: dividing by the total weight removes that bias, as in Adam.
        _, mean, square = self._sums / weight.clamp_min(1e-6)
        # Rounding may make the variance negative.
        limit = mean + self.deviations * (square - mean**2).clamp_min(1e-6).sqrt()
        accepted: Tensor = (x <= limit) | (weight <= MIN_NORM_WEIGHT)
        x = torch.where(accepted, x, limit)
        self._sums.lerp_(torch.stack([torch.ones_like(x), x, x * x]), 1 - NORM_DECAY)
        return accepted


def step_if(optimiser: optim.Optimizer, accepted: Tensor | None, step: Callable[[], None]) -> None:
    """Make a step of an optimiser unless `accepted` is False, without waiting for its device if possible.

    Args:
        optimiser: The optimiser.
        accepted: A scalar on its device; None for True.
        step: Makes the step.
    """
    if accepted is None:
        step()
    elif all(group.get("fused") for group in optimiser.param_groups):
        # Fused steps read this flag on the device, as they do for a gradient scaler.
        optimiser.found_inf = (~accepted).float()  # type: ignore[attr-defined]
        try:
            step()
        finally:
            del optimiser.found_inf  # type: ignore[attr-defined]
    elif accepted:
        step()
