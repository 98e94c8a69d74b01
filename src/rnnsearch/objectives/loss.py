"""What every objective returns. The training loop knows nothing else of objectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from torch import Tensor, nn

from rnnsearch.data.batches import Batch
from rnnsearch.models.draws import Draws
from rnnsearch.models.translation_model import TranslationModel

Model = TypeVar("Model", bound=nn.Module)
"""What is trained: a translation model, or two directions of one."""


class Loss(NamedTuple):
    """Sums over a batch; the loop divides them by the sentences or words of a whole update.

    total: what is minimised, differentiable, summed over the batch's target symbols.
    nll: -log p(y|x) summed over the batch, in nats, without smoothing or penalties.
    """

    total: Tensor
    nll: Tensor


ObjectiveOf = Callable[[Model, Batch, Draws | None], Loss]
Objective = ObjectiveOf[TranslationModel]


def weighted(parts: list[tuple[float, Objective]]) -> Objective:
    """The objective whose total is the weighted sum of several; its nll is the first one's."""

    def objective(model: TranslationModel, batch: Batch, draws: Draws | None) -> Loss:
        losses = [(weight, part(model, batch, draws)) for weight, part in parts]
        total = sum((weight * loss.total for weight, loss in losses[1:]), losses[0][0] * losses[0][1].total)
        return Loss(total, losses[0][1].nll)

    return objective
