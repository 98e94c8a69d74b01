"""What every objective is, and what it returns. The training loop knows nothing else of objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from rnnsearch.data.batches import Batch
from rnnsearch.models.draws import Draws

Model = TypeVar("Model", bound=nn.Module)
"""What is trained: any module."""


class Loss(NamedTuple):
    """Sums over a batch; the loop divides the total by the sentences or words of a whole update.

    total: what is minimised, differentiable, summed over the batch's target symbols.
    nll: -log p(y|x) summed over the batch, in nats, without smoothing or penalties.
    parts: what `Objective.after_update` is to be told, by name: sums over the batch, without gradients.
    """

    total: Tensor
    nll: Tensor
    parts: Mapping[str, Tensor] = {}


class Objective(ABC, Generic[Model]):
    """What training minimises. A call changes nothing, so a batch may be split, or done again."""

    @abstractmethod
    def __call__(self, model: Model, batch: Batch, draws: Draws | None) -> Loss:
        """The loss of a batch; nothing is random without `draws`."""

    def after_update(self, model: Model, parts: Mapping[str, Tensor]) -> None:
        """What is learned from an update as a whole, besides by its gradients: called once an update, without
        gradients, with the parts summed over all its batches, in all processes."""
