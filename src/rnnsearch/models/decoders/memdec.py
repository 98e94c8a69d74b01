"""MEMDEC, a decoder that reads and writes an external memory (Wang et al. 2016), and a variant of it:

| name   | energies of the slots     | write weights            | M_0(k)                              |
|--------|---------------------------|--------------------------|-------------------------------------|
| memdec | v^T A M(k)                | equal to read weights    | sigma(W mean_j h_j) + noise(k)      |
| memory | v^T tanh(A M(k) + B s)    | a separate head          | tanh(W_k mean_j h_j + b_k)          |

The external memory is called buffer here, to distinguish it from the `Memory` of the source sentence.

It has no native step.

Axes: those of `decoder.py`; n slots of size m.
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
from rnnsearch.models.encoders import EncoderSizes
from rnnsearch.models.layers import Linear, parameter
from rnnsearch.models.memory import CellState, Memory
from rnnsearch.utils.tensors import at_least_fp32


class BufferHead(nn.Module):
    """Weights over the n slots of a buffer, each of size m, to read from or write to (Wang et al. 2016, section 3).

    w~(k) = softmax_k v^T tanh(A M(k) + B s),  g = sigma(w_g^T s + b),  w(k) = g w_previous(k) + (1 - g) w~(k).
    """

    def __init__(self, controller: int, slot: int) -> None:
        super().__init__()
        self.slot = Linear(slot, slot, bias=False)  # A
        self.query: Linear | None = Linear(controller, slot, bias=False)  # B
        self.vector = parameter("weight", slot)  # v
        self.gate = Linear(controller, 1)  # w_g and b

    def forward(
        self, buffer: Float[Tensor, "N n m"], s: Float[Tensor, "N D"], previous: Float[Tensor, "N n"]
    ) -> Float[Tensor, "N n"]:
        """Return the weights of the slots, which sum to 1."""
        hidden = self.hidden(buffer, s)  # [N, n, m]
        # In fp32: weights are carried from position to position, and in bf16 their sum would drift away from 1.
        content = torch.softmax(at_least_fp32(hidden @ self.vector.to(hidden.dtype)), dim=-1)  # w~ [N, n]
        g = torch.sigmoid(at_least_fp32(self.gate(s)))  # [N, 1]
        return g * previous + (1 - g) * content

    def hidden(self, buffer: Float[Tensor, "N n m"], s: Float[Tensor, "N D"]) -> Float[Tensor, "N n m"]:
        """Return the vectors that v is multiplied with."""
        assert self.query is not None
        return torch.tanh(self.slot(buffer) + self.query(s).unsqueeze(1))


class LinearHead(BufferHead):
    """A head without the tanh, w~(k) = softmax_k v^T (A M(k) + B s), as in the paper.

    B s is then the same for all slots and cancels out in the softmax, so it is omitted: s only decides, by g, how much
    the weights move.
    """

    def __init__(self, controller: int, slot: int) -> None:
        super().__init__(controller, slot)
        self.query = None

    def hidden(self, buffer: Float[Tensor, "N n m"], s: Float[Tensor, "N D"]) -> Float[Tensor, "N n m"]:
        projected: Tensor = self.slot(buffer)
        return projected


class MemDecState(NamedTuple):
    """The state of MEMDEC.

    cell: the controller's state, whose h is s_{i-1} [N, D].
    buffer: M_{i-1} [N, n, m].
    read_weights, write_weights: of the previous position, [N, n] each.
    masks: [N, 2, D], the dropout masks of W_s and of the cell's recurrent products; None without dropout.
    """

    cell: CellState
    buffer: Tensor
    read_weights: Tensor
    write_weights: Tensor
    attention: AttentionState
    masks: Tensor | None = None


class ExternalMemoryDecoder(Decoder):
    """A decoder whose state includes a buffer M of n slots, which it reads and writes once per word (section 3).

    s~_i = tanh(W_s s_{i-1} + W_y E y_{i-1} + b);  r_i = sum_k w^R_i(k) M_{i-1}(k);  c_i = ATT(s~_i);
    s_i = GRU([c_i; r_i], s~_i);
    erase, then add:  M_i(k) = M_{i-1}(k) (1 - w^W_i(k) sigma(W_ers s_i)) + w^W_i(k) sigma(W_add s_i).

    The read weights come from a `BufferHead` with s~_i. All weights start at 1/n.
    """

    readout_attribute = "deep_output"
    reader: BufferHead
    first_buffer: Linear

    def __init__(
        self, options: MemDecOptions | SeparateHeadsOptions, model: ModelConfig, encoder: EncoderSizes
    ) -> None:
        super().__init__(options, model, encoder)
        size, annotation = options.size, encoder.annotation_size
        self.slots, self.slot_size = options.slots, options.slot_size
        self.attention = make_attention(model, encoder, size)
        self.word = Linear(model.embedding, size)  # W_y and b
        self.recurrent = Linear(size, size, bias=False, role="recurrent")  # W_s
        self.cell = CELLS[options.cell](annotation + self.slot_size, size)
        self.make_heads(size)
        self.erase = Linear(size, self.slot_size, bias=False)  # W_ers
        self.add = Linear(size, self.slot_size, bias=False)  # W_add
        self.initial = Linear(encoder.summary_size, size)
        self.make_buffer(annotation)
        self.deep_output = DeepOutput(size, model.embedding, annotation, options.maxout)

    @abstractmethod
    def make_heads(self, size: int) -> None:
        """Create `reader`, and another head if there is one, for states of this size."""

    @abstractmethod
    def make_buffer(self, annotation: int) -> None:
        """Create the parameters of M_0, for annotations of this size."""

    @abstractmethod
    def buffer(self, mean: Float[Tensor, "N H"]) -> Float[Tensor, "N n m"]:
        """Return M_0, given the mean of the annotations."""

    @abstractmethod
    def write_weights(self, cell: CellState, read_weights: Tensor, state: MemDecState) -> Float[Tensor, "N n"]:
        """Return w^W_i.

        Args:
            cell: The controller's new state.
            read_weights: w^R_i.
            state: The decoder's previous state.
        """

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> MemDecState:
        s_0 = initial_state(self.initial, memory.summary)
        buffer = self.buffer(mean_annotation(memory))
        uniform = buffer.new_full((memory.mask.shape[0], self.slots), 1 / self.slots)
        attention = self.attention.start(memory, rng, steps)
        masks = dropout_mask(rng, self.state_dropout, s_0, 2, s_0.shape[1])
        return MemDecState(self.cell.start(s_0), buffer, uniform, uniform, attention, masks)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        x: Tensor = self.word(y_prev)
        return x

    def step(self, x: Float[Tensor, "N G"], state: MemDecState, memory: Memory) -> tuple[MemDecState, Reading]:
        masks = masks_per_cell(state.masks)
        recurrent = self.recurrent(apply_mask(state.cell.h, next(masks)))
        s_tilde = at_least_fp32(torch.tanh(x + recurrent))  # s~_i [N, D]
        read_weights = self.reader(state.buffer, s_tilde, state.read_weights)  # w^R_i [N, n]
        r = torch.einsum("nk,nkm->nm", read_weights, state.buffer)  # [N, m]
        output, attention = self.attention.step(s_tilde, state.attention, memory, x)
        gates = self.cell.inputs(torch.cat([output.context.to(r.dtype), r], dim=-1))
        # The cell continues from s~_i; if it has a memory c, that is the one of the previous position.
        cell = self.cell.step(gates, state.cell._replace(h=s_tilde), next(masks))
        write_weights = self.write_weights(cell, read_weights, state)  # w^W_i [N, n]
        buffer = self._write(state.buffer, cell.h, write_weights.unsqueeze(2))  # M_i [N, n, m]
        new = MemDecState(cell, buffer, read_weights, write_weights, attention, state.masks)
        return new, Reading.from_attention(cell.h, output)

    def _write(self, buffer: Tensor, s: Tensor, weights: Float[Tensor, "N n 1"]) -> Float[Tensor, "N n m"]:
        """Return the buffer after erasing and adding."""
        erased = torch.sigmoid(at_least_fp32(self.erase(s))).unsqueeze(1)  # [N, 1, m]
        added = torch.sigmoid(at_least_fp32(self.add(s))).unsqueeze(1)
        return buffer * (1 - weights * erased) + weights * added


@implements(SeparateHeadsOptions)
class SeparateHeads(ExternalMemoryDecoder):
    """The variant `memory`: the write weights come from a separate head, with s_i.

    Slots differ because each starts from its own parameters, M_0(k) = tanh(W_k mean_j h_j + b_k).
    """

    def make_heads(self, size: int) -> None:
        self.reader = BufferHead(size, self.slot_size)
        self.writer = BufferHead(size, self.slot_size)

    def make_buffer(self, annotation: int) -> None:
        self.first_buffer = Linear(annotation, self.slots * self.slot_size)  # W_k and b_k, stacked

    def buffer(self, mean: Float[Tensor, "N H"]) -> Float[Tensor, "N n m"]:
        slots: Tensor = initial_state(self.first_buffer, mean).unflatten(1, (self.slots, self.slot_size))
        return slots

    def write_weights(self, cell: CellState, read_weights: Tensor, state: MemDecState) -> Float[Tensor, "N n"]:
        weights: Tensor = self.writer(state.buffer, cell.h, state.write_weights)
        return weights


@implements(MemDecOptions)
class MemDec(ExternalMemoryDecoder):
    """MEMDEC as in Wang et al. (section 3): the same weights to read and write, w^W_i = w^R_i, without a tanh.

    All slots start from the same function of the mean annotation, plus noise from N(0, 0.1) to make them differ. The
    noise is sampled once, with the parameters, and not learned, so that translations are deterministic. (The paper
    divides by the number of words outside sigma; here, as in PaddlePaddle's published version, it is inside.)
    """

    def make_heads(self, size: int) -> None:
        self.reader = LinearHead(size, self.slot_size)

    def make_buffer(self, annotation: int) -> None:
        self.first_buffer = Linear(annotation, self.slot_size, bias=False)  # W
        self.noise = parameter("noise", self.slots, self.slot_size).requires_grad_(False)

    def buffer(self, mean: Float[Tensor, "N H"]) -> Float[Tensor, "N n m"]:
        slot = at_least_fp32(torch.sigmoid(self.first_buffer(mean))).unsqueeze(1)  # [N, 1, m]
        return slot + self.noise

    def write_weights(self, cell: CellState, read_weights: Tensor, state: MemDecState) -> Float[Tensor, "N n"]:
        return read_weights
