"""The conditional recurrence: a transition with the word, attention, a transition with the context, and more."""

from __future__ import annotations

from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.models.attention.attention import Attended, Attention, AttentionState
from rnnsearch.models.cell import Cell
from rnnsearch.models.decoders.starts import mask_of
from rnnsearch.models.encoder import MakeCell
from rnnsearch.models.memory import CellState, Memory


class Transitions(nn.Module):
    """s_k = GRU_k(0, s_{k-1}), k = 1..n: cells that read nothing but the state before them
    (Miceli Barone et al. 2017, section 3.1)."""

    def __init__(self, make_cell: MakeCell, size: int, count: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(make_cell(None, size) for _ in range(count))

    @property
    def layers(self) -> list[Cell]:
        """The cells, in the order of the transitions."""
        return [cast(Cell, cell) for cell in self.cells]

    def forward(self, state: CellState, masks: Tensor | None, first: int) -> CellState:
        """The state after all of them; their dropout masks are those of `masks` from number `first`."""
        nothing = state.h.new_empty(state.h.shape[0], 0)
        for number, cell in enumerate(self.layers, start=first):
            state = cell.step(cell.inputs(nothing), state, mask_of(masks, number))
        return state


class Conditional(nn.Module):
    """s_1 = GRU_1(E y_{i-1}, s_{i-1}),  c_i = ATT(s_1),  s_2 = GRU_2(c_i, s_1),  and `transitions` without inputs.

    It has 2 + transitions cells, and as many dropout masks on what they feed back.
    """

    def __init__(
        self,
        make_cell: MakeCell,
        attention: Attention,
        embedding: int,
        annotation: int,
        size: int,
        transitions: int = 0,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.word: Cell = make_cell(embedding, size)
        """GRU_1."""
        self.context: Cell = make_cell(annotation, size)
        """GRU_2."""
        self.transitions = Transitions(make_cell, size, transitions)
        self.count = 2 + transitions

    def step(
        self,
        x: Float[Tensor, "N G"],
        state: CellState,
        attention: AttentionState,
        memory: Memory,
        masks: Float[Tensor, "N C D"] | None,
    ) -> tuple[CellState, Attended, AttentionState]:
        """One target position, from the word's share x of GRU_1's gates."""
        between = self.word.step(x, state, mask_of(masks, 0))
        attended, attention = self.attention.step(between.h, attention, memory)
        share = self.context.inputs(attended.context)
        new = self.context.step(share, between, mask_of(masks, 1))
        return self.transitions(new, masks, 2), attended, attention
