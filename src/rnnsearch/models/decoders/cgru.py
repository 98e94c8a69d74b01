"""The conditional GRU of Nematus (Sennrich et al. 2017, "Nematus: a toolkit for neural machine translation")."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import ConditionalGRUOptions, DeepTransitionOptions
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.conditional import Conditional
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.decoders.readouts import TanhOutput
from rnnsearch.models.decoders.starts import first_state, make_attention, mean_annotation, state_masks
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import Encoder, MakeCell
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import CellState, Encoded, Memory


class ConditionalState(NamedTuple):
    """cell: the state after the last transition, whose h is s_{i-1} [N, D]; attention: what attention carries;
    masks: [N, C, D], of what each of the C cells feeds back; None without dropout."""

    cell: CellState
    attention: AttentionState
    masks: Tensor | None = None


class ConditionalGRU(Decoder):
    """Two transitions a target word, with attention between them (section 3 of the paper, "Decoder"):

    s_0 = tanh(W_init mean_j h_j);  s'_i = GRU_1(E y_{i-1}, s_{i-1});  c_i = ATT(s'_i);  s_i = GRU_2(c_i, s'_i);
    t_i = tanh(W_t1 s_i + W_t2 E y_{i-1} + W_t3 c_i), so the output reads the NEW state. Nematus's GRU is `torch-gru`
    (the reset acts on the product); any other cell can stand in its place.
    """

    name = "cgru"
    attends = True

    def __init__(
        self,
        make_cell: MakeCell,
        attention: Attention,
        embedding: int,
        annotation: int,
        size: int,
        readout: int,
        transitions: int = 0,
        state_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.cell = Conditional(make_cell, attention, embedding, annotation, size, transitions)
        self.initial = Linear(annotation, size)
        """W_init."""
        self.output = TanhOutput(size, embedding, annotation, readout)
        self.readout_size = readout
        self.state_dropout = state_dropout

    @classmethod
    def make(
        cls, options: ConditionalGRUOptions | DeepTransitionOptions, model: ModelConfig, encoder: Encoder
    ) -> ConditionalGRU:
        sizes = (model.embedding, encoder.annotation_size, options.size, options.readout, options.transitions)
        return cls(CELLS[options.cell], make_attention(model, encoder), *sizes, model.dropout.state)

    def remember(self, encoded: Encoded) -> Memory:
        return self.cell.attention.on(encoded)

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> ConditionalState:
        s_0 = first_state(self.initial, mean_annotation(memory))
        masks = state_masks(draws, self.state_dropout, s_0, self.cell.count)
        return ConditionalState(self.cell.word.start(s_0), self.cell.attention.start(memory, draws, steps), masks)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.cell.word.inputs(y_prev)

    def step(
        self, x: Float[Tensor, "N G"], state: ConditionalState, memory: Memory
    ) -> tuple[ConditionalState, Reading]:
        cell, attended, attention = self.cell.step(x, state.cell, state.attention, memory, state.masks)
        reading = Reading.of(cell.h, attended)
        return ConditionalState(cell, attention, state.masks), reading

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        t: Tensor = self.output(reading.state, y_prev, reading.context)
        return t
