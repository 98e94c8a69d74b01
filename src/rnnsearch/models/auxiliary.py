"""Parameters that only training uses: those of the fertility penalty, of REINFORCE baselines and of critics.

`translation_model.py` creates `Auxiliary` if `[objective]` needs it. Its parameters are in the checkpoint under
`auxiliary`, but no translation reads them. To add a baseline, declare its options in `config/objective.py` (of hard
attention) or `config/sequence.py` (of sampled translations) and implement a subclass of `Baseline` or `RewardBaseline`
here.
Tests: tests/objectives/test_reinforce.py, tests/objectives/test_attention_priors.py,
tests/objectives/test_rationale.py.

Axes: B sentences, N sampled translations, I target positions, J source positions, H annotation, R readout.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.config import ObjectiveConfig, objective, sequence
from rnnsearch.config.objective import AverageBaselineOptions, LearnedBaselineOptions, RationaleConfig, ReinforceConfig
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.config.sequence import (
    AverageRewardOptions,
    LearnedRewardOptions,
    PolicyBaselineOptions,
    PolicyGradientConfig,
    SelfCriticalOptions,
)
from rnnsearch.models.layers import Linear, parameter, set_role
from rnnsearch.utils.tensors import at_least_fp32

MIN_FERTILITY_VARIANCE = 0.01
"""Lower limit of the variance of a fertility, without which the density is unbounded."""


class Auxiliary(nn.Module):
    """The modules that `[objective]` needs, for the given sizes of annotations and readouts."""

    def __init__(self, config: ObjectiveConfig, annotation: int, readout: int, vocabulary: int) -> None:
        super().__init__()
        self.fertility: Fertility | None = None
        if config.fertility is not None:
            self.fertility = Fertility(annotation, config.fertility.size)
        self.baseline: Baseline | None = None
        if config.reinforce is not None:
            self.baseline = BASELINES[config.reinforce.baseline](config.reinforce, readout, vocabulary)
        self.rationale: Baseline | None = None
        """The baseline of an encoder that selects words."""
        if config.rationale is not None:
            self.rationale = AverageBaseline(config.rationale, readout, vocabulary)
        self.reward_baseline: RewardBaseline | None = None
        """The baseline of sampled translations."""
        if isinstance(config.sequence, PolicyGradientConfig):
            options = config.sequence.baseline
            self.reward_baseline = REWARD_BASELINES[options.type](options, readout)
        self.actor_critic: nn.Module | None = None
        """The networks of actor-critic training, set by `models/critics.py`, which is above this layer."""
        self.state_critic: nn.Module | None = None
        """The critic of an actor in the decoder, set like `actor_critic`."""
        self.agent_baseline: nn.Module | None = None
        """The baseline of an agent that reads and writes, set like `actor_critic`."""


class Fertility(nn.Module):
    """The number of target words per source word, as a normal distribution (Cohn et al. 2016, section 3.3).

    f_j ~ N(mu_j, sigma_j^2) with mu_j = w_mu^T tanh(W h_j + b) + b_mu and sigma_j^2 = exp(w_sigma^T tanh(W h_j + b) +
    b_sigma) plus a lower limit (global fertility). Both start at 1: the parameter b_mu is 1 less than in the equation.
    """

    def __init__(self, annotation: int, size: int) -> None:
        super().__init__()
        self.hidden = Linear(annotation, size)
        self.moments = Linear(size, 2, role=0.0)

    def forward(self, annotations: Float[Tensor, "B J H"]) -> tuple[Float[Tensor, "B J"], Float[Tensor, "B J"]]:
        """Return mean and variance of each source position's fertility, in fp32 or wider."""
        # [B, J, 2] -> [B, J] each. The layer's weights start at 0, so that all words start with the same moments.
        mean_minus_one, log_variance = at_least_fp32(self.moments(torch.tanh(self.hidden(annotations)))).unbind(-1)
        return 1 + mean_minus_one, log_variance.exp() + MIN_FERTILITY_VARIANCE


class Baseline(nn.Module, ABC):
    """The return that REINFORCE expects before sampling: the log-probability of the tokens from a position on."""

    component: ClassVar[type[ReinforceConfig]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, options: Any, readout: int, vocabulary: int) -> None:
        """Create a baseline from its options, for readouts of size `readout`."""
        super().__init__()

    @abstractmethod
    def forward(self, readout: Float[Tensor, "B I R"]) -> Float[Tensor, "B I"]:
        """Return the expected mean log-probability per token from each position on.

        It must not depend on what is sampled there or later, so position i may only use readouts of earlier positions.
        """

    def loss(
        self, expected: Float[Tensor, "B I"], means: Float[Tensor, "B I"], mask: Bool[Tensor, "B I"]
    ) -> Float[Tensor, ""]:
        """Return the loss to train the baseline with, summed over the batch.

        Args:
            expected: From `forward`.
            means: The actual mean log-probabilities.
            mask: True at real positions, False at padding.
        """
        return means.new_zeros(())

    def update(self, mean: Float[Tensor, ""]) -> None:
        """Update the baseline after a training update with its mean log-probability per token."""


@implements(AverageBaselineOptions)
class AverageBaseline(Baseline):
    """A moving average over updates: b_k = decay b_{k-1} + (1 - decay) mean log p (Xu et al. 2015, section 4.1).

    It starts at log(1 / V), and is a parameter without a gradient so that checkpoints include it.
    """

    def __init__(self, options: AverageBaselineOptions | RationaleConfig, readout: int, vocabulary: int) -> None:
        super().__init__(options, readout, vocabulary)
        self.decay = options.decay
        self.value = parameter(-math.log(vocabulary)).requires_grad_(False)

    def forward(self, readout: Float[Tensor, "B I R"]) -> Float[Tensor, "B I"]:
        return self.value.expand(readout.shape[:2])  # [B, I], one value for all positions

    def update(self, mean: Float[Tensor, ""]) -> None:
        # In place: the parameter has no gradient, so that no optimiser updates it.
        self.value.lerp_(mean.to(self.value.dtype), 1.0 - self.decay)


@implements(LearnedBaselineOptions)
class LearnedBaseline(Baseline):
    """w^T t_{i-1} + b of the previous position's readout, learned by least squares; the model gets no gradient."""

    def __init__(self, options: Any, readout: int, vocabulary: int) -> None:
        super().__init__(options, readout, vocabulary)
        self.linear = Linear(readout, 1, role=0.0)
        set_role(self.linear.bias, -math.log(vocabulary))  # log-probability of a uniform guess

    def forward(self, readout: Float[Tensor, "B I R"]) -> Float[Tensor, "B I"]:
        readout = readout[..., : self.linear.in_features]  # without what a copying or pointing output appends
        # [B, I, R], shifted right, so that b_i does not depend on the sample at i; detached, so that the model does
        # not learn to be predictable.
        previous = torch.cat([torch.zeros_like(readout[:, :1]), readout[:, :-1]], dim=1).detach()
        return at_least_fp32(self.linear(previous)).squeeze(-1)

    def loss(
        self, expected: Float[Tensor, "B I"], means: Float[Tensor, "B I"], mask: Bool[Tensor, "B I"]
    ) -> Float[Tensor, ""]:
        return ((expected - means).square() * mask).sum()


BASELINES: Implementations[type[Baseline]] = Implementations(objective.BASELINES)
"""Class by `baseline` of `[objective.reinforce]`; names are stored in model folders."""


class RewardBaseline(nn.Module, ABC):
    """The expected reward of a translation that is sampled from the model, at each of its positions.

    It must not depend on the token at the position or on later ones; then it changes the variance of REINFORCE, and not
    the mean.
    """

    component: ClassVar[type[PolicyBaselineOptions]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, options: Any, readout: int) -> None:
        """Create a baseline from its options, for readouts of size `readout`."""
        super().__init__()

    @abstractmethod
    def forward(
        self, readout: Float[Tensor, "N I R"], greedy_rewards: Float[Tensor, "N"] | None
    ) -> Float[Tensor, "N I"]:
        """Return the expected rewards, in fp32 or wider.

        Args:
            readout: Readouts that the tokens are predicted from.
            greedy_rewards: Rewards of the greedy translations, if `component.uses_greedy`.
        """

    def loss(
        self, expected: Float[Tensor, "N I"], rewards: Float[Tensor, "N"], mask: Bool[Tensor, "N I"]
    ) -> Float[Tensor, ""]:
        """Return the loss to train the baseline with, summed over the positions where `mask` is True.

        Args:
            expected: From `forward`.
            rewards: The actual rewards.
            mask: True at sampled tokens.
        """
        return expected.new_zeros(())

    def update(self, mean: Float[Tensor, ""]) -> None:
        """Update the baseline after a training update with its mean reward."""


@implements(AverageRewardOptions)
class AverageReward(RewardBaseline):
    """A moving average over updates: (1 - d) sum_k d^(n - k) r_k / (1 - d^n) for mean rewards r_1 .. r_n, or 0 before.

    The divisor, as in Adam, makes it a mean from the first update on. Both sums are parameters without a gradient, so
    that checkpoints include them.
    """

    def __init__(self, options: AverageRewardOptions, readout: int) -> None:
        super().__init__(options, readout)
        self.decay = options.decay
        self.total = parameter(0.0).requires_grad_(False)
        self.weight = parameter(0.0).requires_grad_(False)

    def forward(
        self, readout: Float[Tensor, "N I R"], greedy_rewards: Float[Tensor, "N"] | None
    ) -> Float[Tensor, "N I"]:
        # The weight is 0, or at least 1 - d; without updates the total is 0.
        mean = self.total / self.weight.clamp_min(1e-6)
        return at_least_fp32(mean).expand(readout.shape[:2])  # [N, I], one value for all positions

    def update(self, mean: Float[Tensor, ""]) -> None:
        # In place: the parameters have no gradient, so that no optimiser updates them.
        self.total.lerp_(mean.to(self.total.dtype), 1.0 - self.decay)
        self.weight.lerp_(torch.ones_like(self.weight), 1.0 - self.decay)


@implements(LearnedRewardOptions)
class LearnedReward(RewardBaseline):
    """w^T t_i + b of the readout t_i that token i is predicted from, learned by least squares (Ranzato et al. 2016).

    The readout depends on the tokens before i only. The model gets no gradient.
    """

    def __init__(self, options: LearnedRewardOptions, readout: int) -> None:
        super().__init__(options, readout)
        self.linear = Linear(readout, 1, role=0.0)

    def forward(
        self, readout: Float[Tensor, "N I R"], greedy_rewards: Float[Tensor, "N"] | None
    ) -> Float[Tensor, "N I"]:
        return at_least_fp32(self.linear(readout.detach())).squeeze(-1)  # [N, I, 1] -> [N, I]

    def loss(
        self, expected: Float[Tensor, "N I"], rewards: Float[Tensor, "N"], mask: Bool[Tensor, "N I"]
    ) -> Float[Tensor, ""]:
        return ((expected - rewards[:, None]).square() * mask).sum()


@implements(SelfCriticalOptions)
class GreedyReward(RewardBaseline):
    """The reward of the greedy translation (Rennie et al. 2017)."""

    def forward(
        self, readout: Float[Tensor, "N I R"], greedy_rewards: Float[Tensor, "N"] | None
    ) -> Float[Tensor, "N I"]:
        assert greedy_rewards is not None, "the objective has no greedy translations"
        return at_least_fp32(greedy_rewards)[:, None].expand(readout.shape[:2])


REWARD_BASELINES: Implementations[type[RewardBaseline]] = Implementations(sequence.POLICY_BASELINES)
"""Class by `type` of `[objective.sequence.baseline]`; names are stored in model folders."""
