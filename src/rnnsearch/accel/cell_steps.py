"""The steps of recurrent cells, written for native recurrences: each function is one class's `step`, in the same order,
with ranges of numbers in the place of tensors.

The definitions are in `models/cells.py`; a law holds each equal to its own, gradients included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from rnnsearch.models.cells import (
    GRU,
    LSTM,
    RNMTLSTM,
    SSRU,
    BiasOnly,
    Cell,
    ChoGRU,
    GateNormLSTM,
    LayerNormGRU,
    LayerNorm,
    Tanh,
    TorchGRU,
)
from rnnsearch.models.memory import CellOnly, CellState
from rnnsearch.ops.step import Step, Sums, Value

Mask = Tensor | None
"""Of dropout on what a cell feeds back, [N, D]."""


class State(NamedTuple):
    """Where a cell's state stands. c: of an LSTM."""

    h: Value
    c: Value | None = None

    @property
    def last(self) -> State:
        """That of the position before."""
        return State(self.h.last, None if self.c is None else self.c.last)


def states(step: Step, first: CellState) -> State:
    """Room for a state that is handed from position to position."""
    hidden = "c" if isinstance(first, CellOnly) else "h"
    named = zip(first._fields, first, strict=True)  # an SSRU's c may be the very tensor that its h is
    return State(*(step.state(part.float(), hidden=name == hidden) for name, part in named))


def between(step: Step, cell: Cell) -> State:
    """Room for a state within a position."""
    return State(*(step.value(cell.size) for _ in cell.state._fields))


class Room(NamedTuple):
    """The sums of a cell. inputs: what each run of the inputs' share (first row, sums) is added to."""

    all: Sums
    inputs: tuple[tuple[int, Sums], ...]


def room(step: Step, cell: Cell) -> Room:
    """Room for a cell's sums. PyTorch's GRU and the layer-normalised one keep what the state gives the candidate apart:
    r, z (or z, r), that, then the inputs' share of the candidate."""
    D = cell.size
    if isinstance(cell, TorchGRU | LayerNormGRU):
        sums = step.sums(4 * D)
        return Room(sums, ((0, sums.part(0, 2 * D)), (2 * D, sums.part(3 * D, D))))
    sums = step.sums(cell.blocks * D)
    return Room(sums, ((0, sums),))


def given(step: Step, cell: Cell) -> Room:
    """Room for a cell's sums, with the inputs' share that is known for all positions."""
    to = room(step, cell)
    if step.normalises and isinstance(cell, LayerNormGRU):
        raw = step.sums(3 * cell.size)
        step.input(0, raw)
        normed_inputs(step, cell, raw, to)
        return to
    for row, sums in to.inputs:
        step.input(row, sums)
    return to


def normed_inputs(step: Step, cell: LayerNormGRU, raw: Sums, to: Room) -> None:
    """The layer-normalised GRU's norms of what the inputs give gates and candidate."""
    D = cell.size
    for part, norm, (_, sums) in zip(
        (raw.part(0, 2 * D), raw.part(2 * D, D)), (cell.norm_input_gates, cell.norm_input), to.inputs, strict=True
    ):
        normed(step, norm, part, sums)


def inputs(step: Step, cell: Cell, to: Room, *values: tuple[Value, Mask]) -> None:
    """`Cell.inputs` of values side by side."""
    if isinstance(cell.input, BiasOnly):
        for row, sums in to.inputs:
            step.bias(cell.input.bias[row : row + sums.size], sums)
        return
    reads = step.read(*values)
    if isinstance(cell, LayerNormGRU):
        raw = step.sums(3 * cell.size)
        step.product(cell.input.weight, reads, raw)
        normed_inputs(step, cell, raw, to)
        return
    for row, sums in to.inputs:
        step.product(cell.input.weight, reads, sums, row)
        if cell.input.bias is not None:
            step.bias(cell.input.bias[row : row + sums.size], sums)


def normed(step: Step, norm: nn.Module, of: Sums, to: Sums) -> None:
    """sums += LN(others)."""
    assert isinstance(norm, LayerNorm)
    step.norm(of, to, norm.gain, norm.bias)


def tanh(step: Step, cell: Tanh, to: Room, old: State, new: State, keep: Mask) -> None:
    step.product(cell.recurrent.weight, step.read((old.h, keep)), to.all)
    step.tanh(to.all, new.h, old.h)


def gru(step: Step, cell: GRU, to: Room, old: State, new: State, keep: Mask) -> None:
    weights = cell.recurrent_gates.weight, cell.recurrent.weight
    step.reset_before(*weights, to.all, old.h, new.h, keep, carries=isinstance(cell, ChoGRU))


def torch_gru(step: Step, cell: TorchGRU, to: Room, old: State, new: State, keep: Mask) -> None:
    D = cell.size
    step.product(cell.recurrent.weight, step.read((old.h, keep)), to.all.part(0, 3 * D))
    step.bias(cell.recurrent.bias, to.all.part(0, 3 * D))
    rz = step.sigmoid(to.all.part(0, 2 * D))
    reset = rz.part(0, D), to.all.part(2 * D, D)
    step.gru(new.h, to.all.part(3 * D, D), rz.part(D, D), old.h, reset, carries=True)


def layer_norm_gru(step: Step, cell: LayerNormGRU, to: Room, old: State, new: State, keep: Mask) -> None:
    D = cell.size
    raw = step.sums(3 * D)
    step.product(cell.recurrent.weight, step.read((old.h, keep)), raw)
    normed(step, cell.norm_gates, raw.part(0, 2 * D), to.all.part(0, 2 * D))
    normed(step, cell.norm, raw.part(2 * D, D), to.all.part(2 * D, D))
    zr = step.sigmoid(to.all.part(0, 2 * D))
    step.gru(new.h, to.all.part(3 * D, D), zr.part(0, D), old.h, (zr.part(D, D), to.all.part(2 * D, D)))


def lstm(step: Step, cell: LSTM, to: Room, old: State, new: State, keep: Mask) -> None:
    step.product(cell.recurrent.weight, step.read((old.h, keep)), to.all)
    _lstm(step, to.all, old, new)


def gate_norm_lstm(step: Step, cell: GateNormLSTM, to: Room, old: State, new: State, keep: Mask) -> None:
    D = cell.size
    step.product(cell.recurrent.weight, step.read((old.h, keep)), to.all)
    gates = step.sums(4 * D)
    for n, norm in enumerate(cell.norms):
        normed(step, norm, to.all.part(n * D, D), gates.part(n * D, D))
    _lstm(step, gates, old, new, plain=isinstance(cell, RNMTLSTM))


def _lstm(step: Step, sums: Sums, old: State, new: State, plain: bool = False) -> None:
    assert old.c is not None
    assert new.c is not None
    step.lstm(new.h, new.c, sums, old.h, old.c, plain)


def ssru(step: Step, _cell: SSRU, to: Room, old: State, new: State, _keep: Mask) -> None:
    assert old.c is not None
    assert new.c is not None
    step.ssru(new.h, new.c, to.all, old.h, old.c)


CELLS: dict[type[Cell], Callable[..., None]] = {
    Tanh: tanh,
    GRU: gru,
    ChoGRU: gru,
    TorchGRU: torch_gru,
    LayerNormGRU: layer_norm_gru,
    LSTM: lstm,
    GateNormLSTM: gate_norm_lstm,
    RNMTLSTM: gate_norm_lstm,
    SSRU: ssru,
}
"""`Cell.step` from the sums of the inputs' share, by exact class."""


def cell_step(step: Step, cell: Cell, to: Room, old: State, new: State, keep: Mask) -> None:
    """`Cell.step`: reads the old state, writes the new one."""
    CELLS[type(cell)](step, cell, to, old, new, keep)
