"""Maximum likelihood of text by itself: -log p(y) of a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rnnsearch.data.batches import Batch
from rnnsearch.models.draws import Draws
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.objectives.contrast import Contrast
from rnnsearch.objectives.likelihood import symbol_losses
from rnnsearch.objectives.loss import Loss, Objective
from rnnsearch.objectives.recorded import recorded


@dataclass(frozen=True)
class NextSymbol(Objective[LanguageModel]):
    """The negative log-likelihood of each symbol given those before it, EOS among them, with label smoothing; with a
    `contrast` that loss of batches that hold noise words."""

    smoothing: float = 0.0
    contrast: Contrast | None = None

    def __call__(self, model: LanguageModel, batch: Batch, draws: Draws | None) -> Loss:
        target = batch.target
        both = recorded(_unrolled, model, [target.previous()], draws), target.ids
        readout, ids = (tensor.flatten(0, 1).index_select(0, target.places) for tensor in both)
        total, each = symbol_losses(model.output, readout, ids, batch, self.smoothing, self.contrast)
        return Loss(total, each.sum())


def _unrolled(model: LanguageModel, tensors: Sequence[Tensor], draws: Draws | None) -> Tensor:
    """The readouts, as `recorded` wants it."""
    (previous,) = tensors
    return model.unroll(previous, draws)
