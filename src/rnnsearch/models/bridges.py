"""Bridges: the initial states of a decoder's layers, computed from the encoder's last states or annotations.

`decoders/stack_decoders.py` creates the bridge of `[model.decoder] bridge`; `accel/program_writer.py` writes it for
the engine. Tests: tests/models/test_bridges.py. Axes are those of `memory.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from rnnsearch.config import cells
from rnnsearch.config.cells import (
    AnnotationOptions,
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
"""Type and size of the state of each layer, bottom first."""


class Bridge(nn.Module, ABC):
    """A function from the memory of sentences to the initial states of a decoder's layers."""

    component: ClassVar[type[BridgeOptions]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, encoder: Shapes, decoder: Shapes) -> None:
        super().__init__()
        self.decoder = decoder

    @abstractmethod
    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        """Return the initial state of each decoder layer, bottom first, one row per sentence."""


@implements(ZeroOptions)
class Zero(Bridge):
    """All initial states are zero: the source reaches the decoder only through attention."""

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        B = memory.mask.shape[0]
        states: list[CellState] = []
        for state_type, size in self.decoder:
            states.append(state_type(*(memory.summary.new_zeros(B, size) for _ in state_type._fields)))
        return tuple(states)


@implements(CopyOptions)
class Copy(Bridge):
    """Layer l starts from the last state of the encoder's layer l, including memory cells.

    Sutskever et al. 2014, section 2; Luong et al. 2015, section 2.
    """

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        return memory.finals


@implements(AnnotationOptions)
class LastAnnotation(Bridge):
    """h^l_0 = h_J, the annotation of the last source position J, for all layers l; memory cells are zero.

    Neubig's tutorial, eq. 72: h_0 = h^(f)_{|F|+1}.
    """

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        last = memory.mask.sum(1) - 1  # [B]
        h = memory.annotations[torch.arange(len(last), device=last.device), last]  # [B, H]
        states: list[CellState] = []
        for state_type, _ in self.decoder:
            states.append(state_type(h, *(torch.zeros_like(h) for _ in state_type._fields[1:])))
        return tuple(states)


@implements(LearnedOptions)
class Learned(Bridge):
    """s^l_0 = tanh(W_l f + b_l), f the last state of an encoder layer (Bahdanau et al., appendix A.2.2, per layer).

    The h and c of a cell with a memory are concatenated, in f and in s^l_0. Layers are paired from the top down.
    If the decoder has more layers, its lower ones all read the encoder's bottom layer; if the encoder has more, its
    lower ones are not read.
    """

    def __init__(self, encoder: Shapes, decoder: Shapes) -> None:
        super().__init__(encoder, decoder)
        self.encoder_layers = self.paired_layers(len(encoder), len(decoder))
        self.layers = nn.ModuleList(
            Linear(encoder[e].total_size, shape.total_size)
            for e, shape in zip(self.encoder_layers, decoder, strict=True)
        )  # W_l and b_l

    @staticmethod
    def paired_layers(encoder: int, decoder: int) -> tuple[int, ...]:
        """Return the index of the encoder layer that each decoder layer reads, given the number of layers of both."""
        return tuple(max(0, encoder - decoder + l) for l in range(decoder))

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        states: list[CellState] = []
        for e, layer, (state_type, _) in zip(self.encoder_layers, self.layers, self.decoder, strict=True):
            final = torch.cat(tuple(memory.finals[e]), dim=-1)  # [B, h and c]
            initial: Tensor = torch.tanh(layer(final))
            # h, and c if there is one: [B, D] each
            states.append(state_type(*initial.chunk(len(state_type._fields), dim=-1)))
        return tuple(states)


@implements(LearnedTopOptions)
class LearnedTop(Learned):
    """s^l_0 = tanh(W_l f + b_l), f the last state of the encoder's top layer for all l.

    JoeyNMT's `bridge`, where W_l and b_l are the same for all layers.
    """

    @staticmethod
    def paired_layers(encoder: int, decoder: int) -> tuple[int, ...]:
        return (encoder - 1,) * decoder


@implements(RectifiedOptions)
class Rectified(Bridge):
    """[s^1_0; ...; s^L_0] = max(0, W_h [h^1; ...; h^L] + b_h), h^l the last states of the encoder's layers.

    Memory cells are computed likewise from the encoder's, or from h^l if it has none, with W_c and b_c (OpenNMT-py's
    `bridge`).
    """

    def __init__(self, encoder: Shapes, decoder: Shapes) -> None:
        super().__init__(encoder, decoder)
        encoder_size = sum(shape.size for shape in encoder)
        decoder_size = sum(shape.size for shape in decoder)
        self.layers = nn.ModuleList(
            Linear(encoder_size, decoder_size) for _ in decoder[0].state_type._fields
        )  # W_h and b_h, W_c and b_c

    def forward(self, memory: Memory) -> tuple[CellState, ...]:
        sizes = [size for _, size in self.decoder]
        vectors = []  # for h, and for c if there is one: the initial vector of each layer
        for field, layer in zip(self.decoder[0].state_type._fields, self.layers, strict=True):
            # [B, sum of the encoder's sizes]; h is read in place of c if the encoder's cells have no memory.
            finals = torch.cat([getattr(final, field, final.h) for final in memory.finals], dim=-1)
            vectors.append(torch.relu(layer(finals)).split(sizes, dim=-1))  # [B, D] per layer
        states: list[CellState] = []
        for l, (state_type, _) in enumerate(self.decoder):
            states.append(state_type(*(vector[l] for vector in vectors)))
        return tuple(states)


BRIDGES: Implementations[type[Bridge]] = Implementations(cells.BRIDGES)
"""Class by `bridge` of `[model.decoder]`; names are stored in model folders."""
