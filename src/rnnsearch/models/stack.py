"""A stack of recurrent cells as one object: what deep decoders step."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import DropoutConfig
from rnnsearch.models.cells import Cell
from rnnsearch.models.draws import Draws, each_mask, sequence_mask
from rnnsearch.models.memory import CellState, StateShape


class StackNoise(NamedTuple):
    """The dropout masks of a batch, drawn at its start.

    layers: [N, I, L - 1, D], on what goes up from each layer but the top, at each of I positions (Zaremba et al. 2014);
        None without that dropout. state: [N, L, D], one mask a sequence on what each layer feeds back
        (Gal & Ghahramani 2016); None without. position: the position of the next step.
    """

    layers: Tensor | None
    state: Tensor | None
    position: int = 0


class StackState(NamedTuple):
    """cells: the state of each layer, bottom first, [N, D] a tensor. noise: None without dropout."""

    cells: tuple[CellState, ...]
    noise: StackNoise | None = None


class Stack(nn.Module):
    """L layers of `size` units; layer l reads what layer l - 1 gives.

    Residual connections (Wu et al. 2016, eq. 6): a layer from `residual_from` (counted from 1; at least 2) gives
    h^l_t + x^{l-1}_t, where x^{l-1}_t is what it read, before dropout. With `context_size` H every layer but the
    bottom reads a context besides: [x^{l-1}_t; c_t] (the bottom's is the caller's, who adds to its share).
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
        self.layers_dropout = 0.0 if dropout is None or layers == 1 else dropout.layers
        self.state_dropout = 0.0 if dropout is None else dropout.state

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

    def start(self, states: tuple[CellState, ...], draws: Draws | None = None, steps: int = 0) -> StackState:
        """The state before the first of `steps` positions; states: of each layer (a bridge's), bottom first.

        With `draws` all dropout masks are drawn here.
        """
        h, L = states[0].h, len(states)
        layers = sequence_mask(draws, self.layers_dropout, h, steps, L - 1, self.size)
        state = sequence_mask(draws, self.state_dropout, h, L, self.size)
        return StackState(states, None if layers is None and state is None else StackNoise(layers, state))

    def step(
        self, x: Float[Tensor, "N G"], state: StackState, context: Float[Tensor, "N H"] | None = None
    ) -> tuple[Float[Tensor, "N D"], StackState]:
        """One position: what the top layer gives (with its residual connection), and all layers' states.

        x: the bottom layer's share (`inputs`, and whatever else the caller adds). context: see the class.
        """
        noise = state.noise
        keeps = each_mask(None if noise is None else noise.state)
        new: list[CellState] = []
        below = x  # the bottom layer reads its share instead
        for l, (cell, old) in enumerate(zip(self.layers, state.cells, strict=True)):
            share = x
            if l > 0:
                mask = None if noise is None or noise.layers is None else noise.layers[:, noise.position, l - 1]
                share = cell.inputs(read(below, mask, context))
            new.append(cell.step(share, old, next(keeps)))
            below = new[-1].h + below if self.adds(l) else new[-1].h
        if noise is not None:
            noise = noise._replace(position=noise.position + 1)
        return below, StackState(tuple(new), noise)

    def adds(self, l: int) -> bool:
        """Whether layer l, counted from 0, adds what it read to what it gives."""
        return l > 0 and l + 1 >= self.first_residual


def read(below: Tensor, mask: Tensor | None, context: Tensor | None = None) -> Tensor:
    """What a layer reads of the one below: dropped out, with the context beside it."""
    below = below if mask is None else below * mask
    return below if context is None else torch.cat([below, context.to(below.dtype)], dim=-1)
