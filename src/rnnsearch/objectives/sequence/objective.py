"""Base classes of the methods that train on tokens which the model itself generates.

To add a method, declare its options in `config/sequence.py` and implement a subclass of the narrowest class that suits:
`GenerationObjective`, `RewardObjective` if translations are scored, or `CriticObjective`. Losses are sums over
sentences. Tests: tests/objectives/sequence.

Axes: B sentences.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from rnnsearch.config import sequence
from rnnsearch.config.registry import Implementations
from rnnsearch.config.sequence import RewardConfig, SequenceConfig
from rnnsearch.data.batches import Batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.loss import Loss, Objective
from rnnsearch.objectives.sequence.hypotheses import Hypotheses, reference_words
from rnnsearch.objectives.sequence.rewards import REWARDS, Detokenize, Rewards
from rnnsearch.search.options import LengthLimit

NUM_REWARDS = "reward.count"
REWARD_SUM = "reward.sum"
REWARD_SQUARES = "reward.squares"
REFERENCE_NLL = "reference.nll"
"""NLL of the references without dropout, of a method that computes it for its loss."""
CRITIC_LOSS = "critic.loss"
NUM_CRITIC_VALUES = "critic.values"


class Generation(NamedTuple):
    """Properties of the system that generated translations depend on."""

    detokenize: Detokenize
    limit: LengthLimit


class SequenceObjective(Objective[TranslationModel]):
    """A method that trains on tokens which the model generates."""

    component: ClassVar[type[SequenceConfig]]
    """The declaration of the method, set by `@implements`."""

    def __init__(self, options: Any, likelihood: Likelihood, generation: Generation) -> None:
        """Create an objective.

        Args:
            options: Options of `[objective.sequence]`.
            likelihood: Loss of the references.
            generation: Length limit and text of translations.
        """
        self.options = options
        self.likelihood = likelihood
        self.generation = generation
        self.likelihood_weight: float = options.likelihood
        self.update = 0
        """Number of the current update, from 1."""
        self.epoch = 0.0
        """Epochs before the current update."""

    def before_update(self, update: int, epoch: float) -> None:
        self.update = update
        self.epoch = epoch


class GenerationObjective(SequenceObjective):
    """A method whose loss of generated translations is added to `likelihood` times that of the references.

    The method's loss has no dropout, so that translations are scored by the distribution that they were sampled from.
    """

    @abstractmethod
    def sequence_loss(self, model: TranslationModel, batch: Batch, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the method's loss, summed over the sentences, and sums to report (see `reward_statistics`).

        The sums may include REFERENCE_NLL, which is not computed again for reports then.

        Args:
            model: The model.
            batch: The batch.
            seed: Seed of the random numbers of the whole batch, of which this batch may be a part.
        """

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        total, statistics = self.sequence_loss(model, batch, 0 if rng is None else rng.seed)
        nll = statistics.pop(REFERENCE_NLL, None)
        if self.likelihood_weight > 0:
            likelihood = self.likelihood(model, batch, rng)
            total = total + self.likelihood_weight * likelihood.total
            return Loss(total, likelihood.nll, {**likelihood.statistics, **statistics})
        if nll is None:
            with torch.no_grad():
                nll = self.likelihood(model, batch, None).nll
        return Loss(total, nll, statistics)

    def after_update(self, model: TranslationModel, statistics: Mapping[str, Tensor]) -> None:
        if self.likelihood_weight > 0:
            self.likelihood.after_update(model, statistics)


class RewardObjective(GenerationObjective):
    """A method that scores generated translations."""

    def __init__(self, options: RewardConfig, likelihood: Likelihood, generation: Generation) -> None:
        super().__init__(options, likelihood, generation)
        self.reward = REWARDS[options.reward.type](options.reward, generation.detokenize)

    def start_rewards(self, hypotheses: Hypotheses, batch: Batch) -> Callable[[], Rewards]:
        """Start to score K hypotheses per sentence, and return a function that waits for the rewards [N]."""
        words = hypotheses.words()
        references = reference_words(batch)
        K = len(words) // len(references)
        return self.reward.start(words, [references[row // K] for row in range(len(words))])

    def report(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the mean reward and its variance over all generated translations of an update."""
        return reward_report(statistics)

    def close(self) -> None:
        self.reward.close()


class CriticObjective(RewardObjective):
    """A method with a critic. At first, only the critic is trained."""

    def before_update(self, update: int, epoch: float) -> None:
        super().before_update(update, epoch)
        # Nothing moves the actor while only the critic is trained.
        self.likelihood_weight = self.options.likelihood if self.trains_actor else 0.0

    @property
    def trains_actor(self) -> bool:
        """True after the updates that train only the critic."""
        critic_updates: int = self.options.critic_updates
        return max(self.update, 1) > critic_updates

    def report(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return mean and variance of the rewards, and the critic's mean loss per value."""
        return {**super().report(statistics), "critic_loss": statistics[CRITIC_LOSS] / statistics[NUM_CRITIC_VALUES]}


def reward_statistics(rewards: Tensor) -> dict[str, Tensor]:
    """Return the sums that `RewardObjective.report` computes mean and variance of rewards from."""
    rewards = rewards.double()
    return {
        REWARD_SUM: rewards.sum(),
        REWARD_SQUARES: rewards.square().sum(),
        NUM_REWARDS: rewards.new_tensor(float(rewards.numel())),
    }


def reward_report(statistics: Mapping[str, Tensor], means: Mapping[str, str] = {}) -> dict[str, Tensor]:
    """Return the mean and variance of rewards, and the means of other sums over the same translations.

    Args:
        statistics: Sums from `reward_statistics`; without them, the result is empty.
        means: Names of the sums, by the names of their means.
    """
    if NUM_REWARDS not in statistics:
        return {}
    count = statistics[NUM_REWARDS]
    mean = statistics[REWARD_SUM] / count
    variance = statistics[REWARD_SQUARES] / count - mean.square()
    others = {name: statistics[key] / count for name, key in means.items()}
    return {"reward": mean, "reward_variance": variance.clamp_min(0.0), **others}


def critic_statistics(loss: Tensor, count: int) -> dict[str, Tensor]:
    """Return the sums that `CriticObjective.report` computes the mean loss of `count` values from."""
    loss = loss.detach().double()
    return {CRITIC_LOSS: loss, NUM_CRITIC_VALUES: loss.new_tensor(float(count))}


SEQUENCES: Implementations[type[SequenceObjective]] = Implementations(sequence.SEQUENCES)
"""Class by `type` of `[objective.sequence]`; names are stored in model folders."""
