"""What decoders that are a stack of cells under attention have in common: all but their step and readout."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import StackOptions
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.bridges import Bridge
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.decoders.starts import make_attention, make_bridge, make_stack
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import Encoder
from rnnsearch.models.memory import Encoded, Memory
from rnnsearch.models.stack import Stack, StackState


class StackDecoder(Decoder):
    """A stack of cells that a bridge starts, with attention; what reads what is each subclass's own."""

    attends = True

    def __init__(self, stack: Stack, bridge: Bridge, attention: Attention) -> None:
        super().__init__()
        self.stack = stack
        self.bridge = bridge
        self.attention = attention

    @classmethod
    def parts(
        cls, options: StackOptions, model: ModelConfig, encoder: Encoder, context_size: int = 0
    ) -> tuple[Stack, Bridge, Attention]:
        """The arguments of `__init__`, as the options ask for them. `context_size`: of a context that the layers above
        the bottom read (see `Stack`)."""
        stack = make_stack(options, model, context_size)
        return stack, make_bridge(options, encoder, stack), make_attention(model, encoder)

    def remember(self, encoded: Encoded) -> Memory:
        return self.attention.on(encoded)

    def begin(self, memory: Memory, draws: Draws | None, steps: int) -> tuple[StackState, AttentionState]:
        """The layers' first states, and what attention carries at first."""
        stack = self.stack.start(self.bridge(memory), draws, steps)
        return stack, self.attention.start(memory, draws, steps)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.stack.inputs(y_prev)
