"""Bilingual symmetry: both directions are trained together, with a bonus for attention that agrees.

(Cohn et al. 2016, section 3.4.) `training/tasks.py` creates the objective.

`training/tasks.py` gives it the pair of models and saves each as a model folder. The agreement needs the attention of
both directions over the same tokens, in which rows of one are columns of the other.

Notation: A is the matrix alpha of attention weights from source to target, A' that of the other direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rnnsearch.data.batches import Batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import TranslationPair, direction_tensors
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.loss import ForwardPass, Loss, Objective


@dataclass(frozen=True)
class SymmetricLikelihood(Objective[TranslationPair]):
    """-log p(y|x) - log p(x|y) - weight * tr(A^T A'), with the penalties of each direction.

    The NLL is the mean of both directions.
    """

    weight: float
    """Weight of the agreement of attention."""
    likelihood: Likelihood
    """Objective of each direction."""

    def __call__(self, pair: TranslationPair, batch: Batch, rng: BatchRng | None) -> Loss:
        # Both directions use one sequence of random numbers; their order is part of a run's results.
        onward_loss, onward = self.likelihood.loss_and_pass(pair.onward, batch, rng)
        back_loss, back = self.likelihood.loss_and_pass(pair.back, batch.reversed(), rng)
        total = onward_loss.total + back_loss.total
        # On a dev set the total is the likelihood only, like that of `Likelihood`.
        if torch.is_grad_enabled():
            total = total - self.weight * attention_agreement(onward, back)
        statistics = {f"onward.{name}": value for name, value in onward_loss.statistics.items()}
        statistics |= {f"back.{name}": value for name, value in back_loss.statistics.items()}
        return Loss(total, 0.5 * (onward_loss.nll + back_loss.nll), statistics)

    def after_update(self, pair: TranslationPair, statistics: Mapping[str, Tensor]) -> None:
        self.likelihood.after_update(pair.onward, direction_tensors(statistics, "onward"))
        self.likelihood.after_update(pair.back, direction_tensors(statistics, "back"))


def attention_agreement(onward: ForwardPass, back: ForwardPass) -> Tensor:
    """Return tr(A^T A') = sum_ij alpha_ij alpha'_ji, summed over the batch.

    alpha_ij is the attention of target token i to source token j, alpha'_ji that of source token j to target token i
    in the other direction.
    """
    return (onward.source_attention() * back.source_attention().transpose(1, 2)).sum()
