"""Three pairs of sentences, and what penalties read of a forward pass."""

from collections.abc import Callable
from typing import Any

from rnnsearch.data.batches import Batch
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood

SOURCE = [[5, 6, 7, 4], [7, 5], [6]]
TARGET = [[4, 5], [6, 7, 5, 4], [8, 4]]


def passed(model: TranslationModel, batch: Batch) -> Any:
    """A pass of plain likelihood."""
    return Likelihood().loss_and_pass(model, batch, None)[1]


def real_weights(made: Any, row: int) -> Any:
    """alpha [I, J] of one sentence, without padding."""
    height, width = int(made.batch.target.mask[row].sum()), int(made.batch.source.mask[row].sum())
    return made.decoder_outputs.reading.alpha[row, :height, :width].detach().numpy()


def again(work: Callable[[], None], _: object) -> Callable[[], None]:
    """A recording where there is no GPU: the Python that asks for the kernels."""
    work()
    return work
