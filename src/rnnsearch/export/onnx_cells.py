"""Recurrent cells as ONNX's own operators, which process whole sentences, so that a graph needs no loop.

| cell      | operator | order of gates | difference                                                                  |
|-----------|----------|----------------|-----------------------------------------------------------------------------|
| gru       | GRU      | z, r, h        | in ONNX, z keeps the old state, so z's weights have the opposite sign       |
| cho-gru   | GRU      | z, r, h        |                                                                             |
| torch-gru | GRU      | z, r, h        | linear_before_reset: r is applied to the product, which has a separate bias |
| lstm      | LSTM     | i, o, f, c     |                                                                             |
| tanh      | RNN      |                |                                                                             |

`export.onnx` traces a model inside `as_operators`.

A cell without an entry in `OPERATORS` cannot be exported. The order of gates is ONNX's and must be kept in
`_operator`. Tests: `tests/onnx/test_graphs.py`, which runs the graphs with onnxruntime.

Axes: B sentences, J source positions, E input, D state, `gates` gates of the cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.models.cells import GRU, LSTM, Cell, ChoGRU, Tanh, TorchGRU
from rnnsearch.models.memory import CellState
from rnnsearch.models.translation_model import TranslationModel


class Operator(NamedTuple):
    """An ONNX operator and its weights."""

    name: str  # name of the operator in ONNX
    W: Tensor  # [gates * D, E], input weights
    R: Tensor  # [gates * D, D], recurrent weights
    b: Tensor  # [2 * gates * D], input biases, then recurrent biases
    options: dict[str, int] = {}  # noqa: RUF012 (never modified)


def _operator(name: str, order: str, W: Tensor, R: Tensor, b: Tensor, recurrent_b: Tensor | None = None) -> Operator:
    """Return the operator of a cell.

    Args:
        name: Name of the operator.
        order: For each gate of the operator, the position of its block of rows in the cell's weights.
        W: Input weights of the cell.
        R: Recurrent weights of the cell.
        b: Input biases of the cell.
        recurrent_b: Recurrent biases of the cell; 0 by default.
    """

    def reorder(rows: Tensor) -> Tensor:
        blocks = rows.chunk(len(order))
        return torch.cat([blocks[int(position)] for position in order])

    if recurrent_b is None:
        recurrent_b = torch.zeros_like(b)
    return Operator(name, reorder(W), reorder(R), torch.cat([reorder(b), reorder(recurrent_b)]))


def _cho_gru(cell: ChoGRU) -> Operator:
    R = torch.cat([cell.recurrent_gates.weight, cell.recurrent.weight])
    return _operator("GRU", "012", cell.input.weight, R, cell.input.bias)


def _gru(cell: GRU) -> Operator:
    R = torch.cat([cell.recurrent_gates.weight, cell.recurrent.weight])
    # 1 - sigma(a) = sigma(-a)
    sign = torch.ones(len(R), 1)
    sign[: cell.size] = -1.0
    return _operator("GRU", "012", sign * cell.input.weight, sign * R, sign[:, 0] * cell.input.bias)


def _torch_gru(cell: TorchGRU) -> Operator:
    weights = cell.input.weight, cell.recurrent.weight, cell.input.bias, cell.recurrent.bias
    return _operator("GRU", "102", *weights)._replace(options={"linear_before_reset_i": 1})


def _lstm(cell: LSTM) -> Operator:
    return _operator("LSTM", "0213", cell.input.weight, cell.recurrent.weight, cell.input.bias)


def _tanh(cell: Tanh) -> Operator:
    return _operator("RNN", "0", cell.input.weight, cell.recurrent.weight, cell.input.bias)


# By the exact class, because a derived class may have other equations.
OPERATORS: dict[type[Cell], Callable[[Any], Operator]] = {
    GRU: _gru,
    ChoGRU: _cho_gru,
    TorchGRU: _torch_gru,
    LSTM: _lstm,
    Tanh: _tanh,
}


class _Sequence(torch.autograd.Function):
    """A cell over whole sentences, as the exporter sees it: shapes of the outputs, and the operator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: Tensor, cell: Cell, backward: bool) -> tuple[Tensor, ...]:  # noqa: ARG004
        """Return outputs [B, J, D] and last states [B, D] of the right shapes."""
        states = [x.new_zeros(x.shape[0], cell.size) for _ in cell.state._fields]
        return x.new_zeros(*x.shape[:2], cell.size), *states

    @staticmethod
    def symbolic(g: Any, x: Any, lengths: Any, cell: Cell, backward: bool) -> tuple[Any, ...]:
        """Return the outputs of the operator in the graph `g`."""
        name, W, R, b, options = OPERATORS[type(cell)](cell)
        weights = [g.op("Constant", value_t=weight.detach()[None].contiguous()) for weight in (W, R, b)]
        num_states = len(cell.state._fields)
        direction = "reverse" if backward else "forward"
        outputs, *states = g.op(
            name,
            g.op("Transpose", x, perm_i=[1, 0, 2]),  # [J, B, E]
            *weights,
            lengths,
            outputs=1 + num_states,
            direction_s=direction,
            hidden_size_i=cell.size,
            **options,
        )
        # ONNX has an axis for the directions: [J, 1, B, D] and [1, B, D].
        axis_0 = g.op("Constant", value_t=torch.tensor([0]))
        axis_1 = g.op("Constant", value_t=torch.tensor([1]))
        outputs = g.op("Transpose", g.op("Squeeze", outputs, axis_1), perm_i=[1, 0, 2])  # [B, J, D]
        return outputs, *(g.op("Squeeze", state, axis_0) for state in states)


def _sequence(
    cell: Cell, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None, recurrent_mask: Tensor | None
) -> tuple[Tensor, CellState]:
    """Replace `Cell.sequence` during the export. Outputs at padding differ, but they are never read."""
    if not torch.onnx.is_in_onnx_export():
        return cell.run(cell.inputs(x), mask, backward, start, recurrent_mask)
    assert mask is not None and start is None and recurrent_mask is None
    apply: Callable[..., tuple[Tensor, ...]] = _Sequence.apply
    outputs, *states = apply(x, mask.sum(1).to(torch.int32), cell, backward)
    return outputs, cell.state(*states)


@contextmanager
def as_operators(model: TranslationModel) -> Iterator[None]:
    """Inside this context, the encoder's cells are operators, and all other modules run their definitions."""
    modules: list[Any] = [module for module in model.modules() if hasattr(module, "fast_forward")]
    fast_forwards = [module.fast_forward for module in modules]
    for module in modules:
        module.fast_forward = None
    for cell in model.encoder.modules():
        if isinstance(cell, Cell):
            cell.fast_forward = _sequence
    try:
        yield
    finally:
        for module, fast_forward in zip(modules, fast_forwards, strict=True):
            module.fast_forward = fast_forward
