"""Maximum likelihood of text by itself: -log p(y) of a language model."""

from __future__ import annotations

from dataclasses import dataclass

from rnnsearch.data.batches import Batch
from rnnsearch.models.draws import Draws
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.objectives.contrast import Contrast
from rnnsearch.objectives.likelihood import symbol_losses
from rnnsearch.objectives.loss import Loss, Objective


@dataclass(frozen=True)
class NextSymbol(Objective[LanguageModel]):
    """The negative log-likelihood of each symbol given those before it, EOS among them, with label smoothing; with a
    `contrast` that loss of batches that hold noise words."""

    smoothing: float = 0.0
    contrast: Contrast | None = None

    def __call__(self, model: LanguageModel, batch: Batch, draws: Draws | None) -> Loss:
        target = batch.target
        both = model.unroll(target.previous(), draws), target.ids
        readout, ids = (tensor.flatten(0, 1).index_select(0, target.places) for tensor in both)
        total, each = symbol_losses(model.output, readout, ids, batch, self.smoothing, self.contrast)
        return Loss(total, each.sum())
