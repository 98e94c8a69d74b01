"""Minimum risk training: the probabilities of generated translations follow their rewards.

It computes weights per token without gradients and minimises sum weight * -log p(token), whose gradient is that of the
expectation (see the class). Tests: tests/objectives/sequence/test_policy_gradient.py.

Axes: B sentences, K hypotheses per sentence, N = B * K, I target positions.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rnnsearch.config.registry import implements
from rnnsearch.config.sequence import MinimumRiskOptions
from rnnsearch.data.batches import Batch
from rnnsearch.models.translation_model import Memories, TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence.hypotheses import (
    Hypotheses,
    draw_n_best,
    draw_samples,
    forced_log_probs,
    group_by_length,
    unroll_hypotheses,
    weighted_nll,
)
from rnnsearch.objectives.sequence.objective import Generation, RewardObjective, reward_statistics
from rnnsearch.text.vocabulary import PAD


@implements(MinimumRiskOptions)
class MinimumRisk(RewardObjective):
    """Minimum risk training (Shen et al. 2016, eq. 10 to 13).

        L = sum_y Q(y) D(y),    Q(y) = p(y | x)^alpha / sum_y' p(y' | x)^alpha

    over the distinct translations y of a set that includes the reference, with the risk D = 1 - reward. The gradient is
    sum_y alpha Q(y) (D(y) - L) d log p(y | x).
    """

    def __init__(self, options: MinimumRiskOptions, likelihood: Likelihood, generation: Generation) -> None:
        super().__init__(options, likelihood, generation)
        self.alpha = options.alpha

    def sequence_loss(self, model: TranslationModel, batch: Batch, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
        hypotheses = with_references(self._draw(model, batch, seed), batch)
        rewards = self.start_rewards(hypotheses, batch)
        memories = model.encode(batch.sources)
        hypotheses = self._with_reference_log_probs(model, hypotheses, memories)
        in_set = distinct_rows(hypotheses, batch.sentences)
        groups = group_by_length(without_rows(hypotheses, ~in_set.flatten()), batch.sentences)
        readouts = [unroll_hypotheses(model, group.hypotheses, memories).readout for group in groups]

        risks = 1.0 - torch.from_numpy(rewards()).to(model.device).view(batch.sentences, -1)  # [B, K]
        log_probs = hypotheses.log_probs.double().sum(1).view_as(risks)
        weights = risk_weights(log_probs, risks, in_set, self.alpha).flatten()  # [N]
        losses = []
        for group, readout in zip(groups, readouts, strict=True):
            row_weights = weights[group.rows].to(readout.dtype)
            token_weights = row_weights[:, None].expand(group.hypotheses.ids.shape)
            losses.append(weighted_nll(model, group.hypotheses, readout, token_weights))
        return torch.stack(losses).sum(), reward_statistics(1.0 - risks[:, 1:])

    def _draw(self, model: TranslationModel, batch: Batch, seed: int) -> Hypotheses:
        options: MinimumRiskOptions = self.options
        if options.candidates == "samples":
            return draw_samples(model, batch, options.samples, seed, self.generation.limit)
        return draw_n_best(model, batch, options.samples, self.generation.limit)

    def _with_reference_log_probs(
        self, model: TranslationModel, hypotheses: Hypotheses, memories: Memories
    ) -> Hypotheses:
        """Return the hypotheses with the log-probabilities of the references, which no search has scored."""
        B = len(next(iter(memories.values())).mask)
        K = len(hypotheses.ids) // B
        references = Hypotheses(hypotheses.ids[::K], hypotheses.log_probs[::K])
        log_probs = hypotheses.log_probs.clone()
        log_probs[::K] = forced_log_probs(model, references, memories).to(log_probs.dtype)
        return hypotheses._replace(log_probs=log_probs)


def with_references(hypotheses: Hypotheses, batch: Batch) -> Hypotheses:
    """Return the hypotheses with the reference of each sentence before them."""
    width = max(hypotheses.ids.shape[1], batch.target.ids.shape[1])

    def pad(values: Tensor, value: int) -> Tensor:
        padding = (0, width - values.shape[1])
        return torch.nn.functional.pad(values, padding, value=value).view(batch.sentences, -1, width)

    reference_ids = pad(batch.target.ids, PAD)
    ids = torch.cat([reference_ids, pad(hypotheses.ids, PAD)], dim=1)
    log_probs = pad(hypotheses.log_probs, 0)
    log_probs = torch.cat([torch.zeros_like(log_probs[:, :1]), log_probs], dim=1)
    return Hypotheses(ids.flatten(0, 1), log_probs.flatten(0, 1))


def without_rows(hypotheses: Hypotheses, rows: Bool[Tensor, "N"]) -> Hypotheses:
    """Return the hypotheses with the selected rows empty."""
    ids = hypotheses.ids.masked_fill(rows[:, None], PAD)
    return Hypotheses(ids, hypotheses.log_probs.masked_fill(rows[:, None], 0.0))


def distinct_rows(hypotheses: Hypotheses, sentences: int) -> Bool[Tensor, "B K"]:
    """Return True for each hypothesis that is not empty and equals no earlier one of its sentence."""
    ids = hypotheses.ids.view(sentences, -1, hypotheses.ids.shape[1])
    equal = (ids[:, :, None] == ids[:, None]).all(-1)  # [B, K, K]
    is_repeated = equal.tril(-1).any(-1)
    return ~is_repeated & (ids != PAD).any(-1)


def risk_weights(
    log_probs: Float[Tensor, "B K"], risks: Float[Tensor, "B K"], in_set: Bool[Tensor, "B K"], alpha: float
) -> Float[Tensor, "B K"]:
    """Return the factor of -log p(y | x) of each translation whose gradient is that of the expected risk.

    The gradient of sum_y Q(y) D(y) is sum_y Q(y) (D(y) - L) alpha d log p(y | x).
    """
    q = (alpha * log_probs).masked_fill(~in_set, -torch.inf).softmax(1)  # [B, K]
    expected_risk = (q * risks).sum(1, keepdim=True)
    return -alpha * q * (risks - expected_risk)
