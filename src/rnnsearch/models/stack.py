"""A stack of recurrent cells, used by deep decoders and by recurrent language models.

`decoders/stack_decoders.py` and `language_model.py` use it; `accel/` runs it layer by layer where the layers allow it.

Axes: N rows, I positions, D state of a layer, G gate inputs, H context, E input, L layers.
"""

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
    """The dropout masks of one layer; each is None without that dropout.

    inputs: on the layer's input (Zaremba et al. 2014), [N, D] for one position or [N, I, D].
    outputs: on its output, before a residual connection (Chen et al. 2018), [N, D] or [N, I, D].
    recurrent: on its state (Gal & Ghahramani 2016), [N, D], the same at all positions.
    """

    inputs: Tensor | None = None
    outputs: Tensor | None = None
    recurrent: Tensor | None = None


class StackMasks(NamedTuple):
    """The dropout masks of all layers and positions of a batch (see `LayerMasks`).

    layers: [N, I, L - 1, D], on the inputs of all layers but the bottom one, at each of I positions.
    outputs: [N, I, L, D]. recurrent: [N, L, D].
    fed: [N, I, F], on the vector that the bottom layer reads in addition to the word.
    position: index of the next position.
    """

    layers: Tensor | None
    outputs: Tensor | None
    recurrent: Tensor | None
    fed: Tensor | None = None
    position: int = 0


class StackState(NamedTuple):
    """The state of each layer, bottom first, and the dropout masks (None without dropout)."""

    cells: tuple[CellState, ...]
    masks: StackMasks | None = None

    def layer_masks(self, num_positions: int | None = None) -> list[LayerMasks]:
        """Return the masks of each layer, for the next position or for the next `num_positions`."""
        if self.masks is None:
            return [LayerMasks()] * len(self.cells)
        layers, outputs, recurrent, _, i = self.masks
        index = i if num_positions is None else slice(i, i + num_positions)
        return [
            LayerMasks(
                # The bottom layer has no mask for its input, so that layer l has mask l - 1.
                inputs=None if layers is None or l == 0 else layers[:, index, l - 1],
                outputs=None if outputs is None else outputs[:, index, l],
                recurrent=None if recurrent is None else recurrent[:, l],
            )
            for l in range(len(self.cells))
        ]

    def fed_mask(self, num_positions: int | None = None) -> Tensor | None:
        """Return the mask of the fed vector, for the next position or for the next `num_positions`."""
        if self.masks is None or self.masks.fed is None:
            return None
        i = self.masks.position
        return self.masks.fed[:, i if num_positions is None else slice(i, i + num_positions)]

    def advance(self, cells: Iterable[CellState], num_positions: int = 1) -> StackState:
        """Return the state after more positions, with the new states of the cells."""
        masks = self.masks
        if masks is not None:
            masks = masks._replace(position=masks.position + num_positions)
        return StackState(tuple(cells), masks)


class Stack(nn.Module):
    """L recurrent layers of `size` units; layer l reads the output of layer l - 1.

    With residual connections (Wu et al. 2016, eq. 6), a layer from `residual_from` on (counted from 1; 2 or higher)
    returns h^l_t + x^{l-1}_t, where x^{l-1}_t is its input before dropout.

    With a `context_size` H, every layer but the bottom one reads a context, too: [x^{l-1}_t; c_t]. The caller adds the
    context to the gate inputs of the bottom layer.
    """

    def __init__(
        self,
        cell_type: type[Cell],
        inputs_size: int,
        size: int,
        layers: int,
        residual_from: int | None = None,
        dropout: DropoutConfig | None = None,
        context_size: int = 0,
    ) -> None:
        super().__init__()
        input_sizes = [inputs_size, *[size + context_size] * (layers - 1)]
        self.cells = nn.ModuleList(cell_type(input_size, size) for input_size in input_sizes)
        self.size = size
        self.first_residual = layers + 1 if residual_from is None else residual_from
        rates = dropout or DropoutConfig()
        self.layers_dropout = 0.0 if layers == 1 else rates.layers
        self.outputs_dropout = rates.layer_outputs
        self.state_dropout = rates.state
        self.feeding_dropout = rates.feeding

    @property
    def layers(self) -> tuple[Cell, ...]:
        """The cells, bottom first."""
        return tuple(cast(Cell, cell) for cell in self.cells)

    @property
    def bottom(self) -> Cell:
        """The bottom cell, whose gate inputs `inputs` returns."""
        return self.layers[0]

    @property
    def shapes(self) -> tuple[StateShape, ...]:
        """The shape of each layer's state, bottom first, for a bridge."""
        return tuple(StateShape(cell.state, self.size) for cell in self.layers)

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        """Return the bottom layer's gate inputs, for any number of positions."""
        return self.bottom.inputs(x)

    def start(
        self, states: tuple[CellState, ...], rng: BatchRng | None = None, steps: int = 0, fed_size: int = 0
    ) -> StackState:
        """Return the state before the first of `steps` positions.

        Args:
            states: The initial state of each layer, bottom first.
            rng: If given, the dropout masks of all positions are sampled here.
            steps: Number of positions.
            fed_size: Size of the vector that is fed back; 0 if nothing is.
        """
        h, L = states[0].h, len(states)
        # [N, I, L - 1, D], [N, L, D], [N, I, L, D] and [N, I, F]; the order of the calls fixes the random numbers (see
        # `BatchRng`).
        layers = dropout_mask(rng, self.layers_dropout, h, steps, L - 1, self.size)
        recurrent = dropout_mask(rng, self.state_dropout, h, L, self.size)
        outputs = dropout_mask(rng, self.outputs_dropout, h, steps, L, self.size)
        fed = dropout_mask(rng, self.feeding_dropout, h, steps, fed_size) if fed_size else None
        if layers is None and outputs is None and recurrent is None and fed is None:
            return StackState(states)
        return StackState(states, StackMasks(layers, outputs, recurrent, fed))

    def step(
        self, x: Float[Tensor, "N G"], state: StackState, context: Float[Tensor, "N H"] | None = None
    ) -> tuple[Float[Tensor, "N D"], StackState]:
        """Return the top layer's output at one position, with its residual connection, and the new state.

        Args:
            x: Gate inputs of the bottom layer: `inputs`, and whatever else the caller adds.
            context: Read by the layers above the bottom one, if the stack has a `context_size`.
        """
        states: list[CellState] = []
        below = x
        for l, (cell, old, masks) in enumerate(zip(self.layers, state.cells, state.layer_masks(), strict=True)):
            gates = x if l == 0 else cell.inputs(layer_input(below, masks.inputs, context))
            states.append(cell.step(gates, old, masks.recurrent))
            # At l = 0 `below` is x, the gate inputs; it is not added, because the bottom layer is never residual.
            below = self.layer_output(l, states[-1].h, below, masks.outputs)
        return below, state.advance(states)

    def layer_output(self, l: int, h: Tensor, below: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the output of layer l, counted from 0: its h with dropout, plus its input if the layer is residual."""
        h = h if mask is None else h * mask
        return h + below if self.is_residual(l) else h

    def is_residual(self, l: int) -> bool:
        """Return True if layer l, counted from 0, adds its input to its output."""
        return l > 0 and l + 1 >= self.first_residual


def layer_input(below: Tensor, mask: Tensor | None, context: Tensor | None = None) -> Tensor:
    """Return a layer's input: the output of the layer below with dropout, concatenated with the context."""
    below = below if mask is None else below * mask
    return below if context is None else torch.cat([below, context.to(below.dtype)], dim=-1)
