"""The decoder of Luong et al. 2015 without input feeding: attention stands after the recurrence."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import LuongOptions
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.bridges import Bridge
from rnnsearch.models.decoders.decoder import Reading
from rnnsearch.models.decoders.readouts import Attentional
from rnnsearch.models.decoders.stack_decoder import StackDecoder
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import Encoder
from rnnsearch.models.memory import Memory
from rnnsearch.models.stack import Stack, StackState


class LuongState(NamedTuple):
    """stack: the layers' states; attention: what attention carries."""

    stack: StackState
    attention: AttentionState


class Luong(StackDecoder):
    """h_t = stack(E y_{t-1}, h_{t-1}), then a_t from the NEW h_t of the top layer, c_t = sum_s a_t(s) h-_s,
    h~_t = tanh(W_c [c_t; h_t]), p(y_t) = softmax(W_s h~_t) (Luong et al. 2015, section 3, eq. 5-7).

    Nothing that attention makes re-enters the recurrence.
    """

    name = "luong"

    def __init__(self, stack: Stack, bridge: Bridge, attention: Attention, annotation: int, readout: int) -> None:
        super().__init__(stack, bridge, attention)
        self.attentional = Attentional(annotation, stack.size, readout)
        self.readout_size = readout

    @classmethod
    def make(cls, options: LuongOptions, model: ModelConfig, encoder: Encoder) -> Luong:
        return cls(*cls.parts(options, model, encoder), encoder.annotation_size, options.readout)

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> LuongState:
        return LuongState(*self.begin(memory, draws, steps))

    def step(self, x: Float[Tensor, "N G"], state: LuongState, memory: Memory) -> tuple[LuongState, Reading]:
        h, stack = self.stack.step(x, state.stack)
        attended, attention = self.attention.step(h, state.attention, memory)
        return LuongState(stack, attention), Reading.of(h, attended)

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        t: Tensor = self.attentional(reading.context, reading.state)
        return t
