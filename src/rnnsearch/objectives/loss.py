"""What every objective is, and what it returns. The training loop knows nothing else of objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from rnnsearch.data.batches import Batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.memory import Memory
from rnnsearch.models.translation_model import Memories, TranslationModel, Unrolled, only_memory
from rnnsearch.utils.tensors import at_least_fp32, without_last

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
    def __call__(self, model: Model, batch: Batch, rng: BatchRng | None) -> Loss:
        """The loss of a batch; nothing is random without `draws`."""

    def after_update(self, model: Model, parts: Mapping[str, Tensor]) -> None:
        """What is learned from an update as a whole, besides by its gradients: called once an update, without
        gradients, with the parts summed over all its batches, in all processes."""


# What is minimised besides the likelihood, computed from the same forward pass.


class Pass(NamedTuple):
    """One teacher-forced pass over a batch.

    nll: [B, I], -log p(y_i) of each target symbol, 0 on padding; without a gradient.
    """

    model: TranslationModel
    batch: Batch
    memories: Memories
    unrolled: Unrolled
    nll: Tensor

    @property
    def memory(self) -> Memory:
        """Of the one source."""
        return only_memory(self.memories)

    def weights(self) -> Tensor:
        """alpha [B, I, J] over annotations in fp32 at least, zero on padding of either side: what gradients reach
        attention through. Of hard attention it is the distribution that was drawn from."""
        alpha = self.unrolled.reading.soft_alpha
        assert alpha is not None, "a penalty on attention needs a decoder that attends"
        real = self.batch.target.mask[:, :, None] & self.memory.mask[:, None, :]
        return at_least_fp32(alpha) * real

    def words(self) -> Tensor:
        """[B, J], the annotations of any source symbol but the last, which is EOS."""
        memory, words = self.memory, without_last(self.batch.source.mask)
        if memory.origin is None:
            return words
        behind = memory.origin.mean_per_annotation(words[:, :, None].double(), memory.mask.shape[1])
        return behind[:, :, 0] > 0

    def source_weights(self) -> Tensor:
        """The same over source symbols, where an encoder has fewer annotations than symbols."""
        return self.memory.to_source(self.weights())


class Penalty(ABC):
    """A term of the loss. A call changes nothing; what it learns from a whole update, `after_update` does."""

    @abstractmethod
    def __call__(self, made: Pass) -> Tensor:
        """Its value summed over the batch, differentiable."""

    def parts(self, made: Pass) -> dict[str, Tensor]:
        """What `after_update` is to be told of a batch (see `Loss.parts`)."""
        return {}

    def after_update(self, model: TranslationModel, parts: Mapping[str, Tensor]) -> None:
        """As `Objective.after_update`."""
