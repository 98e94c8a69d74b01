"""Bridges: from the encoder's last states to the first states of a decoder's layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from rnnsearch.config import cells
from rnnsearch.config.cells import (
    BridgeOptions,
    CopyOptions,
    LearnedOptions,
    LearnedTopOptions,
    RectifiedOptions,
    ZeroOptions,
)
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import CellState, Memory, StateShape

Shapes = tuple[StateShape, ...]
"""The state's kind and size of each layer, bottom first."""


class Bridge(nn.Module, ABC):
    """What the layers of a decoder start from, given `Encoded.finals`."""

    component: ClassVar[type[BridgeOptions]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, encoder: Shapes, decoder: Shapes) -> None:
        super().__init__()
        self.decoder = decoder

    @abstractmethod
    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        """The first state of each decoder layer, bottom first, one row a sentence."""


@implements(ZeroOptions)
class Zero(Bridge):
    """All first states are zero: only attention tells the decoder of the source."""

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        B = memory.mask.shape[0]
        return tuple(kind(*(memory.summary.new_zeros(B, size) for _ in kind._fields)) for kind, size in self.decoder)


@implements(CopyOptions)
class Copy(Bridge):
    """Layer l starts from the last state of the encoder's layer l, memory cells too (Sutskever et al. 2014,
    section 2; Luong et al. 2015, section 2)."""

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        return memory.finals


@implements(LearnedOptions)
class Learned(Bridge):
    """s^l_0 = tanh(W_l f + b_l), f the last state of an encoder layer (Bahdanau et al., appendix A.2.2, by layer).

    A state's h and the c of a cell with a memory count side by side, in f and in s^l_0. The tops are paired, then layer
    by layer downwards; decoder layers below the encoder's bottom read that bottom, encoder layers below the decoder's
    bottom are not read.
    """

    def __init__(self, encoder: Shapes, decoder: Shapes) -> None:
        super().__init__(encoder, decoder)
        self.encoder_layers = self.paired_layers(len(encoder), len(decoder))
        self.layers = nn.ModuleList(
            Linear(encoder[e].total_size, shape.total_size)
            for e, shape in zip(self.encoder_layers, decoder, strict=True)
        )
        """W_l and b_l."""

    @staticmethod
    def paired_layers(encoder: int, decoder: int) -> tuple[int, ...]:
        """The encoder layer (from 0) that each decoder layer reads."""
        return tuple(max(0, encoder - decoder + l) for l in range(decoder))

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        first: list[CellState] = []
        for e, layer, (kind, _) in zip(self.encoder_layers, self.layers, self.decoder, strict=True):
            parts: Tensor = torch.tanh(layer(torch.cat(tuple(memory.finals[e]), dim=-1)))
            first.append(kind(*parts.chunk(len(kind._fields), dim=-1)))
        return tuple(first)


@implements(LearnedTopOptions)
class LearnedTop(Learned):
    """s^l_0 = tanh(W_l f + b_l), f the last state of the encoder's top layer for all l (JoeyNMT's `bridge`, where W_l
    and b_l are the same for all)."""

    @staticmethod
    def read(encoder: int, decoder: int) -> tuple[int, ...]:
        return (encoder - 1,) * decoder


@implements(RectifiedOptions)
class Rectified(Bridge):
    """[s^1_0; ...; s^L_0] = max(0, W_h [h^1; ...; h^L] + b_h), h^l the last states of the encoder's layers; and the
    memory cells likewise from theirs, by W_c and b_c (OpenNMT-py's `bridge`), or from h^l of an encoder
    without."""

    def __init__(self, encoder: Shapes, decoder: Shapes) -> None:
        super().__init__(encoder, decoder)
        read, made = (sum(shape.size for shape in shapes) for shapes in (encoder, decoder))
        self.layers = nn.ModuleList(Linear(read, made) for _ in decoder[0].state_type._fields)
        """W_h and b_h, W_c and b_c."""

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        sizes, made = [size for _, size in self.decoder], []
        for part, layer in zip(self.decoder[0].state_type._fields, self.layers, strict=True):
            read = torch.cat([getattr(final, part, final.h) for final in memory.finals], dim=-1)
            made.append(torch.relu(layer(read)).split(sizes, dim=-1))
        return tuple(kind(*own) for (kind, _), own in zip(self.decoder, zip(*made, strict=True), strict=True))


BRIDGES: Implementations[type[Bridge]] = Implementations(cells.BRIDGES)
