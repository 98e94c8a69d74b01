"""The decoder of Luong et al. 2015 with input feeding: h~ re-enters with the next word."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import LuongInputFeedingOptions
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.bridges import Bridge
from rnnsearch.models.decoders.decoder import Reading
from rnnsearch.models.decoders.readouts import Attentional
from rnnsearch.models.decoders.stack_decoder import StackDecoder
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import Encoder
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import Memory
from rnnsearch.models.stack import Stack, StackState
from rnnsearch.tensors import at_least_fp32


class InputFeedingState(NamedTuple):
    """stack: the layers' states; fed: h~_{t-1} [N, R]; attention: what attention carries."""

    stack: StackState
    fed: Tensor
    attention: AttentionState


class LuongInputFeeding(StackDecoder):
    """As `luong`, with h~_{t-1} beside the word in the bottom layer's input (Luong et al. 2015, section 3.3):

    h_t = stack([E y_{t-1}; h~_{t-1}], h_{t-1}), h~_0 = 0. A reading's state is h~_t itself: the output layer's input.
    """

    name = "luong-input-feeding"
    reads_context = False

    def __init__(self, stack: Stack, bridge: Bridge, attention: Attention, annotation: int, readout: int) -> None:
        super().__init__(stack, bridge, attention)
        self.attentional = Attentional(annotation, stack.size, readout)
        self.feeding = Linear(readout, stack.bottom.blocks * stack.size, bias=False)
        """The columns of the bottom layer's W that read h~."""
        self.readout_size = readout

    @classmethod
    def make(cls, options: LuongInputFeedingOptions, model: ModelConfig, encoder: Encoder) -> LuongInputFeeding:
        return cls(*cls.parts(options, model, encoder), encoder.annotation_size, options.readout)

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> InputFeedingState:
        stack, attention = self.begin(memory, draws, steps)
        nothing = at_least_fp32(memory.summary).new_zeros(memory.mask.shape[0], self.readout_size)
        return InputFeedingState(stack, nothing, attention)

    def step(
        self, x: Float[Tensor, "N G"], state: InputFeedingState, memory: Memory
    ) -> tuple[InputFeedingState, Reading]:
        h, stack = self.stack.step(x + self.feeding(state.fed), state.stack)
        attended, attention = self.attention.step(h, state.attention, memory)
        fed = self.attentional(attended.context, h)
        reading = Reading.of(fed, attended)
        return InputFeedingState(stack, fed, attention), reading

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        return reading.state
