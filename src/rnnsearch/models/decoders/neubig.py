"""The attentional decoder of Neubig's tutorial, chapter 8 (eq. 72-75)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import ModelConfig
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.bridges import Bridge
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.decoders.starts import make_bridge
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import Encoder
from rnnsearch.models.initialise import Init, linear
from rnnsearch.models.memory import Encoded, Memory
from rnnsearch.models.stack import Stack, StackState
from rnnsearch.tensors import at_least_fp32


class NeubigState(NamedTuple):
    """stack: the layers' states; context: c_{t-1} [N, H]; attention: what attention carries."""

    stack: StackState
    context: Tensor
    attention: AttentionState


class Neubig(Decoder):
    """h_t = dec([embed(e_{t-1}); c_{t-1}], h_{t-1}) (72), c_0 = 0;  a_{t,j} = attn_score(h_j, h_t) (73);
    alpha_t = softmax(a_t) (74), c_t = H alpha_t (71);  p_t = softmax(W_hs [h_t; c_t] + b_s) (75).

    h_0 is the encoder's last state, by the bridge; "dec" is a stack of `layers` cells. The readout is [h_t; c_t].
    """

    name = "neubig"
    options = frozenset({"cell", "layers", "bridge"})
    optional = frozenset({"residual_from"})
    attends = True
    readout_option = None

    def __init__(self, stack: Stack, bridge: Bridge, attention: Attention, annotation: int) -> None:
        super().__init__()
        self.stack = stack
        self.bridge = bridge
        self.attention = attention
        self.context = nn.Linear(annotation, stack.bottom.blocks * stack.size, bias=False)
        """The columns of the bottom layer's W that read c_{t-1}."""
        self.annotation = annotation
        self.readout_size = stack.size + annotation

    @classmethod
    def make(cls, model: ModelConfig, encoder: Encoder) -> Neubig:
        decoder, H = model.decoder, encoder.annotation_size
        assert decoder.cell is not None and decoder.layers is not None and model.attention is not None
        sizes = (model.embedding, decoder.size, decoder.layers)
        stack = Stack(CELLS[decoder.cell], *sizes, decoder.residual_from, model.dropout)
        attention = Attention.make(model.attention, decoder.size, H)
        return cls(stack, make_bridge(decoder.bridge, encoder, stack), attention, H)

    def initialise(self, init: Init) -> None:
        self.stack.initialise(init)
        self.bridge.initialise(init)
        self.attention.initialise(init)
        linear(init, self.context)

    def remember(self, encoded: Encoded) -> Memory:
        return self.attention.on(encoded)

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> NeubigState:
        stack = self.stack.start(self.bridge(memory), draws, steps)
        c_0 = at_least_fp32(memory.annotations).new_zeros(memory.mask.shape[0], self.annotation)
        return NeubigState(stack, c_0, self.attention.start(memory, draws, steps))

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.stack.inputs(y_prev)

    def step(self, x: Float[Tensor, "N G"], state: NeubigState, memory: Memory) -> tuple[NeubigState, Reading]:
        h, stack = self.stack.step(x + self.context(state.context), state.stack)
        attended, attention = self.attention.step(h, state.attention, memory)
        reading = Reading(h, attended.context, attended.alpha, attended.expected)
        return NeubigState(stack, attended.context, attention), reading

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        return torch.cat([reading.state, reading.context.to(reading.state.dtype)], dim=-1)
