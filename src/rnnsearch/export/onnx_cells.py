"""Recurrent cells as ONNX's own operators, which run over a whole sentence: a graph needs no loop.

| cell      | operator | gates there | what differs                                                            |
|-----------|----------|-------------|-------------------------------------------------------------------------|
| gru       | GRU      | z, r, h     | ONNX carries the old state by z, so that z's weights have the other sign |
| cho-gru   | GRU      | z, r, h     |                                                                         |
| torch-gru | GRU      | z, r, h     | linear_before_reset: the reset acts on the product, with a bias of its own |
| lstm      | LSTM     | i, o, f, c  |                                                                         |
| tanh      | RNN      |             |                                                                         |
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
    """An ONNX operator and its weights: W [G, E], R [G, D] and b [2 G], of W x and of R h."""

    name: str
    W: Tensor
    R: Tensor
    b: Tensor
    options: dict[str, int] = {}  # noqa: RUF012 (nobody writes into it)


def _operator(name: str, order: str, W: Tensor, R: Tensor, b: Tensor, recurrent_b: Tensor | None = None) -> Operator:
    """The operator, with a cell's blocks of rows in its order, which is given by their places in the cell."""

    def ordered(rows: Tensor) -> Tensor:
        parts = rows.chunk(len(order))
        return torch.cat([parts[int(place)] for place in order])

    beside = torch.zeros_like(b) if recurrent_b is None else recurrent_b
    return Operator(name, ordered(W), ordered(R), torch.cat([ordered(b), ordered(beside)]))


def _cho_gru(cell: ChoGRU) -> Operator:
    R = torch.cat([cell.recurrent_gates.weight, cell.recurrent.weight])
    return _operator("GRU", "012", cell.input.weight, R, cell.input.bias)


def _gru(cell: GRU) -> Operator:
    """1 - sigma(a) = sigma(-a)."""
    R = torch.cat([cell.recurrent_gates.weight, cell.recurrent.weight])
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


OPERATORS: dict[type[Cell], Callable[[Any], Operator]] = {
    GRU: _gru,
    ChoGRU: _cho_gru,
    TorchGRU: _torch_gru,
    LSTM: _lstm,
    Tanh: _tanh,
}
"""By the exact class: a derived one may have changed its equations."""


class _Sequence(torch.autograd.Function):
    """A cell over whole sentences, where it is traced: the shapes of what it gives, and the operator that gives it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: Tensor, cell: Cell, backward: bool) -> tuple[Tensor, ...]:  # noqa: ARG004
        states = [x.new_zeros(x.shape[0], cell.size) for _ in cell.state._fields]
        return x.new_zeros(*x.shape[:2], cell.size), *states

    @staticmethod
    def symbolic(g: Any, x: Any, lengths: Any, cell: Cell, backward: bool) -> tuple[Any, ...]:
        name, W, R, b, options = OPERATORS[type(cell)](cell)
        weights = [g.op("Constant", value_t=part.detach()[None].contiguous()) for part in (W, R, b)]
        by_position = g.op("Transpose", x, perm_i=[1, 0, 2])
        directed = {"direction_s": "reverse" if backward else "forward", "hidden_size_i": cell.size}
        states = len(cell.state._fields)
        outputs, *state = g.op(name, by_position, *weights, lengths, outputs=1 + states, **directed, **options)
        first, second = (g.op("Constant", value_t=torch.tensor([axis])) for axis in (0, 1))
        outputs = g.op("Transpose", g.op("Squeeze", outputs, second), perm_i=[1, 0, 2])
        return outputs, *(g.op("Squeeze", part, first) for part in state)


def _sequence(
    cell: Cell, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None, keep: Tensor | None
) -> tuple[Tensor, CellState]:
    """`Cell.sequence` from zero. What it gives on padding differs, which nobody reads."""
    if not torch.onnx.is_in_onnx_export():
        return cell.run(cell.inputs(x), mask, backward, start, keep)
    assert mask is not None and start is None and keep is None
    apply: Callable[..., tuple[Tensor, ...]] = _Sequence.apply
    outputs, *state = apply(x, mask.sum(1).to(torch.int32), cell, backward)
    return outputs, cell.state(*state)


@contextmanager
def as_operators(model: TranslationModel) -> Iterator[None]:
    """Within, the encoder's cells read sentences by `_sequence`, and everything else runs its definition."""
    before: dict[Any, Any] = {part: part.fast_forward for part in model.modules() if hasattr(part, "fast_forward")}
    for part in before:
        part.fast_forward = None
    for cell in model.encoder.modules():
        if isinstance(cell, Cell):
            cell.fast_forward = _sequence
    try:
        yield
    finally:
        for part, fast_forward in before.items():
            part.fast_forward = fast_forward
