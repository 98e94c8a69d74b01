"""MEMDEC, a decoder with an external memory that it reads and writes (Wang et al. 2016), and a variant of it:

| name   | energies of the cells     | weights of writing       | M_0(k)                              |
|--------|---------------------------|--------------------------|-------------------------------------|
| memdec | v^T A M(k)                | those of reading         | sigma(W mean_j h_j) + noise(k)      |
| memory | v^T tanh(A M(k) + B s)    | a head of their own      | tanh(W_k mean_j h_j + b_k)          |
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import MemDecOptions, SeparateHeadsOptions
from rnnsearch.config.registry import implements
from rnnsearch.models.attention.attention import AttentionState
from rnnsearch.models.batch_rng import BatchRng, dropout_mask, masks_per_cell
from rnnsearch.models.cells import CELLS, apply_mask
from rnnsearch.models.decoders.decoder import Decoder, Reading, initial_state, make_attention, mean_annotation
from rnnsearch.models.decoders.readouts import DeepOutput
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.layers import Linear, parameter
from rnnsearch.models.memory import CellState, Memory
from rnnsearch.utils.tensors import at_least_fp32


class BufferHead(nn.Module):
    """Where a controller reads or writes in a buffer of n cells of m numbers (Wang et al. 2016, section 3):

    w~(k) = softmax_k v^T tanh(A M(k) + B s),  g = sigma(w_g^T s + b),  w(k) = g w_before(k) + (1 - g) w~(k).
    """

    def __init__(self, controller: int, slot: int) -> None:
        super().__init__()
        self.slot = Linear(slot, slot, bias=False)
        """A."""
        self.query: Linear | None = Linear(controller, slot, bias=False)
        """B."""
        self.vector = parameter("weight", slot)
        """v."""
        self.gate = Linear(controller, 1)
        """w_g and b."""

    def forward(
        self, buffer: Float[Tensor, "N n m"], s: Float[Tensor, "N D"], before: Float[Tensor, "N n"]
    ) -> Float[Tensor, "N n"]:
        """The weights of the buffer's cells; they sum to 1."""
        hidden = self.hidden(buffer, s)
        content = torch.softmax(at_least_fp32(hidden @ self.vector.to(hidden.dtype)), dim=-1)
        g = torch.sigmoid(at_least_fp32(self.gate(s)))
        return g * before + (1 - g) * content

    def hidden(self, buffer: Float[Tensor, "N n m"], s: Float[Tensor, "N D"]) -> Float[Tensor, "N n m"]:
        """What v reads."""
        assert self.query is not None
        return torch.tanh(self.slot(buffer) + self.query(s).unsqueeze(1))


class LinearHead(BufferHead):
    """The same without the tanh, w~(k) = softmax_k v^T (A M(k) + B s), as the paper has it. B s is then the same for
    all cells, so that the softmax does not see it, and left out: s decides by g whether the weights move at all."""

    def __init__(self, controller: int, slot: int) -> None:
        super().__init__(controller, slot)
        self.query = None

    def hidden(self, buffer: Float[Tensor, "N n m"], s: Float[Tensor, "N D"]) -> Float[Tensor, "N n m"]:
        found: Tensor = self.slot(buffer)
        return found


class MemDecState(NamedTuple):
    """cell: the controller's, whose h is s_{i-1} [N, D]; buffer: M_{i-1} [N, n, m]; read, write: the weights of the
    last reading and writing [N, n]; attention: what attention carries; masks: [N, 2, D], of what W_s and the cell feed
    back; None without dropout."""

    cell: CellState
    buffer: Tensor
    read_weights: Tensor
    write_weights: Tensor
    attention: AttentionState
    masks: Tensor | None = None


class ExternalMemoryDecoder(Decoder):
    """The decoder's state is widened by a buffer M of n cells, which it reads and writes once a word (section 3):

    s~_i = tanh(W_s s_{i-1} + W_y E y_{i-1} + b);  r_i = sum_k w^R_i(k) M_{i-1}(k);  c_i = ATT(s~_i);
    s_i = GRU([c_i; r_i], s~_i);
    erase, then add:  M_i(k) = M_{i-1}(k) (1 - w^W_i(k) sigma(W_ers s_i)) + w^W_i(k) sigma(W_add s_i).

    The read weights are addressed with s~_i by a `Head`. All weights begin even, 1/n.
    """

    readout_attribute = "deep_output"
    reader: BufferHead
    first_buffer: Linear

    def __init__(self, options: MemDecOptions | SeparateHeadsOptions, model: ModelConfig, encoder: Encoder) -> None:
        super().__init__(options, model, encoder)
        size, annotation = options.size, encoder.annotation_size
        self.slots, self.slot_size = options.slots, options.slot_size
        self.attention = make_attention(model, encoder, size)
        self.word = Linear(model.embedding, size)
        """W_y and b."""
        self.recurrent = Linear(size, size, bias=False, role="recurrent")
        """W_s."""
        self.cell = CELLS[options.cell](annotation + self.slot_size, size)
        self.make_heads(size)
        self.erase = Linear(size, self.slot_size, bias=False)
        """W_ers."""
        self.add = Linear(size, self.slot_size, bias=False)
        """W_add."""
        self.initial = Linear(encoder.summary_size, size)
        self.make_buffer(annotation)
        self.deep_output = DeepOutput(size, model.embedding, annotation, options.maxout)

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> MemDecState:
        s_0 = initial_state(self.initial, memory.summary)
        buffer = self.buffer(mean_annotation(memory))
        even = buffer.new_full((memory.mask.shape[0], self.slots), 1 / self.slots)
        attention = self.attention.start(memory, rng, steps)
        masks = dropout_mask(rng, self.state_dropout, s_0, 2, s_0.shape[1])
        return MemDecState(self.cell.start(s_0), buffer, even, even, attention, masks)

    @abstractmethod
    def make_heads(self, size: int) -> None:
        """Make the reader, and what else addresses, for states of so many numbers."""

    @abstractmethod
    def make_buffer(self, annotation: int) -> None:
        """Make what M_0 is made by, of annotations of so many numbers."""

    @abstractmethod
    def buffer(self, mean: Float[Tensor, "N H"]) -> Float[Tensor, "N n m"]:
        """M_0, of the annotations' mean."""

    @abstractmethod
    def write_weights(self, cell: CellState, read: Tensor, state: MemDecState) -> Float[Tensor, "N n"]:
        """w^W_i, of the state before and of what was read."""

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        x: Tensor = self.word(y_prev)
        return x

    def step(self, x: Float[Tensor, "N G"], state: MemDecState, memory: Memory) -> tuple[MemDecState, Reading]:
        keeps = masks_per_cell(state.masks)
        fed_back = self.recurrent(apply_mask(state.cell.h, next(keeps)))
        between = at_least_fp32(torch.tanh(x + fed_back))
        read = self.reader(state.buffer, between, state.read_weights)
        r = torch.einsum("nk,nkm->nm", read, state.buffer)
        attended, attention = self.attention.step(between, state.attention, memory, x)
        gates = self.cell.inputs(torch.cat([attended.context.to(r.dtype), r], dim=-1))
        cell = self.cell.step(gates, state.cell._replace(h=between), next(keeps))
        write = self.write_weights(cell, read, state)
        buffer = self._written(state.buffer, cell.h, write.unsqueeze(2))
        return MemDecState(cell, buffer, read, write, attention, state.masks), Reading.from_attention(cell.h, attended)

    def _written(self, buffer: Tensor, s: Tensor, weights: Tensor) -> Tensor:
        """The buffer after erasing and adding; weights: [N, n, 1]."""
        erased = torch.sigmoid(at_least_fp32(self.erase(s))).unsqueeze(1)
        added = torch.sigmoid(at_least_fp32(self.add(s))).unsqueeze(1)
        return buffer * (1 - weights * erased) + weights * added


@implements(SeparateHeadsOptions)
class SeparateHeads(ExternalMemoryDecoder):
    """The variant: the write weights are addressed with s_i by a head of their own. Cells are told apart by beginning
    each by parameters of its own, M_0(k) = tanh(W_k mean_j h_j + b_k)."""

    def make_heads(self, size: int) -> None:
        self.reader = BufferHead(size, self.slot_size)
        self.writer = BufferHead(size, self.slot_size)

    def make_buffer(self, annotation: int) -> None:
        self.first_buffer = Linear(annotation, self.slots * self.slot_size)
        """W_k and b_k, one below the other."""

    def buffer(self, mean: Float[Tensor, "N H"]) -> Float[Tensor, "N n m"]:
        cells: Tensor = initial_state(self.first_buffer, mean).unflatten(1, (self.slots, self.slot_size))
        return cells

    def write_weights(self, cell: CellState, read: Tensor, state: MemDecState) -> Float[Tensor, "N n"]:
        found: Tensor = self.writer(state.buffer, cell.h, state.write_weights)
        return found


@implements(MemDecOptions)
class MemDec(ExternalMemoryDecoder):
    """As Wang et al. have it (section 3): one weighting for reading and writing, w^W_i = w^R_i, without a tanh; all
    cells begin at one vector of the annotations' mean, plus noise to be told apart, of N(0, 0.1). (Their division by
    the number of words stands behind sigma; here, as in PaddlePaddle's published version, within.) The noise is drawn
    once, with the parameters, and not learned, so that a translation depends on nothing random."""

    def make_heads(self, size: int) -> None:
        self.reader = LinearHead(size, self.slot_size)

    def make_buffer(self, annotation: int) -> None:
        self.first_buffer = Linear(annotation, self.slot_size, bias=False)
        """W."""
        self.noise = parameter("noise", self.slots, self.slot_size).requires_grad_(False)

    def buffer(self, mean: Float[Tensor, "N H"]) -> Float[Tensor, "N n m"]:
        begin = at_least_fp32(torch.sigmoid(self.first_buffer(mean))).unsqueeze(1)
        return begin + self.noise

    def write_weights(self, cell: CellState, read: Tensor, state: MemDecState) -> Float[Tensor, "N n"]:
        return read
