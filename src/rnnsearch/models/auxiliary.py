"""Parameters that only training uses: what penalties and estimators learn beside the model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.config import ObjectiveConfig, objective
from rnnsearch.config.objective import AverageBaselineOptions, LearnedBaselineOptions, RationaleConfig, ReinforceConfig
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.models.layers import Linear, parameter, set_role
from rnnsearch.utils.tensors import at_least_fp32

MIN_FERTILITY_VARIANCE = 0.01
"""Of a source symbol's fertility: without a floor a density has no maximum."""


class Fertility(nn.Module):
    """How many target symbols a source symbol is translated by: a normal distribution, read from its annotation.

    f_j ~ N(mu_j, sigma_j^2) with mu_j = w_mu^T tanh(W h_j + b) + b_mu and sigma_j^2 = exp(w_sigma^T tanh(W h_j + b) +
    b_sigma) + a floor (Cohn et al. 2016, section 3.3, global fertility). Both begin at 1: b_mu is counted from there.
    """

    def __init__(self, annotation: int, size: int) -> None:
        super().__init__()
        self.hidden = Linear(annotation, size)
        self.moments = Linear(size, 2, role=0.0)

    def forward(self, annotations: Float[Tensor, "B J H"]) -> tuple[Float[Tensor, "B J"], Float[Tensor, "B J"]]:
        """Mean and variance of each source position's fertility, in fp32 at least."""
        beyond_one, log_variance = at_least_fp32(self.moments(torch.tanh(self.hidden(annotations)))).unbind(-1)
        return 1 + beyond_one, log_variance.exp() + MIN_FERTILITY_VARIANCE


class Baseline(nn.Module, ABC):
    """What return (log-probability of the symbols from a position on) REINFORCE expects before the draw."""

    component: ClassVar[type[ReinforceConfig]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, options: Any, readout: int, vocabulary: int) -> None:
        """A baseline of its own options, for readouts of `readout` numbers."""
        super().__init__()

    @abstractmethod
    def forward(self, readout: Float[Tensor, "B I R"]) -> Float[Tensor, "B I"]:
        """The mean log-probability a symbol that is expected from each position on. It must not depend on what is
        drawn there or later, so position i is given to read what was read out at positions before it."""

    def loss(
        self, expected: Float[Tensor, "B I"], means: Float[Tensor, "B I"], mask: Bool[Tensor, "B I"]
    ) -> Float[Tensor, ""]:
        """What is to be added to the loss for the baseline's own sake, by the means that came out; summed over the
        batch."""
        return means.new_zeros(())

    def update(self, mean: Float[Tensor, ""]) -> None:
        """Told after an update the mean log-probability of a symbol in it."""


@implements(AverageBaselineOptions)
class AverageBaseline(Baseline):
    """A moving average over updates: b_k = decay b_{k-1} + (1 - decay) mean log p (Xu et al. 2015, section 4.1).

    It begins at log(1 / V). Kept as a parameter without gradient, so that checkpoints hold it.
    """

    def __init__(self, options: AverageBaselineOptions | RationaleConfig, readout: int, vocabulary: int) -> None:
        super().__init__(options, readout, vocabulary)
        self.decay = options.decay
        self.value = parameter(-math.log(vocabulary)).requires_grad_(False)

    def forward(self, readout: Float[Tensor, "B I R"]) -> Float[Tensor, "B I"]:
        return self.value.expand(readout.shape[:2])

    def update(self, mean: Float[Tensor, ""]) -> None:
        self.value.lerp_(mean.to(self.value.dtype), 1.0 - self.decay)


@implements(LearnedBaselineOptions)
class LearnedBaseline(Baseline):
    """w^T t_{i-1} + b of the last position's readout, learned by least squares; no gradient reaches the model."""

    def __init__(self, options: Any, readout: int, vocabulary: int) -> None:
        super().__init__(options, readout, vocabulary)
        self.linear = Linear(readout, 1, role=0.0)
        set_role(self.linear.bias, -math.log(vocabulary))

    def forward(self, readout: Float[Tensor, "B I R"]) -> Float[Tensor, "B I"]:
        readout = readout[..., : self.linear.in_features]  # and nothing that an output has behind it
        before = torch.cat([torch.zeros_like(readout[:, :1]), readout[:, :-1]], dim=1).detach()
        return at_least_fp32(self.linear(before)).squeeze(-1)

    def loss(
        self, expected: Float[Tensor, "B I"], means: Float[Tensor, "B I"], mask: Bool[Tensor, "B I"]
    ) -> Float[Tensor, ""]:
        return ((expected - means).square() * mask).sum()


BASELINES: Implementations[type[Baseline]] = Implementations(objective.BASELINES)


class Auxiliary(nn.Module):
    """The parts that `[objective]` asks for, over annotations and readouts of so many numbers."""

    def __init__(self, config: ObjectiveConfig, annotation: int, readout: int, vocabulary: int) -> None:
        super().__init__()
        fertility, reinforce = config.fertility, config.reinforce
        self.fertility = None if fertility is None else Fertility(annotation, fertility.size)
        self.baseline: Baseline | None = None
        if reinforce is not None:
            self.baseline = BASELINES[reinforce.baseline](reinforce, readout, vocabulary)
        self.rationale: Baseline | None = None
        """Of the words that an encoder chooses."""
        if config.rationale is not None:
            self.rationale = AverageBaseline(config.rationale, readout, vocabulary)
