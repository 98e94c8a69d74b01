"""Three sentence pairs, a forward pass, and its attention weights."""

from collections.abc import Callable
from typing import Any

from rnnsearch.data.batches import Batch
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood

SOURCE = [[5, 6, 7, 4], [7, 5], [6]]
TARGET = [[4, 5], [6, 7, 5, 4], [8, 4]]


def passed(model: TranslationModel, batch: Batch) -> Any:
    """Return the forward pass of maximum likelihood."""
    return Likelihood().loss_and_pass(model, batch, None)[1]


def real_weights(made: Any, row: int) -> Any:
    """Return alpha [I, J] of one sentence without padding."""
    height, width = int(made.batch.target.mask[row].sum()), int(made.batch.source.mask[row].sum())
    return made.decoder_outputs.reading.alpha[row, :height, :width].detach().numpy()


def again(work: Callable[[], None], _: object) -> Callable[[], None]:
    """Run the work and return it as its own recording, like a CUDA graph on a machine without a GPU."""
    work()
    return work
