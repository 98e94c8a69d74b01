"""Bridges: from the encoder's last states to the first states of a decoder's layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import CellState, Memory, StateShape

Shapes = tuple[StateShape, ...]
"""The state's kind and size of each layer, bottom first."""


class Bridge(nn.Module, ABC):
    """What the layers of a decoder start from, given `Encoded.finals`."""

    name: ClassVar[str]

    def __init__(self, encoder: Shapes, decoder: Shapes) -> None:
        super().__init__()
        self.decoder = decoder

    @classmethod
    def unsupported_reason(cls, encoder: Shapes, decoder: Shapes) -> str | None:
        """Why these layers do not fit this bridge, in words that follow "model.decoder.bridge: "; None if they do."""
        return None

    @abstractmethod
    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        """The first state of each decoder layer, bottom first, one row a sentence."""


class Zero(Bridge):
    """All first states are zero: only attention tells the decoder of the source."""

    name = "zero"

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        B = memory.mask.shape[0]
        return tuple(kind(*(memory.summary.new_zeros(B, size) for _ in kind._fields)) for kind, size in self.decoder)


class Copy(Bridge):
    """Layer l starts from the last state of the encoder's layer l, memory cells too (Sutskever et al. 2014,
    section 2; Luong et al. 2015, section 2)."""

    name = "copy"

    @classmethod
    def unsupported_reason(cls, encoder: Shapes, decoder: Shapes) -> str | None:
        if len(encoder) != len(decoder):
            return (
                f'"copy" needs as many encoder layers as decoder layers; got {len(encoder)} and {len(decoder)}: '
                'set model.encoder.layers, or use "learned"'
            )
        for l, (source, target) in enumerate(zip(encoder, decoder, strict=True), start=1):
            if source.size != target.size:
                return (
                    f'"copy" needs states of one size; layer {l} has {source.size} units in the encoder and '
                    f'{target.size} in the decoder: use "learned"'
                )
            if source.kind is not target.kind:
                return (
                    '"copy" needs an encoder and a decoder whose cells carry the same (an output, a memory or both): '
                    'use cells of one kind, or "learned"'
                )
        return None

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        return memory.finals


class Learned(Bridge):
    """s^l_0 = tanh(W_l f + b_l), f the last state of an encoder layer (Bahdanau et al., appendix A.2.2, by layer).

    A state's h and the c of a cell with a memory count side by side, in f and in s^l_0. The tops are paired, then layer
    by layer downwards; decoder layers below the encoder's bottom read that bottom, encoder layers below the decoder's
    bottom are not read.
    """

    name = "learned"

    def __init__(self, encoder: Shapes, decoder: Shapes) -> None:
        super().__init__(encoder, decoder)
        self.reads = self.read(len(encoder), len(decoder))
        self.layers = nn.ModuleList(
            Linear(encoder[e].numbers, shape.numbers) for e, shape in zip(self.reads, decoder, strict=True)
        )
        """W_l and b_l."""

    @staticmethod
    def read(encoder: int, decoder: int) -> tuple[int, ...]:
        """The encoder layer (from 0) that each decoder layer reads."""
        return tuple(max(0, encoder - decoder + l) for l in range(decoder))

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        first: list[CellState] = []
        for e, layer, (kind, _) in zip(self.reads, self.layers, self.decoder, strict=True):
            parts: Tensor = torch.tanh(layer(torch.cat(tuple(memory.finals[e]), dim=-1)))
            first.append(kind(*parts.chunk(len(kind._fields), dim=-1)))
        return tuple(first)


class LearnedTop(Learned):
    """s^l_0 = tanh(W_l f + b_l), f the last state of the encoder's top layer for all l (JoeyNMT's `bridge`, where W_l
    and b_l are the same for all)."""

    name = "learned-top"

    @staticmethod
    def read(encoder: int, decoder: int) -> tuple[int, ...]:
        return (encoder - 1,) * decoder


class Rectified(Bridge):
    """[s^1_0; ...; s^L_0] = max(0, W_h [h^1; ...; h^L] + b_h), h^l the last states of the encoder's layers; and the
    memory cells likewise from theirs, by W_c and b_c (OpenNMT-py's `bridge`), or from h^l of an encoder
    without."""

    name = "rectified"

    def __init__(self, encoder: Shapes, decoder: Shapes) -> None:
        super().__init__(encoder, decoder)
        read, made = (sum(shape.size for shape in shapes) for shapes in (encoder, decoder))
        self.layers = nn.ModuleList(Linear(read, made) for _ in decoder[0].kind._fields)
        """W_h and b_h, W_c and b_c."""

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        sizes, made = [size for _, size in self.decoder], []
        for part, layer in zip(self.decoder[0].kind._fields, self.layers, strict=True):
            read = torch.cat([getattr(final, part, final.h) for final in memory.finals], dim=-1)
            made.append(torch.relu(layer(read)).split(sizes, dim=-1))
        return tuple(kind(*own) for (kind, _), own in zip(self.decoder, zip(*made, strict=True), strict=True))


BRIDGES: dict[str, type[Bridge]] = {c.name: c for c in (Zero, Copy, Learned, LearnedTop, Rectified)}
