"""CopyNet's decoder (Gu et al. 2016), whose state reads the annotations that the previous word was copied from.

The mixture of generating and copying is in `models/copying.py`.

It has no native step. `TranslationModel` pairs it with a `CopyOutput`. Tests: tests/properties/test_copying.py.

Axes: those of `decoder.py`, and X = G + J inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import CopyNetOptions
from rnnsearch.config.registry import implements
from rnnsearch.models.attention.attention import AttentionState
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.copying import NEVER
from rnnsearch.models.decoders.bahdanau import SingleCellDecoder
from rnnsearch.models.decoders.decoder import Reading
from rnnsearch.models.decoders.readouts import StateReadout
from rnnsearch.models.encoders import EncoderSizes
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import NO_WORD, CellState, CopyMemory, Encoded, Memory
from rnnsearch.utils.tensors import at_least_fp32, repeat_rows

PSI = "psi_c"
"""In `Reading.extras`: [N, J], the score of copying from each source position."""


class CopyState(NamedTuple):
    """The state of CopyNet: that of `Bahdanau`, and psi [N, J], psi_c of the previous position."""

    cell: CellState
    attention: AttentionState
    psi: Tensor
    recurrent_mask: Tensor | None = None


@implements(CopyNetOptions)
class CopyNet(SingleCellDecoder):
    """RNNsearch's recurrence, which also reads the source positions that y_{t-1} was copied from.

    zeta_t = sum_j rho_tj h_j, with rho_tj = p(copy from j | s_{t-1}) / K if the word at j is y_{t-1}, else 0 (eq. 9);
    s_t = f(s_{t-1}, [E y_{t-1}; zeta_t], c_t), with C c_t added to each gate;
    psi_g(v) = v^T W_o s_t (eq. 7);  psi_c(j) = tanh(h_j^T W_c) s_t (eq. 8), with the state AFTER the update.

    s_0 = tanh(W_s summary). `append_copy_positions` adds the source positions of y_{t-1} to the inputs.
    """

    readout_attribute = None
    readout_type = StateReadout

    def __init__(self, options: CopyNetOptions, model: ModelConfig, encoder: EncoderSizes) -> None:
        super().__init__(options, model, encoder)
        self.selective = Linear(encoder.annotation_size, self.cell.blocks * options.size, bias=False)  # of zeta
        self.copy = Linear(encoder.annotation_size, options.size, bias=False)  # W_c

    def remember(self, encoded: Encoded) -> Memory:
        values, origin = encoded.annotations, encoded.origin
        if origin is not None:  # the annotation of each source position, [B, J, H]
            values = values.gather(1, origin.position[..., None].expand(-1, -1, values.shape[-1]))
        return super().remember(encoded)._replace(copy_memory=CopyMemory(torch.tanh(self.copy(values)), values))

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> CopyState:
        assert memory.copy_memory is not None
        cell, recurrent_mask = self.initial_cell(memory, rng)
        # The first word read is BOS, which is at no source position: rho is 0 whatever psi is.
        psi = cell.h.new_full(memory.copy_memory.keys.shape[:2], NEVER)
        return CopyState(cell, self.attention.start(memory, rng, steps), psi, recurrent_mask)

    @staticmethod
    def append_copy_positions(
        x: Float[Tensor, "*rows G"], positions: Bool[Tensor, "*rows J"]
    ) -> Float[Tensor, "*rows X"]:
        """Concatenate the inputs with the mask of source positions that hold the previous word; X = G + J."""
        return torch.cat([x, positions.to(x.dtype)], dim=-1)

    def step(self, x: Float[Tensor, "N X"], state: CopyState, memory: Memory) -> tuple[CopyState, Reading]:
        copy_memory, J = memory.copy_memory, state.psi.shape[1]
        assert copy_memory is not None and memory.target_ids is not None
        x, holds_word = x.split([x.shape[1] - J, J], dim=1)  # [N, G], [N, J]
        output, attention = self.attention.step(state.cell.h, state.attention, memory, x)
        # The product with the mask makes rho zero if the word is at no position.
        rho = state.psi.masked_fill(holds_word == 0, NEVER).softmax(1) * holds_word  # [N, J]
        zeta = bmm_by_sentence(rho, copy_memory.values)  # [N, H]
        gates = x + self.context(output.context) + self.selective(zeta)
        cell = self.cell.step(gates, state.cell, state.recurrent_mask)
        psi = at_least_fp32(bmm_by_sentence(cell.h, copy_memory.keys.transpose(1, 2)))  # [N, J]
        # EOS and padding cannot be copied.
        psi = psi.masked_fill(repeat_rows(memory.target_ids, len(psi)) == NO_WORD, NEVER)
        reading = Reading.from_attention(cell.h, output)
        reading = reading._replace(extras={**reading.extras, PSI: psi})
        return CopyState(cell, attention, psi, state.recurrent_mask), reading


def bmm_by_sentence(rows: Float[Tensor, "N X"], matrices: Float[Tensor, "B X Y"]) -> Float[Tensor, "N Y"]:
    """Multiply each of N = B * K rows with the matrix of its sentence."""
    return torch.bmm(rows.to(matrices.dtype).view(len(matrices), -1, rows.shape[1]), matrices).flatten(0, 1)
