"""The BiDeep decoder: deep in its transition and in its stack (Miceli Barone et al. 2017, section 3.3)."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import DropoutConfig, ModelConfig
from rnnsearch.config.decoders import BiDeepOptions
from rnnsearch.models.attention.attention import Attention, AttentionState
from rnnsearch.models.cell import Cell
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.conditional import Conditional, Transitions
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.decoders.readouts import TanhOutput
from rnnsearch.models.decoders.starts import first_state, make_attention, mask_of, mean_annotation, state_masks
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import Encoder, MakeCell
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import CellState, Encoded, Memory


class Upper(nn.Module):
    """A layer above the first: s_1 = GRU_1([w; c_i], s_{i-1,L}),  s_k = GRU_k(0, s_{k-1}), k = 2..L."""

    def __init__(self, make_cell: MakeCell, annotation: int, size: int, transitions: int) -> None:
        super().__init__()
        self.cell: Cell = make_cell(size + annotation, size)
        self.transitions = Transitions(make_cell, size, transitions)
        self.count = 1 + transitions

    def step(self, inputs: Float[Tensor, "N I"], state: CellState, masks: Tensor | None, first: int) -> CellState:
        """One target position; inputs: [w; c_i]. The layer's dropout masks are those of `masks` from `first`."""
        new = self.cell.step(self.cell.inputs(inputs), state, mask_of(masks, first))
        after: CellState = self.transitions(new, masks, first + 1)
        return after


class BiDeepState(NamedTuple):
    """cells: each layer's state after its last transition; attention: what attention carries.

    masks: [N, C, D], of what each of all layers' C cells feeds back. up: [N, I, layers - 1, D], of what goes up from
    layer to layer at each position. None without such dropout. position: of the next step.
    """

    cells: tuple[CellState, ...]
    attention: AttentionState
    masks: Tensor | None = None
    up: Tensor | None = None
    position: int = 0


class BiDeep(Decoder):
    """The first layer is `deep-transition`'s; each layer above reads the one below and the context [w_{i,r-1}; c_i],
    then makes `transitions` of its own. From layer `residual_from` on, what a layer gives is w_{i,r} = s_{i,r,L} +
    w_{i,r-1}, else s_{i,r,L}. The tanh output reads the top's. Every layer starts from a tanh layer over mean_j h_j."""

    name = "bideep"
    attends = True

    def __init__(
        self,
        make_cell: MakeCell,
        attention: Attention,
        embedding: int,
        annotation: int,
        size: int,
        readout: int,
        transitions: int,
        layers: int,
        residual_from: int | None = None,
        dropout: DropoutConfig | None = None,
    ) -> None:
        super().__init__()
        self.first = Conditional(make_cell, attention, embedding, annotation, size, transitions)
        self.upper = nn.ModuleList(Upper(make_cell, annotation, size, transitions) for _ in range(layers - 1))
        self.initial = Linear(annotation, layers * size)
        self.output = TanhOutput(size, embedding, annotation, readout)
        self.readout_size = readout
        self.size, self.layers = size, layers
        self.first_residual = layers + 1 if residual_from is None else residual_from
        self.state_dropout = 0.0 if dropout is None else dropout.state
        self.layers_dropout = 0.0 if dropout is None or layers == 1 else dropout.layers

    @classmethod
    def make(cls, options: BiDeepOptions, model: ModelConfig, encoder: Encoder) -> BiDeep:
        sizes = (model.embedding, encoder.annotation_size, options.size, options.readout)
        depth = (options.transitions, options.layers, options.residual_from)
        return cls(CELLS[options.cell], make_attention(model, encoder), *sizes, *depth, model.dropout)

    def _upper(self) -> list[Upper]:
        return [cast(Upper, layer) for layer in self.upper]

    def remember(self, encoded: Encoded) -> Memory:
        return self.first.attention.on(encoded)

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> BiDeepState:
        s_0 = first_state(self.initial, mean_annotation(memory)).chunk(self.layers, dim=-1)
        cells = tuple(self.first.word.start(s) for s in s_0)
        count = self.first.count + sum(layer.count for layer in self._upper())
        masks = state_masks(draws, self.state_dropout, s_0[0], count)
        up = None
        if draws is not None and self.layers_dropout > 0.0:
            up = draws.mask((len(s_0[0]), steps, self.layers - 1, self.size), self.layers_dropout, s_0[0])
        return BiDeepState(cells, self.first.attention.start(memory, draws, steps), masks, up)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.first.word.inputs(y_prev)

    def step(self, x: Float[Tensor, "N G"], state: BiDeepState, memory: Memory) -> tuple[BiDeepState, Reading]:
        masks = state.masks
        bottom, attended, attention = self.first.step(x, state.cells[0], state.attention, memory, masks)
        cells, w, first = [bottom], bottom.h, self.first.count
        for r, (layer, old) in enumerate(zip(self._upper(), state.cells[1:], strict=True), start=2):
            read = w if state.up is None else w * state.up[:, state.position, r - 2]
            new = layer.step(torch.cat([read, attended.context.to(read.dtype)], dim=-1), old, masks, first)
            w = new.h + w if r >= self.first_residual else new.h
            cells.append(new)
            first += layer.count
        reading = Reading.of(w, attended)
        return BiDeepState(tuple(cells), attention, masks, state.up, state.position + 1), reading

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        t: Tensor = self.output(reading.state, y_prev, reading.context)
        return t
