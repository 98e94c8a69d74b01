"""Conditional recurrences: a transition with the word, attention, a transition with the context, and more.

The conditional GRU is that of Nematus (Sennrich et al. 2017, "Nematus: a toolkit for neural machine translation"); deep
transitions and BiDeep are those of Miceli Barone et al. 2017, "Deep architectures for NMT".
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
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import CellState, Encoded, Memory

Options = ConditionalGRUOptions | DeepTransitionOptions | BiDeepOptions
RecurrentMasks = Iterator[Tensor | None]
"""The dropout masks on what each cell feeds back, from which a cell takes its own; see `each_mask`."""


class Transitions(nn.Module):
    """s_k = GRU_k(0, s_{k-1}), k = 1..n: cells that read nothing but the state before them
    (Miceli Barone et al. 2017, section 3.1)."""

    def __init__(self, make_cell: type[Cell], size: int, count: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(make_cell(None, size) for _ in range(count))

    @property
    def layers(self) -> list[Cell]:
        """The cells, in the order of the transitions."""
        return [cast(Cell, cell) for cell in self.cells]

    def forward(self, state: CellState, keeps: RecurrentMasks) -> CellState:
        """The state after all of them."""
        nothing = state.h.new_empty(state.h.shape[0], 0)
        for cell in self.layers:
            state = cell.step(cell.inputs(nothing), state, next(keeps))
        return state


class ConditionalRecurrence(nn.Module):
    """s_1 = GRU_1(E y_{i-1}, s_{i-1}),  c_i = ATT(s_1),  s_2 = GRU_2(c_i, s_1),  and `transitions` without inputs.

    It has 2 + transitions cells, and as many dropout masks on what they feed back.
    """

    def __init__(self, options: Options, model: ModelConfig, encoder: Encoder) -> None:
        super().__init__()
        make_cell = CELLS[options.cell]
        self.attention = make_attention(model, encoder, make_cell.blocks * options.size)
        self.word = make_cell(model.embedding, options.size)
        """GRU_1."""
        self.context = make_cell(encoder.annotation_size, options.size)
        """GRU_2."""
        self.transitions = Transitions(make_cell, options.size, options.transitions)
        self.num_cells = 2 + options.transitions

    def step(
        self,
        x: Float[Tensor, "N G"],
        state: CellState,
        attention: AttentionState,
        memory: Memory,
        keeps: RecurrentMasks,
    ) -> tuple[CellState, AttentionOutput, AttentionState]:
        """One target position, from the word's share x of GRU_1's gates."""
        between = self.word.step(x, state, next(keeps))
        attended, attention = self.attention.step(between.h, attention, memory, x)
        new = self.context.step(self.context.inputs(attended.context), between, next(keeps))
        return self.transitions(new, keeps), attended, attention


class ConditionalDecoder(Decoder):
    """What reads and feeds a conditional recurrence."""

    readout_attribute = "output"
    output: TanhOutput

    @property
    @abstractmethod
    def recurrence(self) -> ConditionalRecurrence:
        """The recurrence that reads words and asks attention."""

    def remember(self, encoded: Encoded) -> Memory:
        return self.recurrence.attention.on(encoded)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.recurrence.word.inputs(y_prev)


class ConditionalState(NamedTuple):
    """cell: the state after the last transition, whose h is s_{i-1} [N, D]; attention: what attention carries;
    masks: [N, C, D], of what each of the C cells feeds back; None without dropout."""

    cell: CellState
    attention: AttentionState
    masks: Tensor | None = None


@implements(ConditionalGRUOptions)
class ConditionalGRU(ConditionalDecoder):
    """Two transitions a target word, with attention between them (Nematus, section 3, "Decoder"):

    s_0 = tanh(W_init mean_j h_j);  s'_i = GRU_1(E y_{i-1}, s_{i-1});  c_i = ATT(s'_i);  s_i = GRU_2(c_i, s'_i);
    t_i = tanh(W_t1 s_i + W_t2 E y_{i-1} + W_t3 c_i), so the output reads the NEW state. Nematus's GRU is `torch-gru`
    (the reset acts on the product); any other cell can stand in its place.
    """

    def __init__(
        self, options: ConditionalGRUOptions | DeepTransitionOptions, model: ModelConfig, encoder: Encoder
    ) -> None:
        super().__init__(options, model, encoder)
        self.cell = ConditionalRecurrence(options, model, encoder)
        self.initial = Linear(encoder.annotation_size, options.size)
        """W_init."""
        self.output = TanhOutput(options.size, model.embedding, encoder.annotation_size, options.readout)

    @property
    def recurrence(self) -> ConditionalRecurrence:
        return self.cell

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> ConditionalState:
        s_0 = initial_state(self.initial, mean_annotation(memory))
        masks = dropout_mask(rng, self.state_dropout, s_0, self.cell.num_cells, s_0.shape[1])
        return ConditionalState(self.cell.word.start(s_0), self.cell.attention.start(memory, rng, steps), masks)

    def step(
        self, x: Float[Tensor, "N G"], state: ConditionalState, memory: Memory
    ) -> tuple[ConditionalState, Reading]:
        keeps = masks_per_cell(state.masks)
        cell, attended, attention = self.cell.step(x, state.cell, state.attention, memory, keeps)
        return ConditionalState(cell, attention, state.masks), Reading.from_attention(cell.h, attended)


@implements(DeepTransitionOptions)
class DeepTransition(ConditionalGRU):
    """As `cgru`, and then `transitions` more that read nothing but the state (Miceli Barone et al., section 3.1):

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

    def step(self, inputs: Float[Tensor, "N I"], state: CellState, keeps: RecurrentMasks) -> CellState:
        """One target position; inputs: [w; c_i]."""
        after: CellState = self.transitions(self.cell.step(self.cell.inputs(inputs), state, next(keeps)), keeps)
        return after


class BiDeepState(NamedTuple):
    """cells: each layer's state after its last transition; attention: what attention carries.

    masks: [N, C, D], of what each of all layers' C cells feeds back. up: [N, I, layers - 1, D], of what goes up from
    layer to layer at each position. None without such dropout. position: of the next step.
    """

    cells: tuple[CellState, ...]
    attention: AttentionState
    masks: Tensor | None = None
    layer_masks: Tensor | None = None
    position: int = 0


@implements(BiDeepOptions)
class BiDeep(ConditionalDecoder):
    """Deep in its transition and in its stack (Miceli Barone et al., section 3.3).

    The first layer is `deep-transition`'s; each layer above reads the one below and the context [w_{i,r-1}; c_i],
    then makes `transitions` of its own. From layer `residual_from` on, what a layer gives is w_{i,r} = s_{i,r,L} +
    w_{i,r-1}, else s_{i,r,L}. The tanh output reads the top's. Every layer starts from a tanh layer over mean_j h_j."""

    def __init__(self, options: BiDeepOptions, model: ModelConfig, encoder: Encoder) -> None:
        super().__init__(options, model, encoder)
        annotation, self.layers = encoder.annotation_size, options.layers
        self.first = ConditionalRecurrence(options, model, encoder)
        self.upper = nn.ModuleList(UpperLayer(options, annotation) for _ in range(options.layers - 1))
        self.initial = Linear(annotation, options.layers * options.size)
        self.output = TanhOutput(options.size, model.embedding, annotation, options.readout)
        self.first_residual = options.residual_from or options.layers + 1
        self.layers_dropout = 0.0 if options.layers == 1 else model.dropout.layers

    @property
    def recurrence(self) -> ConditionalRecurrence:
        return self.first

    def _upper(self) -> list[UpperLayer]:
        return [cast(UpperLayer, layer) for layer in self.upper]

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> BiDeepState:
        s_0 = initial_state(self.initial, mean_annotation(memory)).chunk(self.layers, dim=-1)
        cells, size = tuple(self.first.word.start(s) for s in s_0), s_0[0].shape[1]
        count = self.first.num_cells + sum(layer.num_cells for layer in self._upper())
        masks = dropout_mask(rng, self.state_dropout, s_0[0], count, size)
        up = dropout_mask(rng, self.layers_dropout, s_0[0], steps, self.layers - 1, size)
        return BiDeepState(cells, self.first.attention.start(memory, rng, steps), masks, up)

    def step(self, x: Float[Tensor, "N G"], state: BiDeepState, memory: Memory) -> tuple[BiDeepState, Reading]:
        keeps = masks_per_cell(state.masks)
        bottom, attended, attention = self.first.step(x, state.cells[0], state.attention, memory, keeps)
        cells, w = [bottom], bottom.h
        for r, (layer, old) in enumerate(zip(self._upper(), state.cells[1:], strict=True), start=2):
            read = w if state.layer_masks is None else w * state.layer_masks[:, state.position, r - 2]
            new = layer.step(torch.cat([read, attended.context.to(read.dtype)], dim=-1), old, keeps)
            w = new.h + w if r >= self.first_residual else new.h
            cells.append(new)
        return BiDeepState(
            tuple(cells), attention, state.masks, state.layer_masks, state.position + 1
        ), Reading.from_attention(w, attended)
