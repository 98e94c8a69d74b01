"""The decoder of RNMT+ (Chen et al. 2018, "The best of both worlds", section 3)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import RNMTPlusOptions
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.bridges import Bridge
from rnnsearch.models.decoders.decoder import Reading
from rnnsearch.models.decoders.stack_decoder import StackDecoder
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import Encoder
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import Encoded, Memory
from rnnsearch.models.stack import Stack, StackState


class RNMTPlusState(NamedTuple):
    """stack: the layers' states; attention: what attention carries."""

    stack: StackState
    attention: AttentionState


class RNMTPlus(StackDecoder):
    """c_t = ATT(h^1_{t-1}), from the BOTTOM layer's last output (as in GNMT, Wu et al. 2016, eq. 4), over the
    annotations projected to the decoder's size; every layer reads c_t, h^1_t = f([E y_{t-1}; c_t], h^1_{t-1}),
    h^l_t = f([x^{l-1}_t; c_t], h^l_{t-1}), with residual connections from `residual_from`; the softmax reads
    [x^L_t; c_t]."""

    name = "rnmt-plus"
    attends_before_reading = True

    def __init__(self, stack: Stack, bridge: Bridge, attention: Attention, annotation: int) -> None:
        super().__init__(stack, bridge, attention)
        self.projection = Linear(annotation, stack.size)
        """Of the annotations."""
        self.context = Linear(stack.size, stack.bottom.blocks * stack.size, bias=False)
        """The columns of the bottom layer's W that read c_t."""
        self.readout_size = 2 * stack.size

    @classmethod
    def make(cls, options: RNMTPlusOptions, model: ModelConfig, encoder: Encoder) -> RNMTPlus:
        return cls(*cls.parts(options, model, encoder, context_size=options.size), encoder.annotation_size)

    def remember(self, encoded: Encoded) -> Memory:
        return super().remember(encoded._replace(annotations=self.projection(encoded.annotations)))

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> RNMTPlusState:
        return RNMTPlusState(*self.begin(memory, draws, steps))

    def step(self, x: Float[Tensor, "N G"], state: RNMTPlusState, memory: Memory) -> tuple[RNMTPlusState, Reading]:
        bottom = state.stack.cells[0].h
        attended, attention = self.attention.step(bottom, state.attention, memory)
        top, stack = self.stack.step(x + self.context(attended.context), state.stack, attended.context)
        reading = Reading.of(top, attended)
        return RNMTPlusState(stack, attention), reading

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        return torch.cat([reading.state, reading.context.to(reading.state.dtype)], dim=-1)
