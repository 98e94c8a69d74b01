"""Maximum likelihood: -log p(y|x) of the reference, teacher-forced (Bahdanau et al., section 4.2), with penalties."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rnnsearch.data.batches import Batch
from rnnsearch.models.draws import Draws
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.loss import Loss, Objective
from rnnsearch.objectives.penalty import Pass, Penalty

Weighted = Sequence[tuple[float, Penalty]]


def likelihood(smoothing: float = 0.0, penalties: Weighted = ()) -> Objective:
    """The negative log-likelihood, summed over words and sentences, with label smoothing and weighted penalties.

    Without gradients (on a dev set) nothing is minimised: the total is then the likelihood's alone.
    """

    def objective(model: TranslationModel, batch: Batch, draws: Draws | None) -> Loss:
        loss, _ = penalised(model, batch, draws, smoothing, penalties)
        return loss

    return objective


def penalised(
    model: TranslationModel, batch: Batch, draws: Draws | None, smoothing: float, penalties: Weighted
) -> tuple[Loss, Pass]:
    """The loss of one teacher-forced pass, its penalties among it, and the pass."""
    source, target = batch.source, batch.target
    memory = model.encode(source.ids, source.mask, draws)
    unrolled = model.unroll(target.previous(), memory, draws)
    real = target.places
    readout, symbols = unrolled.readout.flatten(0, 1).index_select(0, real), target.ids.flatten().index_select(0, real)
    total, each = model.output.losses(readout, symbols, smoothing)
    nll = each.new_zeros(target.ids.numel()).index_copy(0, real, each).view(target.ids.shape)
    done = Pass(model, batch, memory, unrolled, nll)
    if torch.is_grad_enabled():
        for weight, penalty in penalties:
            total = total + weight * penalty(done)
    return Loss(total, each.sum()), done
