"""The decoder of RNNsearch (Bahdanau et al. 2015, section 3.1 and appendix A.2.2)."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import BahdanauOptions, BahdanauTanhOptions
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.cells import CELLS, Cell
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.decoders.readouts import DeepOutput, Readout, TanhOutput
from rnnsearch.models.decoders.starts import make_attention
from rnnsearch.models.draws import Draws, state_mask
from rnnsearch.models.encoder import Encoder, MakeCell
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import CellState, Encoded, Memory


class BahdanauState(NamedTuple):
    """cell: the cell's state, whose h is s_{i-1} [N, D]; attention: what attention carries; keep: [N, D], the
    sequence's dropout mask on what the cell feeds back, None without."""

    cell: CellState
    attention: AttentionState
    keep: Tensor | None = None


class Bahdanau(Decoder):
    """Attends with s_{i-1} BEFORE the update, feeds the context into the cell, reads out s_{i-1}.

    s_0 = tanh(W_s backward h_1);  alpha_i = softmax_j a(s_{i-1}, h_j);  c_i = sum_j alpha_ij h_j;
    s_i = f(s_{i-1}, E y_{i-1}, c_i), whose gates each add C c_i;  the deep output reads s_{i-1}.
    """

    name = "bahdanau"
    attends = True
    attends_before_reading = True
    output: ClassVar[type[Readout]] = DeepOutput
    """The layer that reads s_{i-1}, E y_{i-1} and c_i."""

    def __init__(
        self,
        make_cell: MakeCell,
        attention: Attention,
        embedding: int,
        annotation: int,
        summary: int,
        size: int,
        readout: int,
        state_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cell: Cell = make_cell(embedding, size)
        self.context = Linear(annotation, self.cell.blocks * size, bias=False)
        """C of every gate."""
        self.initial = Linear(summary, size)
        """W_s."""
        self.deep_output = self.output(size, embedding, annotation, readout)
        self.readout_size = readout
        self.state_dropout = state_dropout

    @classmethod
    def make(cls, options: BahdanauOptions | BahdanauTanhOptions, model: ModelConfig, encoder: Encoder) -> Bahdanau:
        sizes = (model.embedding, encoder.annotation_size, encoder.summary_size, options.size, options.readout_size)
        return cls(CELLS[options.cell], make_attention(model, encoder), *sizes, model.dropout.state)

    def remember(self, encoded: Encoded) -> Memory:
        return self.attention.on(encoded)

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> BahdanauState:
        s_0 = torch.tanh(self.initial(memory.summary))
        keep = state_mask(self.cell.size, s_0, self.state_dropout, draws)
        return BahdanauState(self.cell.start(s_0), self.attention.start(memory, draws, steps), keep)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.cell.inputs(y_prev)

    def step(self, x: Float[Tensor, "N G"], state: BahdanauState, memory: Memory) -> tuple[BahdanauState, Reading]:
        s = state.cell.h
        attended, attention = self.attention.step(s, state.attention, memory)
        cell = self.cell.step(x + self.context(attended.context), state.cell, state.keep)
        reading = Reading.of(s, attended)
        return BahdanauState(cell, attention, state.keep), reading

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        t: Tensor = self.deep_output(reading.state, y_prev, reading.context)
        return t


class BahdanauTanh(Bahdanau):
    """The same recurrence under one tanh layer (Nematus: Sennrich et al. 2017, section 3) where the paper has maxout:
    t_i = tanh(W_t1 s_{i-1} + W_t2 E y_{i-1} + W_t3 c_i + b), half the products for as many units under the softmax."""

    name = "bahdanau-tanh"
    output = TanhOutput
