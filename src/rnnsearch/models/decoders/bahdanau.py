"""The decoders of Bahdanau et al. 2015: RNNsearch (section 3.1 and appendix A.2.2), and RNNencdec, the baseline of its
table; and what others put in the place of RNNsearch's output. All in any cell."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import (
    BahdanauOptions,
    BahdanauTanhOptions,
    CohnOptions,
    CopyNetOptions,
    RNNencdecOptions,
)
from rnnsearch.config.registry import implements
from rnnsearch.models.attention.attention import AttentionState
from rnnsearch.models.batch_rng import BatchRng, dropout_mask
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.decoder import Decoder, Reading, make_attention
from rnnsearch.models.decoders.readouts import DeepOutput, Readout, StateOutput, StateReadout, TanhOutput
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import CellState, Memory
from rnnsearch.utils.tensors import at_least_fp32


class SingleCellDecoder(Decoder):
    """s_i = f(s_{i-1}, E y_{i-1}, c), whose gates each add C c, under an output of s, E y_{i-1} and c."""

    readout_attribute: ClassVar[str | None] = "deep_output"
    readout_type: ClassVar[type[Readout | StateReadout]] = DeepOutput
    """The layer that reads them."""

    starts_at_zero: ClassVar[bool] = False
    """Whether s_0 is 0, and no summary of the source."""

    def __init__(
        self,
        options: BahdanauOptions | BahdanauTanhOptions | CohnOptions | CopyNetOptions | RNNencdecOptions,
        model: ModelConfig,
        encoder: Encoder,
    ) -> None:
        super().__init__(options, model, encoder)
        context = encoder.annotation_size if self.attends else encoder.summary_size
        if self.attends:
            self.attention = make_attention(model, encoder, CELLS[options.cell].blocks * options.size)
        self.cell = CELLS[options.cell](model.embedding, options.size)
        self.context = Linear(context, self.cell.blocks * options.size, bias=False)
        """C of every gate."""
        self.initial = None if self.starts_at_zero else Linear(encoder.summary_size, options.size)
        """W_s."""
        self.deep_output = self.readout_type(options.size, model.embedding, context, options.readout_size)

    def initial_cell(self, memory: Memory, rng: BatchRng | None) -> tuple[CellState, Tensor | None]:
        """The cell's state of s_0 = tanh(W_s summary), or 0, and the sequence's dropout mask on what it feeds back."""
        if self.initial is None:
            s_0 = at_least_fp32(memory.summary.new_zeros(memory.summary.shape[0], self.cell.size))
        else:
            s_0 = torch.tanh(self.initial(memory.summary))
        return self.cell.start(s_0), dropout_mask(rng, self.state_dropout, s_0, self.cell.size)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.cell.inputs(y_prev)


class BahdanauState(NamedTuple):
    """cell: the cell's state, whose h is s_{i-1} [N, D]; attention: what attention carries; keep: [N, D], the
    sequence's dropout mask on what the cell feeds back, None without."""

    cell: CellState
    attention: AttentionState
    recurrent_mask: Tensor | None = None


@implements(BahdanauOptions)
class Bahdanau(SingleCellDecoder):
    """Attends with s_{i-1} BEFORE the update, feeds the context into the cell, reads out s_{i-1}.

    s_0 = tanh(W_s backward h_1);  alpha_i = softmax_j a(s_{i-1}, h_j);  c_i = sum_j alpha_ij h_j;
    s_i = f(s_{i-1}, E y_{i-1}, c_i), whose gates each add C c_i;  the deep output reads s_{i-1}.
    """

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> BahdanauState:
        cell, keep = self.initial_cell(memory, rng)
        return BahdanauState(cell, self.attention.start(memory, rng, steps), keep)

    def step(self, x: Float[Tensor, "N G"], state: BahdanauState, memory: Memory) -> tuple[BahdanauState, Reading]:
        s = state.cell.h
        attended, attention = self.attention.step(s, state.attention, memory, x)
        cell = self.cell.step(x + self.context(attended.context), state.cell, state.recurrent_mask)
        return BahdanauState(cell, attention, state.recurrent_mask), Reading.from_attention(s, attended)


@implements(BahdanauTanhOptions)
class BahdanauTanh(Bahdanau):
    """The same recurrence under one tanh layer (Nematus: Sennrich et al. 2017, section 3) where the paper has maxout:
    t_i = tanh(W_t1 s_{i-1} + W_t2 E y_{i-1} + W_t3 c_i + b), half the products for as many units under the softmax."""

    readout_type = TanhOutput


@implements(CohnOptions)
class Cohn(Bahdanau):
    """The same recurrence from s_0 = 0, which reads out the state AFTER the update:
    t_i = tanh(s_i + Q c_i + P E y_{i-1}) (Cohn et al. 2016, section 2, and the authors' code)."""

    readout_type = StateOutput
    starts_at_zero = True

    def step(self, x: Float[Tensor, "N G"], state: BahdanauState, memory: Memory) -> tuple[BahdanauState, Reading]:
        after, reading = super().step(x, state, memory)
        return after, reading._replace(state=after.cell.h)


class ContextState(NamedTuple):
    """cell: the cell's state; context: c [N, H]; share: C c of every gate [N, G], computed once a sentence;
    keep: [N, D], the sequence's dropout mask on what the cell feeds back, None without."""

    cell: CellState
    context: Tensor
    context_gates: Tensor
    recurrent_mask: Tensor | None = None


@implements(RNNencdecOptions)
class RNNencdec(SingleCellDecoder):
    """Bahdanau's decoder with c_i fixed to c = forward h_Tx ("the model becomes RNN Encoder-Decoder if we
    fix c_i to forward h_Tx"): s_0 = tanh(W_s c), c fed to every step and to the deep output."""

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> ContextState:
        c = memory.summary
        cell, keep = self.initial_cell(memory, rng)
        return ContextState(cell, c, self.context(c), keep)

    def step(self, x: Float[Tensor, "N G"], state: ContextState, memory: Memory) -> tuple[ContextState, Reading]:
        cell = self.cell.step(x + state.context_gates, state.cell, state.recurrent_mask)
        return state._replace(cell=cell), Reading(state=state.cell.h, context=state.context, alpha=None)
