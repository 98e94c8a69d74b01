"""Tables of words of which an update changes those rows alone that its batches read.

Training over a part of the vocabulary reads few of its words in an update (Jean et al. 2015, section 3.2), noise words
still fewer. An optimiser that saw all rows would move the others, too, by what it remembers of earlier updates, and
take a time that grows with the vocabulary. It is given the rows that have a gradient, with their moments.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from torch import Tensor, nn, optim

from rnnsearch.models.layers import Embedding
from rnnsearch.models.outputs import Output
from rnnsearch.training.malloc import give_back

# Tensors whose memory is a file, which the system may write out where memory is short.

LARGE = 64 << 20
"""Bytes from which on a tensor is worth a file."""


def is_large(tensor: Tensor) -> bool:
    """Whether it is worth a file."""
    return tensor.numel() * tensor.element_size() >= LARGE


def zeros(like: Tensor, folder: Path | None) -> Tensor:
    """A tensor of zeros of the same shape, if it is large in a file of this folder, which has no name and goes with it.
    In memory where there is no such file: on a full disk, or a system that cannot say so beforehand."""
    if folder is None or not is_large(like) or not hasattr(os, "posix_fallocate"):
        return torch.zeros_like(like)
    try:
        with NamedTemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, like.numel() * like.element_size())
            mapped = torch.from_file(file.name, shared=True, size=like.numel(), dtype=like.dtype)
    except OSError:
        return torch.zeros_like(like)
    return mapped.view(like.shape)


def moved(tensor: Tensor, folder: Path | None) -> Tensor:
    """A tensor's numbers where `zeros` are."""
    return zeros(tensor, folder).copy_(tensor)


class Tables:
    """Those of a model: its embeddings and output layer, whose row n is of word n; without a model none."""

    def __init__(self, model: nn.Module | None = None, sparse: bool = False, folder: Path | None = None) -> None:
        """sparse: gradients, too, are of these rows alone; else they are whole and 0 elsewhere, which is the same.
        folder: where large tables and their moments are in files (`in_files`); without it in memory."""
        self._folder = folder
        modules = _modules(model or nn.Module())
        for module in modules:
            module.sparse = sparse
        self._tables = {id(table): table for table in _tables(modules)}
        self.in_files = 0 if folder is None else _large(self._tables.values())
        """Numbers of tables that are in files, as their moments are."""
        if self.in_files:
            for table in self._tables.values():
                table.data = moved(table.data, folder)
            give_back()

    def settle(self, optimiser: optim.Optimizer) -> None:
        """Moments that were read from a checkpoint go where those of this run are."""
        for table in self._tables.values() if self._folder is not None else ():
            state: dict[str, Any] = optimiser.state.get(table, {})
            state |= {name: moved(value, self._folder) for name, value in state.items() if _is_of(table, value)}

    def step(self, optimiser: optim.Optimizer) -> None:
        """One step of the optimiser, which sees the rows that have a gradient alone."""
        with torch.no_grad():
            taken = [
                _Rows.of(optimiser, group["params"], place, self._folder)
                for group in optimiser.param_groups
                for place, parameter in enumerate(group["params"])
                if id(parameter) in self._tables and parameter.grad is not None
            ]
        try:
            optimiser.step()
        finally:
            for rows in taken:
                rows.give_back(optimiser)


def large(model: nn.Module) -> int:
    """Numbers of a model's tables that `Tables` can have in files."""
    return _large(_tables(_modules(model)))


def _large(tables: Iterable[Tensor]) -> int:
    return sum(table.numel() for table in tables if is_large(table))


def _modules(model: nn.Module) -> list[Embedding | Output]:
    return [m for m in model.modules() if isinstance(m, Embedding | Output)]


def _tables(modules: list[Embedding | Output]) -> list[nn.Parameter]:
    """Their parameters, a shared one once."""
    return list({id(p): p for module in modules for p in module.parameters(recurse=False)}.values())


@dataclass(frozen=True)
class _Rows:
    """Rows of a table that stand in its place in an optimiser's list."""

    parameters: list[nn.Parameter]
    place: int
    table: nn.Parameter
    rows: Tensor
    own: nn.Parameter
    folder: Path | None

    @classmethod
    def of(cls, optimiser: optim.Optimizer, parameters: list[nn.Parameter], place: int, folder: Path | None) -> _Rows:
        table = parameters[place]
        rows, gradient = _with_gradient(table.grad)
        own = nn.Parameter(table.detach()[rows])
        own.grad = gradient
        state: dict[str, Any] = optimiser.state[table]
        moments = {name: value[rows] if _is_of(table, value) else value for name, value in state.items()}
        if moments:
            optimiser.state[own] = moments
        parameters[place] = own
        return cls(parameters, place, table, rows, own, folder)

    @torch.no_grad()
    def give_back(self, optimiser: optim.Optimizer) -> None:
        """The rows and their moments into the table's."""
        self.parameters[self.place] = self.table
        self.table[self.rows] = self.own.detach()
        state: dict[str, Any] = optimiser.state[self.table]
        for name, value in optimiser.state.pop(self.own, {}).items():
            if not _is_of(self.own, value):
                state[name] = value
                continue
            if state.get(name) is None:
                state[name] = zeros(self.table.detach(), self.folder)
            state[name][self.rows] = value


def _is_of(parameter: Tensor, value: Any) -> bool:
    """Whether it is an optimiser's number for each of a parameter's."""
    return isinstance(value, Tensor) and value.shape == parameter.shape


def _with_gradient(gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    """The numbers of the rows whose gradient is not 0, and it."""
    assert gradient is not None
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        some = values.any(1)
        return rows[some], values[some]
    rows = (gradient if gradient.dim() == 1 else gradient.any(1)).nonzero()[:, 0]
    return rows, gradient[rows]
