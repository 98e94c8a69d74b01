"""MEMDEC, a decoder with an external memory that it reads and writes (Wang et al. 2016)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import MemDecOptions
from rnnsearch.models.attention.attention import AttentionState
from rnnsearch.models.cells import CELLS, kept
from rnnsearch.models.decoders.decoder import Decoder, Reading, first_state, make_attention, mean_annotation
from rnnsearch.models.decoders.readouts import DeepOutput
from rnnsearch.models.draws import Draws, each_mask, sequence_mask
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.initialise import parameter
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import CellState, Memory
from rnnsearch.tensors import at_least_fp32


class Head(nn.Module):
    """Where a controller reads or writes in a buffer of n cells of m numbers (Wang et al. 2016, section 3):

    w~(k) = softmax_k v^T tanh(A M(k) + B s),  g = sigma(w_g^T s + b),  w(k) = g w_before(k) + (1 - g) w~(k).
    """

    def __init__(self, controller: int, slot: int) -> None:
        super().__init__()
        self.slot = Linear(slot, slot, bias=False)
        """A."""
        self.query = Linear(controller, slot, bias=False)
        """B."""
        self.vector = parameter("weight", slot)
        """v."""
        self.gate = Linear(controller, 1)
        """w_g and b."""

    def forward(
        self, buffer: Float[Tensor, "N n m"], s: Float[Tensor, "N D"], before: Float[Tensor, "N n"]
    ) -> Float[Tensor, "N n"]:
        """The weights of the buffer's cells; they sum to 1."""
        hidden = torch.tanh(self.slot(buffer) + self.query(s).unsqueeze(1))
        content = torch.softmax(at_least_fp32(hidden @ self.vector.to(hidden.dtype)), dim=-1)
        g = torch.sigmoid(at_least_fp32(self.gate(s)))
        return g * before + (1 - g) * content


class MemDecState(NamedTuple):
    """cell: the controller's, whose h is s_{i-1} [N, D]; buffer: M_{i-1} [N, n, m]; read, write: the weights of the
    last reading and writing [N, n]; attention: what attention carries; masks: [N, 2, D], of what W_s and the cell feed
    back; None without dropout."""

    cell: CellState
    buffer: Tensor
    read: Tensor
    write: Tensor
    attention: AttentionState
    masks: Tensor | None = None


class MemDec(Decoder):
    """The decoder's state is widened by a buffer M of n cells, which it reads and writes once a word (section 3):

    s~_i = tanh(W_s s_{i-1} + W_y E y_{i-1} + b);  r_i = sum_k w^R_i(k) M_{i-1}(k);  c_i = ATT(s~_i);
    s_i = GRU([c_i; r_i], s~_i);
    erase, then add:  M_i(k) = M_{i-1}(k) (1 - w^W_i(k) sigma(W_ers s_i)) + w^W_i(k) sigma(W_add s_i).

    The read weights are addressed with s~_i, the write weights with s_i, each by its own `Head`. All weights begin
    even, 1/n. Cells must begin different to be told apart: M_0(k) = tanh(W_k mean_j h_j + b_k), each by parameters of
    its own, in place of noise around one vector, so that a translation depends on nothing random.
    """

    name = "memory"
    attends = True

    def __init__(self, options: MemDecOptions, model: ModelConfig, encoder: Encoder) -> None:
        super().__init__(options, model, encoder)
        size, annotation = options.size, encoder.annotation_size
        self.slots, self.slot_size = options.slots, options.slot_size
        self.attention = make_attention(model, encoder)
        self.word = Linear(model.embedding, size)
        """W_y and b."""
        self.recurrent = Linear(size, size, bias=False, role="recurrent")
        """W_s."""
        self.cell = CELLS[options.cell](annotation + self.slot_size, size)
        self.reader = Head(size, self.slot_size)
        self.writer = Head(size, self.slot_size)
        self.erase = Linear(size, self.slot_size, bias=False)
        """W_ers."""
        self.add = Linear(size, self.slot_size, bias=False)
        """W_add."""
        self.initial = Linear(encoder.summary_size, size)
        self.first_buffer = Linear(annotation, self.slots * self.slot_size)
        """W_k and b_k, one below the other."""
        self.deep_output = DeepOutput(size, model.embedding, annotation, options.maxout)

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> MemDecState:
        s_0 = first_state(self.initial, memory.summary)
        buffer = first_state(self.first_buffer, mean_annotation(memory)).unflatten(1, (self.slots, self.slot_size))
        even = buffer.new_full(buffer.shape[:2], 1 / self.slots)
        attention = self.attention.start(memory, draws, steps)
        masks = sequence_mask(draws, self.state_dropout, s_0, 2, s_0.shape[1])
        return MemDecState(self.cell.start(s_0), buffer, even, even, attention, masks)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        x: Tensor = self.word(y_prev)
        return x

    def step(self, x: Float[Tensor, "N G"], state: MemDecState, memory: Memory) -> tuple[MemDecState, Reading]:
        keeps = each_mask(state.masks)
        fed_back = self.recurrent(kept(state.cell.h, next(keeps)))
        between = at_least_fp32(torch.tanh(x + fed_back))
        read = self.reader(state.buffer, between, state.read)
        r = torch.einsum("nk,nkm->nm", read, state.buffer)
        attended, attention = self.attention.step(between, state.attention, memory)
        gates = self.cell.inputs(torch.cat([attended.context.to(r.dtype), r], dim=-1))
        cell = self.cell.step(gates, state.cell._replace(h=between), next(keeps))
        write = self.writer(state.buffer, cell.h, state.write)
        buffer = self._written(state.buffer, cell.h, write.unsqueeze(2))
        return MemDecState(cell, buffer, read, write, attention, state.masks), Reading.of(cell.h, attended)

    def _written(self, buffer: Tensor, s: Tensor, weights: Tensor) -> Tensor:
        """The buffer after erasing and adding; weights: [N, n, 1]."""
        erased = torch.sigmoid(at_least_fp32(self.erase(s))).unsqueeze(1)
        added = torch.sigmoid(at_least_fp32(self.add(s))).unsqueeze(1)
        return buffer * (1 - weights * erased) + weights * added
