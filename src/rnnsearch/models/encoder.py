"""The encoder contract: embedded source words to annotations, and to the states that a bridge reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.config import DropoutConfig
from rnnsearch.models.cell import Cell
from rnnsearch.models.draws import Draws
from rnnsearch.models.memory import Encoded, StateShape

MakeCell = Callable[[int | None, int], Cell]
"""A cell of a given inputs' size (None: without inputs) and size."""


class Encoder(nn.Module, ABC):
    """An encoder of embedded words. `annotation_size` is H, `summary_size` that of `Encoded.summary`."""

    name: ClassVar[str]
    annotation_size: int
    summary_size: int
    shapes: tuple[StateShape, ...]
    """The shapes of `Encoded.finals`, bottom layer first: what a bridge reads."""

    @classmethod
    @abstractmethod
    def make(cls, options: Any, embedding: int, dropout: DropoutConfig | None = None) -> Encoder:
        """The encoder of its own options over embedded words of `embedding` numbers."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: Draws | None = None) -> Encoded:
        """The annotations of embedded source words x. With `draws` dropout applies, as in training."""


def turned(x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"]) -> Float[Tensor, "B J E"]:
    """Each sentence's words from last to first, its end symbol last all the same, padding where it is
    (Sutskever et al. 2014, section 3.3). Done twice it is undone."""
    last = mask.sum(1, keepdim=True) - 1
    positions = torch.arange(x.shape[1], device=x.device)[None, :]
    order = torch.where(positions < last, last - 1 - positions, positions)
    return x.gather(1, order[:, :, None].expand_as(x))
