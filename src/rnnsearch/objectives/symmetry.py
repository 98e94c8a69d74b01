"""Bilingual symmetry: two directions trained together, rewarded where their attention agrees
(Cohn et al. 2016, section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rnnsearch.data.batches import Batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import TranslationPair, direction_tensors
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.loss import Loss, Objective, Pass


def agreement(onward: Pass, back: Pass) -> Tensor:
    """tr(A^T A') = sum_ij alpha_ij alpha'_ji, summed over the batch: alpha_ij is what target symbol i gives source
    symbol j, alpha'_ji what source symbol j gives target symbol i in the other direction."""
    return (onward.source_weights() * back.source_weights().transpose(1, 2)).sum()


@dataclass(frozen=True)
class Symmetric(Objective[TranslationPair]):
    """-log p(y|x) - log p(x|y) - weight * tr(A^T A'), with each direction's penalties; nll is the directions' mean."""

    weight: float
    each: Likelihood

    def __call__(self, pair: TranslationPair, batch: Batch, rng: BatchRng | None) -> Loss:
        there, onward = self.each.passed(pair.onward, batch, rng)
        again, back = self.each.passed(pair.back, batch.turned(), rng)
        total = there.total + again.total
        if torch.is_grad_enabled():
            total = total - self.weight * agreement(onward, back)
        parts = {f"onward.{n}": part for n, part in there.parts.items()}
        parts |= {f"back.{n}": part for n, part in again.parts.items()}
        return Loss(total, 0.5 * (there.nll + again.nll), parts)

    def after_update(self, pair: TranslationPair, parts: Mapping[str, Tensor]) -> None:
        self.each.after_update(pair.onward, direction_tensors(parts, "onward"))
        self.each.after_update(pair.back, direction_tensors(parts, "back"))
