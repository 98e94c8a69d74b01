"""What decoders that are a stack of cells under attention have in common: all but their step and readout."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.bridges import Bridge
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.decoders.starts import make_bridge, make_stack
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import Encoder
from rnnsearch.models.memory import Encoded, Memory
from rnnsearch.models.stack import Stack, StackState


class Stacked(Decoder):
    """A stack of cells that a bridge starts, with attention; what reads what is each subclass's own."""

    optional = frozenset({"residual_from"})
    attends = True

    def __init__(self, stack: Stack, bridge: Bridge, attention: Attention) -> None:
        super().__init__()
        self.stack = stack
        self.bridge = bridge
        self.attention = attention

    @classmethod
    def parts(cls, model: ModelConfig, encoder: Encoder, context_size: int = 0) -> tuple[Stack, Bridge, Attention]:
        """The arguments of `__init__`, as `[model]` asks for them. `context_size`: of a context that the layers above
        the bottom read (see `Stack`)."""
        assert model.attention is not None
        stack = make_stack(model, context_size)
        attended = cls.attended_size(model, encoder.annotation_size)
        attention = Attention.make(model.attention, stack.size, attended)
        return stack, make_bridge(model.decoder.bridge, encoder, stack), attention

    def remember(self, encoded: Encoded) -> Memory:
        return self.attention.on(encoded)

    def begin(self, memory: Memory, draws: Draws | None, steps: int) -> tuple[StackState, AttentionState]:
        """The layers' first states, and what attention carries at first."""
        stack = self.stack.start(self.bridge(memory), draws, steps)
        return stack, self.attention.start(memory, draws, steps)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.stack.inputs(y_prev)
