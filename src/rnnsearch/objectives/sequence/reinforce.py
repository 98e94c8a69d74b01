"""REINFORCE and MIXER: sampled translations become more probable if their reward is higher than a baseline.

Both minimise sum weight * -log p(token), with weights without gradients, in one pass over the samples. The baselines
are in `models/auxiliary.py`. Tests: tests/objectives/sequence/test_reinforce.py.

Axes: B sentences, K samples per sentence, N = B * K, I target positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from rnnsearch.config.registry import implements
from rnnsearch.config.sequence import MixerOptions, PolicyGradientConfig, ReinforceOptions
from rnnsearch.data.batches import Batch
from rnnsearch.models.auxiliary import RewardBaseline
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence.hypotheses import (
    Hypotheses,
    current_scorer,
    reference_words,
    sample_translations,
    search_n_best,
    unroll_hypotheses,
    weighted_nll,
)
from rnnsearch.objectives.sequence.objective import (
    NUM_REWARDS,
    REWARD_SUM,
    Generation,
    RewardObjective,
    reward_statistics,
)
from rnnsearch.utils.tensors import at_least_fp32

BASELINE_SUM = "reward.baseline"
NUM_SAMPLED_TOKENS = "reward.tokens"


@implements(ReinforceOptions)
class SequenceReinforce(RewardObjective):
    """REINFORCE (Williams 1992; Ranzato et al. 2016, section 3.2.1; Rennie et al. 2017).

        L = -1/K sum_k sum_i (r(y_k) - b_i) log p(y_ki | y_k<i, x)

    for K samples y_k of a sentence with rewards r. The mean of its gradient is the gradient of -E r(y) for every
    baseline b_i that does not depend on y_ki or later tokens. The baseline's loss is added.
    """

    def __init__(self, options: PolicyGradientConfig, likelihood: Likelihood, generation: Generation) -> None:
        super().__init__(options, likelihood, generation)
        self.samples = options.samples
        self.uses_greedy = options.baseline.uses_greedy

    def sequence_loss(self, model: TranslationModel, batch: Batch, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
        prefixes = self._prefixes(batch)
        limit = self.generation.limit
        scorer = current_scorer(model)
        hypotheses = sample_translations(scorer, batch, self.samples, seed, limit, prefixes)
        wait_for_rewards = self.start_rewards(hypotheses, batch)
        wait_for_greedy = None
        if self.uses_greedy:
            wait_for_greedy = self.start_rewards(search_n_best(scorer, batch, 1, limit, prefixes), batch)
        readout = unroll_hypotheses(model, hypotheses, model.encode(batch.sources)).readout  # [N, I, R]

        is_sampled = hypotheses.mask & self._follows_prefix(hypotheses, prefixes)  # [N, I]
        like = at_least_fp32(readout)
        rewards = torch.from_numpy(wait_for_rewards()).to(like)  # [N]
        greedy_rewards = None
        if wait_for_greedy is not None:
            greedy_rewards = torch.from_numpy(wait_for_greedy()).to(like).repeat_interleave(self.samples)  # [N]
        baseline = reward_baseline(model)
        expected = baseline(readout, greedy_rewards)  # [N, I]
        # Tokens of a prefix are those of the reference, with the weight of the likelihood.
        weights = torch.where(is_sampled, rewards[:, None] - expected.detach(), 1.0)
        total = weighted_nll(model, hypotheses, readout, weights / self.samples)
        total = total + baseline.loss(expected, rewards, is_sampled) / self.samples
        statistics = {
            **reward_statistics(rewards),
            BASELINE_SUM: (expected.detach().double() * is_sampled).sum(),
            NUM_SAMPLED_TOKENS: is_sampled.sum().double(),
        }
        return total, statistics

    def _prefixes(self, batch: Batch) -> list[list[int]] | None:
        """Return the tokens of the reference that the samples of each sentence continue, or None for no tokens."""
        return None

    def _follows_prefix(self, hypotheses: Hypotheses, prefixes: Sequence[Sequence[int]] | None) -> Bool[Tensor, "N I"]:
        """Return True at positions after the prefix of the sentence."""
        if prefixes is None:
            return torch.ones_like(hypotheses.mask)
        lengths = torch.tensor([len(prefix) for prefix in prefixes], device=hypotheses.ids.device)
        positions = torch.arange(hypotheses.ids.shape[1], device=hypotheses.ids.device)  # [I]
        return positions >= lengths.repeat_interleave(self.samples)[:, None]

    def after_update(self, model: TranslationModel, statistics: Mapping[str, Tensor]) -> None:
        super().after_update(model, statistics)
        if NUM_REWARDS in statistics:
            reward_baseline(model).update(statistics[REWARD_SUM] / statistics[NUM_REWARDS])

    def report(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return mean and variance of the rewards, and the mean of the baseline over all sampled tokens."""
        report = super().report(statistics)
        if NUM_SAMPLED_TOKENS in statistics:
            report["baseline"] = statistics[BASELINE_SUM] / statistics[NUM_SAMPLED_TOKENS]
        return report


@implements(MixerOptions)
class Mixer(SequenceReinforce):
    """MIXER: the likelihood of the first words and REINFORCE for the others (Ranzato et al. 2016, section 3.2.2).

        L = -sum_{i <= s} log p(y*_i | y*_<i, x) - 1/K sum_k sum_{i > s} (r(y_k) - b_i) log p(y_ki | y_k<i, x)

    for a reference y* of T tokens with EOS, s = max(0, T - delta), and samples y_k that begin with its first s tokens.
    delta is 0 in the first `cross_entropy_epochs`, in which the loss is that of the references with dropout and
    smoothing; then it rises by `step` at the beginning of every `epochs_per_step` epochs. (In the paper, T is the
    maximum length of a translation, so that short references are sampled later.)
    """

    def __init__(self, options: MixerOptions, likelihood: Likelihood, generation: Generation) -> None:
        super().__init__(options, likelihood, generation)
        self.delta = mixer_delta(options, 0.0)
        """Number of tokens at the end of a reference that are sampled."""
        self._set_likelihood_weight()

    def before_update(self, update: int, epoch: float) -> None:
        super().before_update(update, epoch)
        self.delta = mixer_delta(self.options, epoch)
        self._set_likelihood_weight()

    def _set_likelihood_weight(self) -> None:
        self.likelihood_weight = self.options.likelihood + (self.delta == 0)

    def sequence_loss(self, model: TranslationModel, batch: Batch, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
        if self.delta == 0:
            return torch.zeros((), device=model.device), {}  # the likelihood has weight 1
        return super().sequence_loss(model, batch, seed)

    def _prefixes(self, batch: Batch) -> list[list[int]]:
        # EOS is one of the T tokens, and never in a prefix.
        return [words[: max(0, len(words) + 1 - self.delta)] for words in reference_words(batch)]


def mixer_delta(options: MixerOptions, epoch: float) -> int:
    """Return the number of tokens at the end of references that are sampled after `epoch` epochs."""
    if epoch < options.cross_entropy_epochs:
        return 0
    return options.step * (1 + math.floor((epoch - options.cross_entropy_epochs) / options.epochs_per_step))


def reward_baseline(model: TranslationModel) -> RewardBaseline:
    """Return the baseline of a model that is trained by REINFORCE."""
    assert model.auxiliary is not None and model.auxiliary.reward_baseline is not None
    return model.auxiliary.reward_baseline
