"""Conditional recurrences: a transition that reads the word, attention, then a transition that reads the context.

The conditional GRU is that of Nematus (Sennrich et al. 2017, "Nematus: a toolkit for neural machine translation"); deep
transitions and BiDeep are those of Miceli Barone et al. 2017, "Deep architectures for NMT".

`accel/decoder_steps.py` writes their steps for native code.

Axes: those of `decoder.py`, and C cells, each with a dropout mask; in `UpperLayer`, I is the size of [w; c_i].
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import BiDeepOptions, ConditionalGRUOptions, DeepTransitionOptions
from rnnsearch.config.registry import implements
from rnnsearch.models.attention.attention import AttentionOutput, AttentionState
from rnnsearch.models.batch_rng import BatchRng, dropout_mask, masks_per_cell
from rnnsearch.models.cells import CELLS, Cell
from rnnsearch.models.decoders.decoder import Decoder, Reading, initial_state, make_attention, mean_annotation
from rnnsearch.models.decoders.readouts import TanhOutput
from rnnsearch.models.encoders import EncoderSizes
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import CellState, Encoded, Memory

ConditionalOptions = ConditionalGRUOptions | DeepTransitionOptions | BiDeepOptions
RecurrentMasks = Iterator[Tensor | None]
"""The dropout masks of all cells in order; each cell takes the next one (see `masks_per_cell`)."""


class Transitions(nn.Module):
    """s_k = GRU_k(0, s_{k-1}), k = 1..n: cells that read only the previous state.

    Miceli Barone et al. 2017, section 3.1.
    """

    def __init__(self, cell_type: type[Cell], size: int, count: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cell_type(None, size) for _ in range(count))

    @property
    def layers(self) -> list[Cell]:
        """The cells, in the order of the transitions."""
        return [cast(Cell, cell) for cell in self.cells]

    def forward(self, state: CellState, masks: RecurrentMasks) -> CellState:
        """Return the state after all transitions."""
        no_input = state.h.new_empty(state.h.shape[0], 0)  # [N, 0], for `BiasOnly`
        for cell in self.layers:
            state = cell.step(cell.inputs(no_input), state, next(masks))
        return state


class ConditionalRecurrence(nn.Module):
    """s_1 = GRU_1(E y_{i-1}, s_{i-1}),  c_i = ATT(s_1),  s_2 = GRU_2(c_i, s_1),  and `transitions` without inputs.

    It has 2 + transitions cells, and as many dropout masks.
    """

    def __init__(self, options: ConditionalOptions, model: ModelConfig, encoder: EncoderSizes) -> None:
        super().__init__()
        cell_type = CELLS[options.cell]
        self.attention = make_attention(model, encoder, cell_type.blocks * options.size)
        self.word = cell_type(model.embedding, options.size)  # GRU_1
        self.context = cell_type(encoder.annotation_size, options.size)  # GRU_2
        self.transitions = Transitions(cell_type, options.size, options.transitions)
        self.num_cells = 2 + options.transitions

    def step(
        self,
        x: Float[Tensor, "N G"],
        state: CellState,
        attention: AttentionState,
        memory: Memory,
        masks: RecurrentMasks,
    ) -> tuple[CellState, AttentionOutput, AttentionState]:
        """Compute one target position.

        Args:
            x: Gate inputs of the word, for GRU_1.

        Returns:
            The new cell state, attention's output, and attention's new state.
        """
        # Masks are taken in the order of the cells: word, context, transitions.
        s_1 = self.word.step(x, state, next(masks))
        output, attention = self.attention.step(s_1.h, attention, memory, x)
        s_2 = self.context.step(self.context.inputs(output.context), s_1, next(masks))
        return self.transitions(s_2, masks), output, attention


class ConditionalDecoder(Decoder):
    """A decoder whose first layer is a `ConditionalRecurrence`."""

    readout_attribute = "output"
    output: TanhOutput

    @property
    @abstractmethod
    def recurrence(self) -> ConditionalRecurrence:
        """The recurrence that reads words and attends."""

    def remember(self, encoded: Encoded) -> Memory:
        memory: Memory = self.recurrence.attention.on(encoded)
        return memory

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.recurrence.word.inputs(y_prev)


class ConditionalState(NamedTuple):
    """The state of a conditional GRU.

    cell: the state after the last transition, whose h is s_{i-1} [N, D].
    masks: [N, C, D], the dropout masks of the C cells in recurrent products; None without dropout.
    """

    cell: CellState
    attention: AttentionState
    masks: Tensor | None = None


@implements(ConditionalGRUOptions)
class ConditionalGRU(ConditionalDecoder):
    """Two transitions per target word, with attention between them (Nematus, section 3, "Decoder").

    s_0 = tanh(W_init mean_j h_j);  s'_i = GRU_1(E y_{i-1}, s_{i-1});  c_i = ATT(s'_i);  s_i = GRU_2(c_i, s'_i);
    t_i = tanh(W_t1 s_i + W_t2 E y_{i-1} + W_t3 c_i), so the output reads the NEW state.

    The GRU of Nematus is `torch-gru` (the reset applies to the product); any other cell can replace it.
    """

    def __init__(
        self, options: ConditionalGRUOptions | DeepTransitionOptions, model: ModelConfig, encoder: EncoderSizes
    ) -> None:
        super().__init__(options, model, encoder)
        self.cell = ConditionalRecurrence(options, model, encoder)
        self.initial = Linear(encoder.annotation_size, options.size)  # W_init
        self.output = TanhOutput(options.size, model.embedding, encoder.annotation_size, options.readout)

    @property
    def recurrence(self) -> ConditionalRecurrence:
        return self.cell

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> ConditionalState:
        s_0 = initial_state(self.initial, mean_annotation(memory))  # [B, D]
        masks = dropout_mask(rng, self.state_dropout, s_0, self.cell.num_cells, s_0.shape[1])
        return ConditionalState(self.cell.word.start(s_0), self.cell.attention.start(memory, rng, steps), masks)

    def step(
        self, x: Float[Tensor, "N G"], state: ConditionalState, memory: Memory
    ) -> tuple[ConditionalState, Reading]:
        masks = masks_per_cell(state.masks)
        cell, output, attention = self.cell.step(x, state.cell, state.attention, memory, masks)
        return ConditionalState(cell, attention, state.masks), Reading.from_attention(cell.h, output)


@implements(DeepTransitionOptions)
class DeepTransition(ConditionalGRU):
    """`cgru` followed by `transitions` that read only the state (Miceli Barone et al., section 3.1).

    s_{i,1} = GRU_1(E y_{i-1}, s_{i-1,L});  s_{i,2} = GRU_2(ATT(s_{i,1}), s_{i,1});  s_{i,k} = GRU_k(0, s_{i,k-1}),
    k = 3..L, L = 2 + transitions; the output reads s_{i,L}.
    """


class UpperLayer(nn.Module):
    """A layer above the first: s_1 = GRU_1([w; c_i], s_{i-1,L}),  s_k = GRU_k(0, s_{k-1}), k = 2..L."""

    def __init__(self, options: BiDeepOptions, annotation: int) -> None:
        super().__init__()
        self.cell = CELLS[options.cell](options.size + annotation, options.size)
        self.transitions = Transitions(CELLS[options.cell], options.size, options.transitions)
        self.num_cells = 1 + options.transitions

    def step(self, inputs: Float[Tensor, "N I"], state: CellState, masks: RecurrentMasks) -> CellState:
        """Return the state after one target position; `inputs` is [w; c_i]."""
        s_1 = self.cell.step(self.cell.inputs(inputs), state, next(masks))
        s_L: CellState = self.transitions(s_1, masks)
        return s_L


class BiDeepState(NamedTuple):
    """The state of BiDeep.

    cells: each layer's state after its last transition.
    masks: [N, C, D], the dropout masks of all layers' C cells in recurrent products; None without dropout.
    layer_masks: [N, I, layers - 1, D], the dropout masks between layers at each position; None without dropout.
    position: index of the next target position, for `layer_masks`.
    """

    cells: tuple[CellState, ...]
    attention: AttentionState
    masks: Tensor | None = None
    layer_masks: Tensor | None = None
    position: int = 0


@implements(BiDeepOptions)
class BiDeep(ConditionalDecoder):
    """A decoder that is deep in its transitions and in its layers (Miceli Barone et al., section 3.3).

    The first layer is that of `deep-transition`; each layer above reads the one below and the context,
    [w_{i,r-1}; c_i], and has separate `transitions`. The output of a layer is w_{i,r} = s_{i,r,L}, plus w_{i,r-1}
    from layer `residual_from` on. The tanh readout reads the top layer. Every layer starts from a tanh layer over
    mean_j h_j.
    """

    def __init__(self, options: BiDeepOptions, model: ModelConfig, encoder: EncoderSizes) -> None:
        super().__init__(options, model, encoder)
        self.layers = options.layers
        self.first = ConditionalRecurrence(options, model, encoder)
        self.upper = nn.ModuleList(UpperLayer(options, encoder.annotation_size) for _ in range(options.layers - 1))
        self.initial = Linear(encoder.annotation_size, options.layers * options.size)
        self.output = TanhOutput(options.size, model.embedding, encoder.annotation_size, options.readout)
        self.first_residual = options.residual_from or options.layers + 1
        self.layers_dropout = 0.0 if options.layers == 1 else model.dropout.layers

    @property
    def recurrence(self) -> ConditionalRecurrence:
        return self.first

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> BiDeepState:
        s_0 = initial_state(self.initial, mean_annotation(memory)).chunk(self.layers, dim=-1)  # [B, D] per layer
        # All layers have cells of one type, so that `start` of any of them serves.
        cells = tuple(self.first.word.start(s) for s in s_0)
        size = s_0[0].shape[1]
        num_cells = self.first.num_cells + sum(layer.num_cells for layer in self._upper_layers())
        masks = dropout_mask(rng, self.state_dropout, s_0[0], num_cells, size)
        layer_masks = dropout_mask(rng, self.layers_dropout, s_0[0], steps, self.layers - 1, size)
        return BiDeepState(cells, self.first.attention.start(memory, rng, steps), masks, layer_masks)

    def step(self, x: Float[Tensor, "N G"], state: BiDeepState, memory: Memory) -> tuple[BiDeepState, Reading]:
        masks = masks_per_cell(state.masks)
        bottom, output, attention = self.first.step(x, state.cells[0], state.attention, memory, masks)
        cells = [bottom]
        w = bottom.h  # [N, D]
        for r, (layer, old) in enumerate(zip(self._upper_layers(), state.cells[1:], strict=True), start=2):
            # Layers are counted from 1, and the first mask is between layers 1 and 2.
            below = w if state.layer_masks is None else w * state.layer_masks[:, state.position, r - 2]
            new = layer.step(torch.cat([below, output.context.to(below.dtype)], dim=-1), old, masks)
            w = new.h + w if r >= self.first_residual else new.h
            cells.append(new)
        state = BiDeepState(tuple(cells), attention, state.masks, state.layer_masks, state.position + 1)
        return state, Reading.from_attention(w, output)

    def _upper_layers(self) -> list[UpperLayer]:
        return [cast(UpperLayer, layer) for layer in self.upper]
