"""Actor-critic training: a critic predicts the reward of each possible next token (Bahdanau et al. 2017).

The networks are in `models/critics.py`. Tests: tests/objectives/sequence/test_actor_critic.py.

Axes: B sentences, K hypotheses per sentence, N = B * K, I target positions, M tokens of all hypotheses, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rnnsearch.config.registry import implements
from rnnsearch.config.sequence import ActorCriticOptions
from rnnsearch.data.batches import Batch
from rnnsearch.models.critics import actor_critic_networks, interpolate
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.sequence.hypotheses import (
    Hypotheses,
    current_scorer,
    reference_words,
    sample_translations,
    unroll_hypotheses,
    without_special_tokens,
)
from rnnsearch.objectives.sequence.objective import CriticObjective, critic_statistics, reward_statistics
from rnnsearch.objectives.sequence.rewards import Rewards
from rnnsearch.utils.tensors import at_least_fp32


@implements(ActorCriticOptions)
class ActorCritic(CriticObjective):
    """Actor-critic training for sequence prediction (Bahdanau et al. 2017, algorithm 1).

        actor:   - sum_t sum_a p(a | y_<t, x) Q(a; y_<t),  with a gradient in p only
        critic:  sum_t (Q(y_t; y_<t) - q_t)^2 + lambda_C sum_t sum_a (Q(a; y_<t) - mean_b Q(b; y_<t))^2
        targets: q_t = r_t + sum_a p'(a | y_<=t, x) Q'(a; y_<=t),  without the sum after the last token

    The translations y are sampled from the delayed actor p'; Q' is the target critic. Both copies follow p and Q by
    interpolation after each update. In the first update they equal p and Q, which a new run may have loaded.
    """

    @property
    def _is_first(self) -> bool:
        return self.update <= 1

    def sequence_loss(self, model: TranslationModel, batch: Batch, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
        networks = actor_critic_networks(model)
        delayed_actor = model if self._is_first else networks.delayed_actor
        target_critic = networks.critic if self._is_first else networks.target_critic

        scorer = current_scorer(delayed_actor)
        hypotheses = sample_translations(scorer, batch, self.options.samples, seed, self.generation.limit)
        token_rewards = self.start_token_rewards(hypotheses, batch)
        positions = hypotheses.positions()  # [M]
        ids = hypotheses.ids.flatten().index_select(0, positions)
        with torch.no_grad():
            next_probs = token_probs(token_logits(delayed_actor, hypotheses, batch, positions))  # [M, V]
            next_values = target_critic(batch.target, hypotheses.previous, positions)
            expected = (next_probs * next_values).sum(1)  # [M]
        values = networks.critic(batch.target, hypotheses.previous, positions)  # [M, V]
        rewards = torch.tensor(token_rewards(), dtype=torch.float64, device=ids.device)  # [M]
        targets = rewards.to(expected) + next_of(expected, hypotheses)
        critic_loss = critic_losses(values, ids, targets, self.options.lambda_c)
        total = critic_loss
        if self.trains_actor:
            total = total + actor_losses(token_logits(model, hypotheses, batch, positions), values.detach())
        statistics = {
            **critic_statistics(critic_loss, len(ids)),
            **reward_statistics(sums_per_translation(rewards, hypotheses)),
        }
        return total / self.options.samples, statistics

    def start_token_rewards(self, hypotheses: Hypotheses, batch: Batch) -> Callable[[], list[float]]:
        """Start to score translations, and return a function that waits for the reward r_t of each token [M].

        The rewards of a translation's tokens sum to its reward.
        """
        lengths = hypotheses.mask.sum(1).tolist()  # with EOS
        if not self.options.shaping:
            rewards = self.start_rewards(hypotheses, batch)
            return lambda: final_rewards(rewards(), lengths)
        words = hypotheses.words()
        references = reference_words(batch)
        repeated = [references[row // self.options.samples] for row in range(len(words))]
        prefixes = self.reward.start_prefixes(words, repeated)
        return lambda: shaped_rewards(prefixes(), lengths)

    def after_update(self, model: TranslationModel, statistics: Mapping[str, Tensor]) -> None:
        super().after_update(model, statistics)
        networks = actor_critic_networks(model)
        interpolate(networks.delayed_actor, model, 1.0 if self._is_first else self.options.gamma_theta)
        interpolate(networks.target_critic, networks.critic, 1.0 if self._is_first else self.options.gamma_phi)


def token_logits(
    model: TranslationModel, hypotheses: Hypotheses, batch: Batch, positions: Int[Tensor, "M"]
) -> Float[Tensor, "M V"]:
    """Return the scores whose softmax is p(a | y_<t, x), for every token a at positions of given translations."""
    memories = model.encode(batch.sources)
    readout = unroll_hypotheses(model, hypotheses, memories).readout.flatten(0, 1)  # [N * I, R]
    return at_least_fp32(model.output.logits(readout.index_select(0, positions)))


def token_probs(logits: Float[Tensor, "M V"]) -> Float[Tensor, "M V"]:
    """Return p(a | y_<t, x), which is 0 for tokens that are never sampled: their values Q(a) have no target."""
    return without_special_tokens(logits).softmax(1)


def actor_losses(logits: Float[Tensor, "M V"], values: Float[Tensor, "M V"]) -> Float[Tensor, ""]:
    """Return - sum_a p(a) Q(a), summed over tokens; its gradient with respect to a score is - p(a) (Q(a) - V)."""
    with torch.no_grad():
        probs = token_probs(logits)
        expected = (probs * values).sum(1, keepdim=True)  # V = sum_a p(a) Q(a), [M, 1]
        slopes = probs * (expected - values)
    return with_gradient(-expected.sum(), logits, slopes)


def critic_losses(
    values: Float[Tensor, "M V"], ids: Int[Tensor, "M"], targets: Float[Tensor, "M"], lambda_c: float
) -> Float[Tensor, ""]:
    """Return the critic's squared errors plus the weighted variance penalty, summed over tokens."""
    with torch.no_grad():
        errors = values.gather(1, ids[:, None]) - targets[:, None]  # Q(y_t; y_<t) - q_t, [M, 1]
        centred = values - values.mean(1, keepdim=True)
        total = errors.square().sum() + lambda_c * centred.square().sum()
        slopes = centred.mul_(2 * lambda_c).scatter_add_(1, ids[:, None], 2 * errors)
    return with_gradient(total, values, slopes)


def with_gradient(
    value: Float[Tensor, ""], outputs: Float[Tensor, "M V"], slopes: Float[Tensor, "M V"]
) -> Float[Tensor, ""]:
    """Return a value whose gradient with respect to `outputs` is `slopes`.

    Autograd would store and read several tensors of the size of the vocabulary.
    """
    surrogate = torch.dot(slopes.flatten(), outputs.flatten())
    return value + surrogate - surrogate.detach()


def next_of(values: Float[Tensor, "M"], hypotheses: Hypotheses) -> Float[Tensor, "M"]:
    """Return the value of the next token of the same translation for each token; 0 for the last token."""
    rows = hypotheses.mask.nonzero()[:, 0]  # [M], ascending
    is_last = torch.ones_like(rows, dtype=torch.bool)
    is_last[:-1] = rows[1:] != rows[:-1]
    return values.roll(-1).masked_fill(is_last, 0.0)


def sums_per_translation(rewards: Float[Tensor, "M"], hypotheses: Hypotheses) -> Float[Tensor, "N"]:
    """Return the sum of the rewards of each translation's tokens."""
    rows = hypotheses.mask.nonzero()[:, 0]  # [M]
    return rewards.new_zeros(len(hypotheses.ids)).index_add(0, rows, rewards)


def final_rewards(scores: Rewards, lengths: Sequence[int]) -> list[float]:
    """Return the reward of each token: that of the translation for the last one, and 0 for the others."""
    rewards: list[float] = []
    for score, length in zip(scores.tolist(), lengths, strict=True):
        rewards += [*[0.0] * (length - 1), score]
    return rewards


def shaped_rewards(scores: Sequence[Rewards], lengths: Sequence[int]) -> list[float]:
    """Return r_t = R(y_1..y_t) - R(y_1..y_{t-1}) of each token, so that they sum to the reward of the translation.

    Args:
        scores: For each translation, R of its prefixes with 0 to n words.
        lengths: For each translation, its number of tokens: n, or n + 1 with EOS, which does not change the text.
    """
    rewards: list[float] = []
    for prefixes, length in zip(scores, lengths, strict=True):
        after = [*prefixes[1:].tolist(), float(prefixes[-1])][:length]
        # The reward before the first token counts as 0, so that the sum is exactly R.
        before = [0.0, *after[:-1]]
        rewards += [new - old for new, old in zip(after, before, strict=True)]
    return rewards
