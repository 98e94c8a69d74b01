"""A stack of recurrent cells as one object: what deep decoders step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import DropoutConfig
from rnnsearch.models.batch_rng import BatchRng, dropout_mask
from rnnsearch.models.cells import Cell
from rnnsearch.models.memory import CellState, StateShape


class LayerMasks(NamedTuple):
    """The dropout masks of one layer, each None without that dropout.

    read: of what it reads of the layer below (Zaremba et al. 2014); given: of what it gives, before a residual sum
    (Chen et al. 2018); both [N, D] of one position, or [N, I, D]. fed_back: of its own state (Gal & Ghahramani 2016),
    [N, D], the same at all positions.
    """

    inputs: Tensor | None = None
    outputs: Tensor | None = None
    recurrent: Tensor | None = None


class StackMasks(NamedTuple):
    """The dropout masks of a batch, drawn at its start, each None without that dropout (see `LayerMasks`).

    layers: [N, I, L - 1, D], at each of I positions, of all layers but the bottom; outputs: [N, I, L, D]; state:
    [N, L, D]. position: the position of the next step.
    """

    layers: Tensor | None
    outputs: Tensor | None
    recurrent: Tensor | None
    position: int = 0


class StackState(NamedTuple):
    """cells: the state of each layer, bottom first, [N, D] a tensor. noise: None without dropout."""

    cells: tuple[CellState, ...]
    masks: StackMasks | None = None

    def layer_masks(self, positions: int | None = None) -> list[LayerMasks]:
        """Of each layer: those of the next position, or of as many of the next ones."""
        if self.masks is None:
            return [LayerMasks()] * len(self.cells)
        layers, outputs, state, i = self.masks
        at = i if positions is None else slice(i, i + positions)
        return [
            LayerMasks(
                None if layers is None or l == 0 else layers[:, at, l - 1],
                None if outputs is None else outputs[:, at, l],
                None if state is None else state[:, l],
            )
            for l in range(len(self.cells))
        ]

    def advance(self, cells: Iterable[CellState], positions: int = 1) -> StackState:
        """The state so many positions further on, with new states of the cells."""
        noise = self.masks
        return StackState(tuple(cells), None if noise is None else noise._replace(position=noise.position + positions))


class Stack(nn.Module):
    """L layers of `size` units; layer l reads what layer l - 1 gives.

    Residual connections (Wu et al. 2016, eq. 6): a layer from `residual_from` (counted from 1; at least 2) gives
    h^l_t + x^{l-1}_t, where x^{l-1}_t is what it read, before dropout on that. With `context_size` H every layer but
    the bottom reads a context besides: [x^{l-1}_t; c_t] (the bottom's is the caller's, who adds to its share).
    """

    def __init__(
        self,
        make_cell: type[Cell],
        inputs_size: int,
        size: int,
        layers: int,
        residual_from: int | None = None,
        dropout: DropoutConfig | None = None,
        context_size: int = 0,
    ) -> None:
        super().__init__()
        sizes = [inputs_size, *[size + context_size] * (layers - 1)]
        self.cells = nn.ModuleList(make_cell(below, size) for below in sizes)
        self.size = size
        self.first_residual = layers + 1 if residual_from is None else residual_from
        shares = dropout or DropoutConfig()
        self.layers_dropout = 0.0 if layers == 1 else shares.layers
        self.outputs_dropout, self.state_dropout = shares.layer_outputs, shares.state

    @property
    def layers(self) -> tuple[Cell, ...]:
        """The cells, bottom first."""
        return tuple(cast(Cell, cell) for cell in self.cells)

    @property
    def bottom(self) -> Cell:
        """The cell whose share of the inputs `inputs` gives, `bottom.blocks * size` numbers."""
        return self.layers[0]

    @property
    def shapes(self) -> tuple[StateShape, ...]:
        """The shape of each layer's state, bottom first: what a bridge must give."""
        return tuple(StateShape(cell.state, self.size) for cell in self.layers)

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        """The inputs' share of the bottom layer's gates, for any number of positions."""
        return self.bottom.inputs(x)

    def start(self, states: tuple[CellState, ...], draws: BatchRng | None = None, steps: int = 0) -> StackState:
        """The state before the first of `steps` positions; states: of each layer (a bridge's), bottom first.

        With `draws` all dropout masks are drawn here.
        """
        h, L = states[0].h, len(states)
        layers = dropout_mask(draws, self.layers_dropout, h, steps, L - 1, self.size)
        state = dropout_mask(draws, self.state_dropout, h, L, self.size)
        outputs = dropout_mask(draws, self.outputs_dropout, h, steps, L, self.size)
        nothing = layers is None and outputs is None and state is None
        return StackState(states, None if nothing else StackMasks(layers, outputs, state))

    def step(
        self, x: Float[Tensor, "N G"], state: StackState, context: Float[Tensor, "N H"] | None = None
    ) -> tuple[Float[Tensor, "N D"], StackState]:
        """One position: what the top layer gives (with its residual connection), and all layers' states.

        x: the bottom layer's share (`inputs`, and whatever else the caller adds). context: see the class.
        """
        new: list[CellState] = []
        below = x  # the bottom layer reads its share instead
        for l, (cell, old, masks) in enumerate(zip(self.layers, state.cells, state.layer_masks(), strict=True)):
            share = x if l == 0 else cell.inputs(layer_input(below, masks.inputs, context))
            new.append(cell.step(share, old, masks.recurrent))
            below = self.layer_output(l, new[-1].h, below, masks.outputs)
        return below, state.advance(new)

    def layer_output(self, l: int, h: Tensor, below: Tensor, mask: Tensor | None = None) -> Tensor:
        """What layer l, counted from 0, gives, of its h and what it read: h times its mask, and the sum where it has a
        residual connection."""
        h = h if mask is None else h * mask
        return h + below if self.is_residual(l) else h

    def is_residual(self, l: int) -> bool:
        """Whether layer l adds what it read to what it gives."""
        return l > 0 and l + 1 >= self.first_residual


def layer_input(below: Tensor, mask: Tensor | None, context: Tensor | None = None) -> Tensor:
    """What a layer reads of the one below: dropped out, with the context beside it."""
    below = below if mask is None else below * mask
    return below if context is None else torch.cat([below, context.to(below.dtype)], dim=-1)
