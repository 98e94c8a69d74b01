"""What is minimised besides the likelihood, computed from the same forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from rnnsearch.data.batches import Batch
from rnnsearch.models.memory import Memory
from rnnsearch.models.translation_model import Memories, TranslationModel, Unrolled, only
from rnnsearch.tensors import at_least_fp32, without_last


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
        return only(self.memories)

    def weights(self) -> Tensor:
        """alpha [B, I, J] over annotations in fp32 at least, zero on padding of either side: what gradients reach
        attention through. Of hard attention it is the distribution that was drawn from."""
        alpha = self.unrolled.reading.weights
        assert alpha is not None, "a penalty on attention needs a decoder that attends"
        real = self.batch.target.mask[:, :, None] & self.memory.mask[:, None, :]
        return at_least_fp32(alpha) * real

    def words(self) -> Tensor:
        """[B, J], the annotations of any source symbol but the last, which is EOS."""
        memory, words = self.memory, without_last(self.batch.source.mask)
        if memory.origin is None:
            return words
        behind = memory.origin.on_annotations(words[:, :, None].double(), memory.mask.shape[1])
        return behind[:, :, 0] > 0

    def source_weights(self) -> Tensor:
        """The same over source symbols, where an encoder has fewer annotations than symbols."""
        return self.memory.on_source(self.weights())


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
