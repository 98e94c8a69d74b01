"""The attentional decoder of Neubig's tutorial, chapter 8 (eq. 72-75)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import NeubigOptions
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.bridges import Bridge
from rnnsearch.models.decoders.decoder import Reading
from rnnsearch.models.decoders.stack_decoder import StackDecoder
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import Encoder
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import Memory
from rnnsearch.models.stack import Stack, StackState
from rnnsearch.tensors import at_least_fp32


class NeubigState(NamedTuple):
    """stack: the layers' states; context: c_{t-1} [N, H]; attention: what attention carries."""

    stack: StackState
    context: Tensor
    attention: AttentionState


class Neubig(StackDecoder):
    """h_t = dec([embed(e_{t-1}); c_{t-1}], h_{t-1}) (72), c_0 = 0;  a_{t,j} = attn_score(h_j, h_t) (73);
    alpha_t = softmax(a_t) (74), c_t = H alpha_t (71);  p_t = softmax(W_hs [h_t; c_t] + b_s) (75).

    h_0 is the encoder's last state, by the bridge; "dec" is a stack of `layers` cells. The readout is [h_t; c_t].
    """

    name = "neubig"

    def __init__(self, stack: Stack, bridge: Bridge, attention: Attention, annotation: int) -> None:
        super().__init__(stack, bridge, attention)
        self.context = Linear(annotation, stack.bottom.blocks * stack.size, bias=False)
        """The columns of the bottom layer's W that read c_{t-1}."""
        self.annotation = annotation
        self.readout_size = stack.size + annotation

    @classmethod
    def make(cls, options: NeubigOptions, model: ModelConfig, encoder: Encoder) -> Neubig:
        return cls(*cls.parts(options, model, encoder), encoder.annotation_size)

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> NeubigState:
        stack, attention = self.begin(memory, draws, steps)
        c_0 = at_least_fp32(memory.annotations).new_zeros(memory.mask.shape[0], self.annotation)
        return NeubigState(stack, c_0, attention)

    def step(self, x: Float[Tensor, "N G"], state: NeubigState, memory: Memory) -> tuple[NeubigState, Reading]:
        h, stack = self.stack.step(x + self.context(state.context), state.stack)
        attended, attention = self.attention.step(h, state.attention, memory)
        reading = Reading.of(h, attended)
        return NeubigState(stack, attended.context, attention), reading

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        return torch.cat([reading.state, reading.context.to(reading.state.dtype)], dim=-1)
