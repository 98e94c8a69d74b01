"""Minimum risk training: the probabilities of generated translations follow their rewards.

It computes weights per token without gradients and minimises sum weight * -log p(token), whose gradient is that of the
expectation (see the class). Tests: tests/objectives/sequence/test_policy_gradient.py.

Axes: B sentences, K hypotheses per sentence, N = B * K, I target positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from rnnsearch.config.registry import implements
from rnnsearch.config.sequence import MinimumRiskOptions
from rnnsearch.data.batches import Batch
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence.hypotheses import (
    Hypotheses,
    current_scorer,
    forced_log_probs,
    group_by_length,
    sample_translations,
    search_n_best,
    unroll_hypotheses,
    unscored,
    weighted_nll,
)
from rnnsearch.objectives.sequence.objective import REFERENCE_NLL, Generation, RewardObjective, reward_statistics
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
        memories = model.encode(batch.sources)
        references = unscored(batch.target.ids)
        references = references._replace(log_probs=forced_log_probs(model, references, memories))
        hypotheses = join_per_sentence(references, self._generate(model, batch, seed), batch.sentences)
        rewards = self.start_rewards(hypotheses, batch)
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
        statistics = reward_statistics(1.0 - risks[:, 1:])
        return torch.stack(losses).sum(), {**statistics, REFERENCE_NLL: -references.log_probs.sum()}

    def _generate(self, model: TranslationModel, batch: Batch, seed: int) -> Hypotheses:
        options: MinimumRiskOptions = self.options
        scorer = current_scorer(model)
        if options.candidates == "samples":
            return sample_translations(scorer, batch, options.samples, seed, self.generation.limit)
        return search_n_best(scorer, batch, options.samples, self.generation.limit)


def join_per_sentence(first: Hypotheses, second: Hypotheses, sentences: int) -> Hypotheses:
    """Return for each sentence its hypotheses in `first`, followed by those in `second`."""
    width = max(first.ids.shape[1], second.ids.shape[1])

    def join(one: Tensor, other: Tensor, padding: int) -> Tensor:
        padded = [F.pad(values, (0, width - values.shape[1]), value=padding) for values in (one, other.to(one.dtype))]
        return torch.cat([values.view(sentences, -1, width) for values in padded], dim=1).flatten(0, 1)

    return Hypotheses(join(first.ids, second.ids, PAD), join(first.log_probs, second.log_probs, 0))


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
