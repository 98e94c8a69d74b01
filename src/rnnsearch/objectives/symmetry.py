"""Bilingual symmetry: two directions trained together, rewarded where their attention agrees
(Cohn et al. 2016, section 3.4)."""

from __future__ import annotations

import torch

from rnnsearch.data.batches import Batch
from rnnsearch.models.draws import Draws
from rnnsearch.models.translation_pair import TranslationPair
from rnnsearch.objectives.likelihood import Weighted, penalised
from rnnsearch.objectives.loss import Loss, ObjectiveOf
from rnnsearch.objectives.penalty import Pass


def agreement(onward: Pass, back: Pass) -> torch.Tensor:
    """tr(A^T A') = sum_ij alpha_ij alpha'_ji, summed over the batch: alpha_ij is what target symbol i gives source
    symbol j, alpha'_ji what source symbol j gives target symbol i in the other direction."""
    return (onward.source_weights() * back.source_weights().transpose(1, 2)).sum()


def symmetric(weight: float, smoothing: float = 0.0, penalties: Weighted = ()) -> ObjectiveOf[TranslationPair]:
    """-log p(y|x) - log p(x|y) - weight * tr(A^T A'), with each direction's penalties; nll is the directions' mean."""

    def objective(pair: TranslationPair, batch: Batch, draws: Draws | None) -> Loss:
        there, onward = penalised(pair.onward, batch, draws, smoothing, penalties)
        again, back = penalised(pair.back, batch.turned(), draws, smoothing, penalties)
        total = there.total + again.total
        if torch.is_grad_enabled():
            total = total - weight * agreement(onward, back)
        return Loss(total, 0.5 * (there.nll + again.nll))

    return objective
