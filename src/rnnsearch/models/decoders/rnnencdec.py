"""The RNN encoder-decoder without attention: the baseline of Bahdanau et al.'s table, in any cell."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import RNNencdecOptions
from rnnsearch.models.cells import CELLS, Cell
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.decoders.readouts import DeepOutput
from rnnsearch.models.draws import Draws, state_mask
from rnnsearch.models.encoder import Encoder, MakeCell
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import CellState, Memory


class RNNencdecState(NamedTuple):
    """cell: the cell's state; context: c [N, H]; share: C c of every gate [N, G], computed once a sentence;
    keep: [N, D], the sequence's dropout mask on what the cell feeds back, None without."""

    cell: CellState
    context: Tensor
    share: Tensor
    keep: Tensor | None = None


class RNNencdec(Decoder):
    """Bahdanau's decoder with c_i fixed to c = forward h_Tx ("the model becomes RNN Encoder-Decoder if we
    fix c_i to forward h_Tx"): s_0 = tanh(W_s c), c fed to every step and to the deep output."""

    name = "rnnencdec"
    attends = False

    def __init__(
        self, make_cell: MakeCell, embedding: int, summary: int, size: int, maxout: int, state_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.cell: Cell = make_cell(embedding, size)
        self.context = Linear(summary, self.cell.blocks * size, bias=False)
        """C of every gate."""
        self.initial = Linear(summary, size)
        """W_s."""
        self.deep_output = DeepOutput(size, embedding, summary, maxout)
        self.readout_size = maxout
        self.state_dropout = state_dropout

    @classmethod
    def make(cls, options: RNNencdecOptions, model: ModelConfig, encoder: Encoder) -> RNNencdec:
        sizes = (model.embedding, encoder.summary_size, options.size, options.maxout)
        return cls(CELLS[options.cell], *sizes, model.dropout.state)

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> RNNencdecState:
        c = memory.summary
        s_0 = torch.tanh(self.initial(c))
        keep = state_mask(self.cell.size, s_0, self.state_dropout, draws)
        return RNNencdecState(self.cell.start(s_0), c, self.context(c), keep)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.cell.inputs(y_prev)

    def step(self, x: Float[Tensor, "N G"], state: RNNencdecState, memory: Memory) -> tuple[RNNencdecState, Reading]:
        cell = self.cell.step(x + state.share, state.cell, state.keep)
        return state._replace(cell=cell), Reading(state=state.cell.h, context=state.context, alpha=None)

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        t: Tensor = self.deep_output(reading.state, y_prev, reading.context)
        return t
