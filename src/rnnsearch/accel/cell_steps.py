"""The steps of recurrent cells as operations of native recurrences.

Each function in `CELL_STEPS` writes the equations of one class in `models/cells.py`, in the same order as its `step`,
with ranges of values in place of tensors. Property tests compare both, with gradients, and so does `verification.py`.

A new cell needs an entry in `CELL_STEPS`; without one it runs its definition. Tests:
tests/properties/test_recurrences.py.

Axes: N sentences or hypotheses, D state of the cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from rnnsearch.models import cells
from rnnsearch.models.memory import CellOnly, CellState
from rnnsearch.ops.step import StepBuilder, Sums, Value

RecurrentMask = Tensor | None  # dropout mask of the old state in products [N, D]


class StateValues(NamedTuple):
    """The values of a cell's state."""

    h: Value  # output of the cell
    c: Value | None = None  # memory of an LSTM or SSRU

    @property
    def previous(self) -> StateValues:
        """The state at the previous position."""
        return StateValues(self.h.previous, None if self.c is None else self.c.previous)


class GateSums(NamedTuple):
    """The sums of a cell's gates and candidate."""

    all: Sums  # ranges of all sums
    inputs: tuple[tuple[int, Sums], ...]  # first row of the gate inputs, and the sums that these rows are added to


def allocate_state(step: StepBuilder, initial: CellState) -> StateValues:
    """Allocate a state that is carried to the next position."""
    hidden = "c" if isinstance(initial, CellOnly) else "h"
    values = []
    for name, part in zip(initial._fields, initial, strict=True):
        values.append(step.state(part.float(), hidden=name == hidden))
    return StateValues(*values)


def allocate_inner_state(step: StepBuilder, cell: cells.Cell) -> StateValues:
    """Allocate a state that is used only within a position."""
    return StateValues(*(step.value(cell.size) for _ in cell.state._fields))


def allocate_sums(step: StepBuilder, cell: cells.Cell) -> GateSums:
    """Allocate the sums of a cell.

    PyTorch's GRU and the layer-normalised one need the candidate's recurrent part separately. Their sums are r, z (or
    z, r), the recurrent part of the candidate, and the candidate's gate inputs.
    """
    D = cell.size
    if isinstance(cell, cells.TorchGRU | cells.LayerNormGRU):
        # Blocks: both gates (input and recurrent parts together), U h of the candidate, W x of the candidate.
        sums = step.sums(4 * D)
        return GateSums(sums, ((0, sums.slice(0, 2 * D)), (2 * D, sums.slice(3 * D, D))))
    sums = step.sums(cell.blocks * D)
    return GateSums(sums, ((0, sums),))


def sums_of_inputs(step: StepBuilder, cell: cells.Cell) -> GateSums:
    """Allocate the sums of a cell and add the step's gate inputs x, which are known for all positions."""
    to = allocate_sums(step, cell)
    if step.normalises_inputs and isinstance(cell, cells.LayerNormGRU):
        # Elsewhere, `Cell.inputs` normalises all positions at once; in a program of the engine, the step does it.
        raw = step.sums(3 * cell.size)
        step.input(0, raw)
        normalise_inputs(step, cell, raw, to)
        return to
    for row, sums in to.inputs:
        step.input(row, sums)
    return to


def add_inputs(step: StepBuilder, cell: cells.Cell, to: GateSums, *values: tuple[Value, RecurrentMask]) -> None:
    """Add `Cell.inputs` of the concatenation of values."""
    # A transition without inputs: its sums are the bias and the recurrent part.
    if isinstance(cell.input, cells.BiasOnly):
        for row, sums in to.inputs:
            step.bias(cell.input.bias[row : row + sums.size], sums)
        return
    reads = step.read(*values)
    if isinstance(cell, cells.LayerNormGRU):
        raw = step.sums(3 * cell.size)
        step.product(cell.input.weight, reads, raw)
        normalise_inputs(step, cell, raw, to)
        return
    for row, sums in to.inputs:
        step.product(cell.input.weight, reads, sums, row)
        if cell.input.bias is not None:
            step.bias(cell.input.bias[row : row + sums.size], sums)


def normalise_inputs(step: StepBuilder, cell: cells.LayerNormGRU, raw: Sums, to: GateSums) -> None:
    """Add the normalised gate inputs of the layer-normalised GRU."""
    D = cell.size
    (_, gates), (_, candidate) = to.inputs
    add_normalised(step, cell.norm_input_gates, raw.slice(0, 2 * D), gates)
    add_normalised(step, cell.norm_input, raw.slice(2 * D, D), candidate)


def add_normalised(step: StepBuilder, norm: nn.Module, sums: Sums, to: Sums) -> None:
    """Compute to += LN(sums)."""
    assert isinstance(norm, cells.LayerNorm)
    step.layer_norm(sums, to, norm.gain, norm.bias)


def add_cell(
    step: StepBuilder, cell: cells.Cell, to: GateSums, old: StateValues, new: StateValues, recurrent_mask: RecurrentMask
) -> None:
    """Write `Cell.step`, which reads the old state and writes the new one.

    Args:
        to: The cell's sums, with its gate inputs.
    """
    # By exact class: a derived class may have other equations.
    CELL_STEPS[type(cell)](step, cell, to, old, new, recurrent_mask)


# The equations of each cell, with the arguments of `add_cell`.


def tanh(
    step: StepBuilder, cell: cells.Tanh, to: GateSums, old: StateValues, new: StateValues, recurrent_mask: RecurrentMask
) -> None:
    """Write the step of `Tanh`."""
    step.product(cell.recurrent.weight, step.read((old.h, recurrent_mask)), to.all)
    step.tanh(to.all, new.h, old.h)


def gru(
    step: StepBuilder, cell: cells.GRU, to: GateSums, old: StateValues, new: StateValues, recurrent_mask: RecurrentMask
) -> None:
    """Write the step of `GRU` and `ChoGRU`: the reset gate is applied before the recurrent product."""
    # Cho et al. (2014) keep the old state with weight z, Bahdanau et al. (2015) with 1 - z.
    weights = cell.recurrent_gates.weight, cell.recurrent.weight
    step.gru_with_reset_before(*weights, to.all, old.h, new.h, recurrent_mask, carries=isinstance(cell, cells.ChoGRU))


def torch_gru(
    step: StepBuilder,
    cell: cells.TorchGRU,
    to: GateSums,
    old: StateValues,
    new: StateValues,
    recurrent_mask: RecurrentMask,
) -> None:
    """Write the step of `TorchGRU`: the reset gate is applied after the recurrent product."""
    D = cell.size
    # PyTorch resets after the product: candidate = tanh(W x + b + r (U h + b_U)).
    recurrent = to.all.slice(0, 3 * D)
    step.product(cell.recurrent.weight, step.read((old.h, recurrent_mask)), recurrent)
    step.bias(cell.recurrent.bias, recurrent)
    # PyTorch's order of gates is r, z.
    rz = step.sigmoid(to.all.slice(0, 2 * D))
    reset = rz.slice(0, D), to.all.slice(2 * D, D)
    step.gru(new.h, to.all.slice(3 * D, D), rz.slice(D, D), old.h, reset, carries=True)


def layer_norm_gru(
    step: StepBuilder,
    cell: cells.LayerNormGRU,
    to: GateSums,
    old: StateValues,
    new: StateValues,
    recurrent_mask: RecurrentMask,
) -> None:
    """Write the step of `LayerNormGRU`."""
    D = cell.size
    # Recurrent parts are normalised separately from the inputs, and then added to them.
    raw = step.sums(3 * D)
    step.product(cell.recurrent.weight, step.read((old.h, recurrent_mask)), raw)
    add_normalised(step, cell.norm_gates, raw.slice(0, 2 * D), to.all.slice(0, 2 * D))
    add_normalised(step, cell.norm, raw.slice(2 * D, D), to.all.slice(2 * D, D))
    zr = step.sigmoid(to.all.slice(0, 2 * D))
    reset = zr.slice(D, D), to.all.slice(2 * D, D)
    step.gru(new.h, to.all.slice(3 * D, D), zr.slice(0, D), old.h, reset)


def lstm(
    step: StepBuilder, cell: cells.LSTM, to: GateSums, old: StateValues, new: StateValues, recurrent_mask: RecurrentMask
) -> None:
    """Write the step of `LSTM`."""
    step.product(cell.recurrent.weight, step.read((old.h, recurrent_mask)), to.all)
    _add_lstm(step, to.all, old, new)


def gate_norm_lstm(
    step: StepBuilder,
    cell: cells.GateNormLSTM,
    to: GateSums,
    old: StateValues,
    new: StateValues,
    recurrent_mask: RecurrentMask,
) -> None:
    """Write the step of `GateNormLSTM`."""
    D = cell.size
    step.product(cell.recurrent.weight, step.read((old.h, recurrent_mask)), to.all)
    # Each gate has its own normalisation; the sums before it are an intermediate result.
    gates = step.sums(4 * D)
    for n, norm in enumerate(cell.norms):
        add_normalised(step, norm, to.all.slice(n * D, D), gates.slice(n * D, D))
    _add_lstm(step, gates, old, new, plain=isinstance(cell, cells.RNMTLSTM))


def _add_lstm(step: StepBuilder, sums: Sums, old: StateValues, new: StateValues, plain: bool = False) -> None:
    assert old.c is not None and new.c is not None
    step.lstm(new.h, new.c, sums, old.h, old.c, plain)


def ssru(
    step: StepBuilder,
    _cell: cells.SSRU,
    to: GateSums,
    old: StateValues,
    new: StateValues,
    _recurrent_mask: RecurrentMask,
) -> None:
    """Write the step of `SSRU`, which has no recurrent product."""
    assert old.c is not None and new.c is not None
    step.ssru(new.h, new.c, to.all, old.h, old.c)


CELL_STEPS: dict[type[cells.Cell], Callable[..., None]] = {
    cells.Tanh: tanh,
    cells.GRU: gru,
    cells.ChoGRU: gru,
    cells.TorchGRU: torch_gru,
    cells.LayerNormGRU: layer_norm_gru,
    cells.LSTM: lstm,
    cells.GateNormLSTM: gate_norm_lstm,
    cells.RNMTLSTM: gate_norm_lstm,
    cells.SSRU: ssru,
}
"""Step writers by exact cell class."""
