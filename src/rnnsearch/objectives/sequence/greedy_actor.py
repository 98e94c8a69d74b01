"""Trainable greedy decoding: an actor changes the states of a frozen model (Gu, Cho & Li 2017).

The actor is in `models/actor.py`, its critic in `models/critics.py`. Tests:
tests/objectives/sequence/test_greedy_actor.py.

Axes: B sentences, K rollouts per sentence, N = B * K, I target positions, D state, H context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.config.registry import implements
from rnnsearch.config.sequence import GreedyActorOptions
from rnnsearch.data.batches import Batch
from rnnsearch.engine.structs import Array
from rnnsearch.models.critics import state_critic
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.sequence.hypotheses import Hypotheses, unscored, without_special_tokens
from rnnsearch.objectives.sequence.objective import CriticObjective, critic_statistics, reward_statistics
from rnnsearch.search.constraints import max_lengths
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.sampling import normal, stream_keys
from rnnsearch.search.scorer import Sources
from rnnsearch.text.vocabulary import BOS, EOS, PAD
from rnnsearch.utils.tensors import select

Noise = Callable[[int], Tensor]
"""Returns the noise of the actions [N, D] at a target position from 0."""


class Rollouts(NamedTuple):
    """K greedy translations per sentence with the actor."""

    hypotheses: Hypotheses
    inputs: Float[Tensor, "N I D+H"]
    """[s_{i-1} + a_i; c_i] at each position, differentiable in the actor."""


@implements(GreedyActorOptions)
class GreedyActor(CriticObjective):
    """Deterministic policy gradient with critic-aware weights (Gu, Cho & Li 2017, section 3.2).

        actor:  - sum_k w_k C(z_k),  w_k in proportion to exp(-d_k^2 / tau),  with a gradient in z_k only
        critic: (1 / K) sum_k d_k^2
        d_k = e_k - (1 / K) sum_j e_j,  e_k = C(z_k) - R_k

    z_k are the states and contexts of a greedy translation whose reward is R_k, with the actor's actions; the words are
    constants. The first translation of a sentence has no noise, the others have noise in their actions, which shows
    the critic how changes of the states affect the reward. Where the critic is wrong, the actor does not follow it.

    In the paper, d_k is e_k. Rewards vary more between sentences than between translations of one sentence, and such a
    critic learns which sentences are easy; its gradient then leads away from what raises their rewards. Centred errors
    train it for the differences that actions make.
    """

    def sequence_loss(self, model: TranslationModel, batch: Batch, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
        K = self.options.samples + 1
        noise = exploration_noise(batch.sources, K, seed, self.options.sigma, model.decoder.state_size)
        limits = max_lengths(batch.sources, SearchOptions(**self.generation.limit._asdict()))
        rollouts = roll_out(model, batch.sources, K, noise, limits)
        start = self.start_rewards(rollouts.hypotheses, batch)

        inputs = rollouts.inputs.detach().requires_grad_()
        values = state_critic(model)(inputs, rollouts.hypotheses.mask)  # [N]
        rewards = torch.from_numpy(start()).to(values)  # [N]
        errors = (values - rewards).view(-1, K)
        errors = (errors - errors.mean(1, keepdim=True)).square()
        total = errors.sum() / K
        if self.trains_actor:
            weights = torch.softmax(-errors.detach() / self.options.tau, dim=1)  # [B, K]
            [slopes] = torch.autograd.grad((weights * values.view_as(weights)).sum(), inputs, retain_graph=True)
            # The chain rule, without a gradient in the critic; padding has slopes of 0.
            total = total - (slopes * rollouts.inputs).sum()
        statistics = {
            **critic_statistics(errors.sum(), len(values)),
            # Of the translations without noise.
            **reward_statistics(rewards.view(-1, K)[:, 0]),
        }
        return total, statistics


def exploration_noise(sources: Sources, copies: int, seed: int, sigma: float, size: int) -> Noise:
    """Return N(0, sigma^2) noise, which depends on the source, the copy and the seed; 0 for the first copy."""
    keys = stream_keys(sources, copies, seed)
    device = next(iter(sources.values())).ids.device

    def noise(position: int) -> Tensor:
        values = sigma * normal(keys, size, position)  # [N, D]
        values[::copies] = 0.0
        return torch.from_numpy(values).to(device)

    return noise


def roll_out(model: TranslationModel, sources: Sources, copies: int, noise: Noise, limits: Array) -> Rollouts:
    """Return greedy translations with the actor and noise in its actions.

    Args:
        model: A model with an actor.
        sources: B sentences.
        copies: K.
        noise: Noise of the actions.
        limits: Maximum length [B] of each translation, without EOS.
    """
    memories = model.encode(sources)
    rows = torch.arange(len(limits), device=model.device).repeat_interleave(copies)
    state = select(model.start(memories), rows)
    max_length = torch.from_numpy(limits).to(model.device).index_select(0, rows)  # [N]
    y = torch.full_like(rows, BOS)
    is_done = torch.zeros_like(rows, dtype=torch.bool)
    tokens = []
    inputs = []
    for position in range(int(limits.max())):
        readout, state, reading = model.read(y, state, memories, noise(position))
        inputs.append(torch.cat([reading.state, reading.context.to(reading.state)], dim=-1))
        with torch.no_grad():
            y = without_special_tokens(model.output.logits(readout)).argmax(1)
        tokens.append(y.masked_fill(is_done, PAD))
        is_done = is_done | (y == EOS) | (position + 1 >= max_length)
        if is_done.all():
            break
    ids = torch.stack(tokens, dim=1)
    return Rollouts(unscored(ids), torch.stack(inputs, dim=1))
