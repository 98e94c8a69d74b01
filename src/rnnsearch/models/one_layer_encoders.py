"""Encoders of one layer; `stacked_encoder.py` and `pyramid.py` are made of them."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rnnsearch.config import DropoutConfig
from rnnsearch.config.encoders import BidirectionalOptions, UnidirectionalOptions
from rnnsearch.models.cells import CELLS
from rnnsearch.models.draws import Draws, state_mask
from rnnsearch.models.encoder import Encoder, MakeCell, turned
from rnnsearch.models.memory import Encoded, StateShape


class Unidirectional(Encoder):
    """h_j = f(x_j, h_{j-1}), left to right; the summary is h_Tx (Cho et al. 2014, section 2).

    With `reverse` the words are read from last to first (Sutskever et al. 2014), and the annotations put back in order.
    """

    name = "unidirectional"

    def __init__(
        self,
        make_cell: MakeCell,
        embedding: int,
        size: int,
        reverse: bool = False,
        dropout: DropoutConfig | None = None,
    ) -> None:
        super().__init__()
        self.forward_cell = make_cell(embedding, size)
        self.annotation_size = self.summary_size = size
        self.shapes = (StateShape(self.forward_cell.state, size),)
        self.reverse = reverse
        self.state_dropout = 0.0 if dropout is None else dropout.state

    @classmethod
    def make(
        cls, options: UnidirectionalOptions, embedding: int, dropout: DropoutConfig | None = None
    ) -> Unidirectional:
        return cls(CELLS[options.cell], embedding, options.size, options.reverse, dropout)

    def forward(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: Draws | None = None) -> Encoded:
        read = turned(x, mask) if self.reverse else x
        keep = state_mask(self.forward_cell.size, x, self.state_dropout, draws)
        annotations, last = self.forward_cell.sequence(read, mask, keep=keep)
        return Encoded(turned(annotations, mask) if self.reverse else annotations, mask, last.h, (last,))


class Bidirectional(Encoder):
    """h_j = [forward h_j; backward h_j] (Bahdanau et al., eq. 7); the summary is the backward h_1."""

    name = "bidirectional"

    def __init__(self, make_cell: MakeCell, embedding: int, size: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__()
        self.forward_cell = make_cell(embedding, size)
        self.backward_cell = make_cell(embedding, size)
        self.annotation_size = 2 * size
        self.summary_size = size
        self.shapes = (StateShape(self.forward_cell.state, 2 * size),)
        self.state_dropout = 0.0 if dropout is None else dropout.state

    @classmethod
    def make(cls, options: BidirectionalOptions, embedding: int, dropout: DropoutConfig | None = None) -> Bidirectional:
        return cls(CELLS[options.cell], embedding, options.size, dropout)

    def forward(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: Draws | None = None) -> Encoded:
        keep = state_mask(self.forward_cell.size, x, self.state_dropout, draws)
        rightward, last = self.forward_cell.sequence(x, mask, keep=keep)
        keep = state_mask(self.backward_cell.size, x, self.state_dropout, draws)
        leftward, first = self.backward_cell.sequence(x, mask, backward=True, keep=keep)
        both = type(last)(*(torch.cat(pair, dim=-1) for pair in zip(last, first, strict=True)))
        return Encoded(torch.cat([rightward, leftward], dim=-1), mask, first.h, (both,))
