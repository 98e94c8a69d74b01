"""Maximum likelihood: -log p(y|x) of the reference, teacher-forced (Bahdanau et al., section 4.2)."""

from __future__ import annotations

from rnnsearch.data.batches import Batch
from rnnsearch.models.draws import Draws
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.loss import Loss, Objective


def likelihood(smoothing: float = 0.0) -> Objective:
    """The negative log-likelihood, summed over words and sentences, with label smoothing."""

    def objective(model: TranslationModel, batch: Batch, draws: Draws | None) -> Loss:
        memory = model.encode(batch.source, batch.source_mask, draws)
        unrolled = model.unroll(batch.previous(), memory, draws)
        real = batch.target_mask
        return Loss(*model.output.loss(unrolled.readout[real], batch.target[real], smoothing))

    return objective
