"""Three pairs of sentences, and what penalties read of a forward pass."""

from typing import Any

from rnnsearch.data.batches import Batch
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import likelihood

SOURCE = [[5, 6, 7, 4], [7, 5], [6]]
TARGET = [[4, 5], [6, 7, 5, 4], [8, 4]]


def passed(model: TranslationModel, batch: Batch) -> Any:
    """A pass of plain likelihood."""
    return likelihood().passed(model, batch, None)[1]


def real_weights(made: Any, row: int) -> Any:
    """alpha [I, J] of one sentence, without padding."""
    height, width = int(made.batch.target.mask[row].sum()), int(made.batch.source.mask[row].sum())
    return made.unrolled.reading.alpha[row, :height, :width].detach().numpy()
