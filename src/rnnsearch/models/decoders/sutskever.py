"""The decoder of Sutskever et al. 2014: a deep LSTM that sees the source through its first states alone."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import SutskeverOptions
from rnnsearch.models.bridges import Bridge
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.decoders.starts import make_bridge, make_stack
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import Encoder
from rnnsearch.models.memory import Memory
from rnnsearch.models.stack import Stack, StackState


class Sutskever(Decoder):
    """h^l_0 from the encoder's layer l;  h_t = stack(E y_{t-1}, h_{t-1});  p(y_t) = softmax(W h_t + b) with h_t of the
    top layer (Sutskever et al. 2014, section 2 and 3.4). Nothing of the source enters after h_0."""

    name = "sutskever"
    attends = False

    def __init__(self, stack: Stack, bridge: Bridge) -> None:
        super().__init__()
        self.stack = stack
        self.bridge = bridge
        self.readout_size = stack.size

    @classmethod
    def make(cls, options: SutskeverOptions, model: ModelConfig, encoder: Encoder) -> Sutskever:
        stack = make_stack(options, model)
        return cls(stack, make_bridge(options, encoder, stack))

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> StackState:
        return self.stack.start(self.bridge(memory), draws, steps)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.stack.inputs(y_prev)

    def step(self, x: Float[Tensor, "N G"], state: StackState, memory: Memory) -> tuple[StackState, Reading]:
        h, state = self.stack.step(x, state)
        return state, reading_of(h)

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        return reading.state


def reading_of(h: Tensor) -> Reading:
    """A reading without a context: one of size 0."""
    return Reading(state=h, context=h.new_empty(*h.shape[:-1], 0), alpha=None)
