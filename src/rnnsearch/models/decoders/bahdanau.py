"""The decoders of Bahdanau et al. 2015, RNNsearch and the baseline RNNencdec, and variants of RNNsearch's output.

RNNsearch is described in section 3.1 and appendix A.2.2 of the paper. All of these decoders take any cell.

`accel/` has fast implementations of `Bahdanau` in PyTorch, native code and the engine (`accel/rnnsearch_search.py`,
`engine/rnnsearch.py`), all compared with these equations; a changed equation disables them with a warning. `CopyNet`
(`copynet.py`) derives from `SingleCellDecoder`, and `cho.py` uses `ContextState`.

Axes: those of `decoder.py`.
"""

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
from rnnsearch.models.encoders import EncoderSizes
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import CellState, Memory
from rnnsearch.utils.tensors import at_least_fp32


class SingleCellDecoder(Decoder):
    """s_i = f(s_{i-1}, E y_{i-1}, c), with C c added to each gate, and a readout of s, E y_{i-1} and c."""

    readout_attribute: ClassVar[str | None] = "deep_output"
    readout_type: ClassVar[type[Readout | StateReadout]] = DeepOutput
    starts_at_zero: ClassVar[bool] = False
    """True if s_0 = 0 instead of tanh(W_s summary)."""

    def __init__(
        self,
        options: BahdanauOptions | BahdanauTanhOptions | CohnOptions | CopyNetOptions | RNNencdecOptions,
        model: ModelConfig,
        encoder: EncoderSizes,
    ) -> None:
        super().__init__(options, model, encoder)
        context_size = encoder.annotation_size if self.attends else encoder.summary_size
        if self.attends:
            self.attention = make_attention(model, encoder, CELLS[options.cell].blocks * options.size)
        self.cell = CELLS[options.cell](model.embedding, options.size)
        self.context = Linear(context_size, self.cell.blocks * options.size, bias=False)  # C of all gates, stacked
        self.initial = None if self.starts_at_zero else Linear(encoder.summary_size, options.size)  # W_s
        self.deep_output = self.readout_type(options.size, model.embedding, context_size, options.readout_size)

    def initial_cell(self, memory: Memory, rng: BatchRng | None) -> tuple[CellState, Tensor | None]:
        """Return the cell's state with h = s_0, and the dropout mask [B, D] of its recurrent products."""
        if self.initial is None:
            s_0 = at_least_fp32(memory.summary.new_zeros(memory.summary.shape[0], self.cell.size))
        else:
            s_0 = torch.tanh(self.initial(memory.summary))  # [B, D]
        return self.cell.start(s_0), dropout_mask(rng, self.state_dropout, s_0, self.cell.size)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.cell.inputs(y_prev)


class BahdanauState(NamedTuple):
    """The state of RNNsearch.

    cell: the cell's state, whose h is s_{i-1} [N, D].
    recurrent_mask: [N, D], the sequence's dropout mask in recurrent products; None without dropout.
    """

    cell: CellState
    attention: AttentionState
    recurrent_mask: Tensor | None = None


@implements(BahdanauOptions)
class Bahdanau(SingleCellDecoder):
    """RNNsearch: attends with s_{i-1}, BEFORE the update, feeds the context to the cell, and reads out s_{i-1}.

    s_0 = tanh(W_s backward h_1);  alpha_i = softmax_j a(s_{i-1}, h_j);  c_i = sum_j alpha_ij h_j;
    s_i = f(s_{i-1}, E y_{i-1}, c_i), with C c_i added to each gate;  the deep output reads s_{i-1}.
    """

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> BahdanauState:
        cell, recurrent_mask = self.initial_cell(memory, rng)
        return BahdanauState(cell, self.attention.start(memory, rng, steps), recurrent_mask)

    def step(self, x: Float[Tensor, "N G"], state: BahdanauState, memory: Memory) -> tuple[BahdanauState, Reading]:
        s = state.cell.h  # s_{i-1} [N, D]
        output, attention = self.attention.step(s, state.attention, memory, x)  # c_i [N, H]
        gates = x + self.context(output.context)  # [N, G]
        cell = self.cell.step(gates, state.cell, state.recurrent_mask)  # s_i [N, D]
        return BahdanauState(cell, attention, state.recurrent_mask), Reading.from_attention(s, output)


@implements(BahdanauTanhOptions)
class BahdanauTanh(Bahdanau):
    """RNNsearch with one tanh layer (Nematus: Sennrich et al. 2017, section 3) instead of the maxout layer.

    t_i = tanh(W_t1 s_{i-1} + W_t2 E y_{i-1} + W_t3 c_i + b), half the products for as many units in the softmax.
    """

    readout_type = TanhOutput


@implements(CohnOptions)
class Cohn(Bahdanau):
    """RNNsearch from s_0 = 0, which reads out the state AFTER the update (Cohn et al. 2016, section 2).

    t_i = tanh(s_i + Q c_i + P E y_{i-1}), as in the authors' code.
    """

    readout_type = StateOutput
    starts_at_zero = True

    def step(self, x: Float[Tensor, "N G"], state: BahdanauState, memory: Memory) -> tuple[BahdanauState, Reading]:
        state, reading = super().step(x, state, memory)
        return state, reading._replace(state=state.cell.h)  # s_i instead of s_{i-1}


class ContextState(NamedTuple):
    """The state of a decoder with one context c for all positions.

    context: c [N, H].
    context_gates: C c of every gate [N, G], computed once per sentence.
    recurrent_mask: [N, D], the sequence's dropout mask in recurrent products; None without dropout.
    """

    cell: CellState
    context: Tensor
    context_gates: Tensor
    recurrent_mask: Tensor | None = None


@implements(RNNencdecOptions)
class RNNencdec(SingleCellDecoder):
    """The baseline of Bahdanau et al., with c_i fixed to c = forward h_Tx, which is fed to every step and readout.

    "The model becomes RNN Encoder-Decoder if we fix c_i to forward h_Tx"; s_0 = tanh(W_s c).
    """

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> ContextState:
        c = memory.summary
        cell, recurrent_mask = self.initial_cell(memory, rng)
        return ContextState(cell, c, self.context(c), recurrent_mask)

    def step(self, x: Float[Tensor, "N G"], state: ContextState, memory: Memory) -> tuple[ContextState, Reading]:
        cell = self.cell.step(x + state.context_gates, state.cell, state.recurrent_mask)  # s_i [N, D]
        reading = Reading(state=state.cell.h, context=state.context, alpha=None)  # with s_{i-1}, as RNNsearch
        return state._replace(cell=cell), reading
