"""Base classes of objectives and penalties, and the results of a forward pass.

The training loop knows only `Objective` and `Loss`. A `Penalty` is a term of a translation model's loss that
`likelihood.Likelihood` computes from the same `ForwardPass`.

All objectives and penalties of this package derive from these classes; `systems` (`system.py`, `dev_scores.py`,
`dev_set.py`), `training/loop.py` and `training/tasks.py` refer to them. `training/gradients.py` sums `Loss.total`,
`nll` and `statistics` over batches and processes, so they must be sums, not means. Tests: tests/training/test_loop.py,
tests/training/test_distributed.py.

Axes: B sentences, I target positions, J source positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from rnnsearch.data.batches import Batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.memory import Memory
from rnnsearch.models.translation_model import Memories, TranslationModel, Unrolled, only_memory
from rnnsearch.utils.tensors import at_least_fp32

Model = TypeVar("Model", bound=nn.Module)
"""Module that is trained."""


class Loss(NamedTuple):
    """Sums over a batch. The training loop divides the total by the sentences or tokens of a whole update."""

    total: Tensor
    """Value to minimise, differentiable, summed over the target tokens."""
    nll: Tensor
    """-log p(y|x) in nats, without smoothing and penalties."""
    statistics: Mapping[str, Tensor] = {}
    """Sums without gradients by name, which `Objective.after_update` gets for the whole update."""


class Objective(ABC, Generic[Model]):
    """A function (model, batch, rng) -> Loss. A call has no side effects, so a batch may be split or repeated."""

    @abstractmethod
    def __call__(self, model: Model, batch: Batch, rng: BatchRng | None) -> Loss:
        """Return the loss of a batch; without `rng` nothing is random."""

    def before_update(self, update: int, epoch: float) -> None:
        """Prepare for an update; called before its first batch, with its number from 1 and the epochs before it."""

    def report(self, statistics: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return values for the log by name, as scalars on the device, from the statistics of a whole update."""
        return {}

    def after_update(self, model: Model, statistics: Mapping[str, Tensor]) -> None:
        """Update values of the model that are not learned by gradients (such as moving averages).

        Called once per update, with the statistics summed over all batches in all processes.
        """

    def close(self) -> None:
        """End the processes that the objective has started, if any; a later call starts them again."""


class ForwardPass(NamedTuple):
    """A teacher-forced pass of a translation model over a batch."""

    model: TranslationModel
    """The model that is trained."""
    batch: Batch
    memories: Memories
    """Memory of each source stream."""
    decoder_outputs: Unrolled
    """Outputs at all target positions."""
    nll: Tensor
    """[B, I], -log p(y_i) of each target token without a gradient; 0 on padding."""

    @property
    def memory(self) -> Memory:
        """The memory of the only source."""
        return only_memory(self.memories)

    def attention(self) -> Tensor:
        """Return alpha [B, I, J] over annotations in fp32 or wider, differentiable, 0 on padding of both sides.

        For hard attention this is the distribution that positions are sampled from.
        """
        alpha = self.decoder_outputs.reading.soft_alpha
        assert alpha is not None, "a penalty on attention needs a decoder that attends"
        mask = self.batch.target.mask[:, :, None] & self.memory.mask[:, None, :]  # [B, I, J]
        return at_least_fp32(alpha) * mask

    def source_attention(self) -> Tensor:
        """Return `attention` over source tokens, of which some encoders have more than annotations."""
        return self.memory.to_source(self.attention())

    def word_mask(self) -> Tensor:
        """Return a mask [B, J] of the annotations of source tokens other than EOS."""
        words = self.batch.source.word_mask
        if self.memory.origin is None:
            return words
        annotations = self.memory.mask.shape[1]
        # [B, J', 1]: above 0 if an annotation has any word in addition to EOS.
        fraction = self.memory.origin.mean_per_annotation(words[:, :, None].double(), annotations)
        return fraction[:, :, 0] > 0


class Penalty(ABC):
    """A term of the loss of a translation model. A call has no side effects."""

    @abstractmethod
    def __call__(self, forward: ForwardPass) -> Tensor:
        """Return the value summed over the batch, differentiable."""

    def statistics(self, forward: ForwardPass) -> dict[str, Tensor]:
        """Return the sums over a batch that `after_update` needs (see `Loss.statistics`)."""
        return {}

    def after_update(self, model: TranslationModel, statistics: Mapping[str, Tensor]) -> None:
        """Update values of the model like `Objective.after_update`."""
