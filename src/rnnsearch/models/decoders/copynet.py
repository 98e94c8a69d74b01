"""CopyNet's decoder (Gu et al. 2016): a state that reads, beside the word before, the annotations of the places that it
was copied from."""

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
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import NO_WORD, CellState, CopyMemory, Encoded, Memory
from rnnsearch.utils.tensors import at_least_fp32, each

PSI = "psi_c"
"""In a reading's extras: [N, J], the score of copying from each source place."""


class CopyState(NamedTuple):
    """cell, attention, keep: as of `BahdanauState`; psi: [N, J], psi_c of the word before."""

    cell: CellState
    attention: AttentionState
    psi: Tensor
    recurrent_mask: Tensor | None = None


@implements(CopyNetOptions)
class CopyNet(SingleCellDecoder):
    """Attends with s_{t-1} as RNNsearch does, and also reads the places that y_{t-1} was copied from:

    zeta_t = sum_j rho_tj h_j, rho_tj = p(place j, copy | s_{t-1}) / K where the word there is y_{t-1}, else 0 (eq. 9);
    s_t = f(s_{t-1}, [E y_{t-1}; zeta_t], c_t), whose gates each add C c_t;
    psi_g(v) = v^T W_o s_t (eq. 7);  psi_c(j) = tanh(h_j^T W_c) s_t (eq. 8), of the state AFTER the update.

    `with_places` puts behind the inputs at which places y_{t-1} is. s_0 = tanh(W_s summary).
    """

    readout_attribute = None
    readout_type = StateReadout

    def __init__(self, options: CopyNetOptions, model: ModelConfig, encoder: Encoder) -> None:
        super().__init__(options, model, encoder)
        self.selective = Linear(encoder.annotation_size, self.cell.blocks * options.size, bias=False)
        """zeta's share of every gate."""
        self.copy = Linear(encoder.annotation_size, options.size, bias=False)
        """W_c."""

    def remember(self, encoded: Encoded) -> Memory:
        h, origin = encoded.annotations, encoded.origin
        values = h if origin is None else h.gather(1, origin.position[..., None].expand(-1, -1, h.shape[-1]))
        return super().remember(encoded)._replace(copy_memory=CopyMemory(torch.tanh(self.copy(values)), values))

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> CopyState:
        cell, keep = self.initial_cell(memory, rng)
        assert memory.copy_memory is not None
        psi = cell.h.new_full(memory.copy_memory.keys.shape[:2], NEVER)
        return CopyState(cell, self.attention.start(memory, rng, steps), psi, keep)

    @staticmethod
    def append_copy_positions(x: Float[Tensor, "*rows G"], at: Bool[Tensor, "*rows J"]) -> Float[Tensor, "*rows X"]:
        """The inputs, X = G + J numbers, with the places that the word before stands at behind them."""
        return torch.cat([x, at.to(x.dtype)], dim=-1)

    def step(self, x: Float[Tensor, "N X"], state: CopyState, memory: Memory) -> tuple[CopyState, Reading]:
        copyable, J = memory.copy_memory, state.psi.shape[1]
        assert copyable is not None and memory.target_ids is not None
        x, at = x.split([x.shape[1] - J, J], dim=1)
        attended, attention = self.attention.step(state.cell.h, state.attention, memory, x)
        rho = state.psi.masked_fill(at == 0, NEVER).softmax(1) * at  # none, where it stands nowhere
        zeta = bmm_by_sentence(rho, copyable.values)
        gates = x + self.context(attended.context) + self.selective(zeta)
        cell = self.cell.step(gates, state.cell, state.recurrent_mask)
        psi = at_least_fp32(bmm_by_sentence(cell.h, copyable.keys.transpose(1, 2)))
        psi = psi.masked_fill(each(memory.target_ids, len(psi)) == NO_WORD, NEVER)
        reading = Reading.from_attention(cell.h, attended)
        reading = reading._replace(extras={**reading.extras, PSI: psi})
        return CopyState(cell, attention, psi, state.recurrent_mask), reading


def bmm_by_sentence(rows: Float[Tensor, "N X"], matrices: Float[Tensor, "B X Y"]) -> Float[Tensor, "N Y"]:
    """The products of N = B * K rows with the matrix of each row's sentence."""
    return torch.bmm(rows.to(matrices.dtype).view(len(matrices), -1, rows.shape[1]), matrices).flatten(0, 1)
