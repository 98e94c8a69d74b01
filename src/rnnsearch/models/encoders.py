"""Encoders: source words to annotations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.models.cells import Cell
from rnnsearch.models.initialise import Init
from rnnsearch.models.memory import Encoded

MakeCell = Callable[[int, int], Cell]
"""A cell of a given inputs' size and size."""


class Encoder(nn.Module, ABC):
    """An encoder of embedded words. `annotation_size` is H, `summary_size` that of `Encoded.summary`."""

    name: ClassVar[str]
    one_vector: ClassVar[bool]
    """Whether the summary has read the whole sentence, as a decoder without attention needs."""
    annotation_size: int
    summary_size: int

    @abstractmethod
    def initialise(self, init: Init) -> None:
        """Draw the parameters."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"]) -> Encoded:
        """The annotations of embedded source words x."""


class Unidirectional(Encoder):
    """h_j = f(x_j, h_{j-1}), left to right; the summary is h_Tx (Cho et al. 2014, section 2)."""

    name = "unidirectional"
    one_vector = True

    def __init__(self, make_cell: MakeCell, embedding: int, size: int) -> None:
        super().__init__()
        self.forward_cell = make_cell(embedding, size)
        self.annotation_size = self.summary_size = size

    def initialise(self, init: Init) -> None:
        self.forward_cell.initialise(init)

    def forward(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"]) -> Encoded:
        annotations, last = self.forward_cell.sequence(x, mask)
        return Encoded(annotations, mask, last.h, (last,))


class Bidirectional(Encoder):
    """h_j = [forward h_j; backward h_j] (Bahdanau et al., eq. 7); the summary is the backward h_1."""

    name = "bidirectional"
    one_vector = False

    def __init__(self, make_cell: MakeCell, embedding: int, size: int) -> None:
        super().__init__()
        self.forward_cell = make_cell(embedding, size)
        self.backward_cell = make_cell(embedding, size)
        self.annotation_size = 2 * size
        self.summary_size = size

    def initialise(self, init: Init) -> None:
        self.forward_cell.initialise(init)
        self.backward_cell.initialise(init)

    def forward(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"]) -> Encoded:
        rightward, last = self.forward_cell.sequence(x, mask)
        leftward, first = self.backward_cell.sequence(x, mask, backward=True)
        both = type(last)(*(torch.cat(pair, dim=-1) for pair in zip(last, first, strict=True)))
        return Encoded(torch.cat([rightward, leftward], dim=-1), mask, first.h, (both,))


ENCODERS: dict[str, type[Encoder]] = {c.name: c for c in (Bidirectional, Unidirectional)}
