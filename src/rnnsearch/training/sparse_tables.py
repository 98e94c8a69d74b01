"""Sparse updates of embeddings and output layers: only the rows that a batch reads.

If the loss samples its targets, an update reads few words of the vocabulary (Jean et al. 2015, section 3.2). An
optimiser that saw all rows would also move the others, by their moments, and take time that grows with the
vocabulary. Instead it is given only the rows that have a gradient, with their moments. Large tables may be in
memory-mapped files.

`training/tasks.py` creates a `SparseTables`, and each update calls `step`. The optimiser's state must be per value or a
scalar, and checkpoints store it like that of other parameters.
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
from rnnsearch.ops.malloc import release_free_memory

MIN_MAPPED_BYTES = 64 << 20
"""Size from which on a tensor is worth a memory-mapped file."""


def is_mappable(tensor: Tensor) -> bool:
    """Return True if the tensor is large enough for a memory-mapped file."""
    return tensor.numel() * tensor.element_size() >= MIN_MAPPED_BYTES


def mapped_zeros(like: Tensor, folder: Path | None) -> Tensor:
    """Return a tensor of zeros of the same shape, memory-mapped if it is large.

    The file is unlinked, so it disappears with the tensor. The tensor is in memory if no folder is given, the disk is
    full, or the system cannot reserve space beforehand.
    """
    if folder is None or not is_mappable(like) or not hasattr(os, "posix_fallocate"):
        return torch.zeros_like(like)
    try:
        with NamedTemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, like.numel() * like.element_size())
            mapped = torch.from_file(file.name, shared=True, size=like.numel(), dtype=like.dtype)
    except OSError:
        return torch.zeros_like(like)
    return mapped.view(like.shape)


def to_mapped(tensor: Tensor, folder: Path | None) -> Tensor:
    """Return a copy of a tensor, memory-mapped if it is large."""
    return mapped_zeros(tensor, folder).copy_(tensor)


class SparseTables:
    """The embeddings and output layers of a model, whose row n belongs to word n, updated by rows."""

    def __init__(self, model: nn.Module | None = None, sparse: bool = False, folder: Path | None = None) -> None:
        """Collect the tables of a model; without a model there are none.

        Args:
            model: Model with `Embedding` and `Output` modules.
            sparse: Use sparse gradients of the rows; dense gradients, which are 0 elsewhere, give the same updates.
            folder: Folder for memory-mapped files of large tables and their moments; None keeps them in memory.
        """
        self._folder = folder
        modules = _modules(model or nn.Module())
        for module in modules:
            module.sparse = sparse
        self._tables = {id(table): table for table in _tables(modules)}
        self.num_mapped = 0 if folder is None else _count_mappable(self._tables.values())
        """Number of values in memory-mapped tables; their moments are mapped, too."""
        if self.num_mapped:
            for table in self._tables.values():
                # The parameter itself stays: modules and parameter groups refer to it.
                table.data = to_mapped(table.data, folder)
            # The tables' former memory is free now.
            release_free_memory()

    def map_optimiser_state(self, optimiser: optim.Optimizer) -> None:
        """Move moments that were loaded from a checkpoint into memory-mapped files."""
        if self._folder is None:
            return
        for table in self._tables.values():
            state: dict[str, Any] = optimiser.state.get(table, {})
            for name, value in state.items():
                if _is_elementwise(table, value):
                    state[name] = to_mapped(value, self._folder)

    def step(self, optimiser: optim.Optimizer) -> None:
        """Make one step of the optimiser, in which tables are replaced by their rows with a gradient."""
        replaced = []
        with torch.no_grad():
            for group in optimiser.param_groups:
                for index, parameter in enumerate(group["params"]):
                    if id(parameter) in self._tables and parameter.grad is not None:
                        replaced.append(_Rows.take(optimiser, group["params"], index, self._folder))
        try:
            optimiser.step()
        finally:
            # Also after an error, or a checkpoint would lose the tables.
            for rows in replaced:
                rows.put_back(optimiser)


def count_mappable(model: nn.Module) -> int:
    """Return the number of values in a model's tables that `SparseTables` can memory-map."""
    return _count_mappable(_tables(_modules(model)))


def _count_mappable(tables: Iterable[Tensor]) -> int:
    return sum(table.numel() for table in tables if is_mappable(table))


def _modules(model: nn.Module) -> list[Embedding | Output]:
    return [m for m in model.modules() if isinstance(m, Embedding | Output)]


def _tables(modules: list[Embedding | Output]) -> list[nn.Parameter]:
    """Return the modules' parameters; a shared one appears once."""
    return list({id(p): p for module in modules for p in module.parameters(recurse=False)}.values())


@dataclass(frozen=True)
class _Rows:
    """Rows of a table that replace it in an optimiser's parameter list during a step."""

    parameters: list[nn.Parameter]
    """The parameter list of the optimiser's group."""
    index: int
    """Index of the table in the list."""
    table: nn.Parameter
    indices: Tensor
    """Indices of the rows in the table."""
    values: nn.Parameter
    folder: Path | None

    @classmethod
    def take(cls, optimiser: optim.Optimizer, parameters: list[nn.Parameter], index: int, folder: Path | None) -> _Rows:
        """Replace a table by its rows with a gradient, and their moments."""
        table = parameters[index]
        indices, gradient = _nonzero_rows(table.grad)
        values = nn.Parameter(table.detach()[indices])
        values.grad = gradient
        state: dict[str, Any] = optimiser.state[table]
        if state:
            # Moments of the rows; entries without rows, such as the step count, are passed on as they are.
            optimiser.state[values] = {
                name: value[indices] if _is_elementwise(table, value) else value for name, value in state.items()
            }
        # The optimiser's own list, so that its step sees the rows instead of the table.
        parameters[index] = values
        return cls(parameters, index, table, indices, values, folder)

    @torch.no_grad()
    def put_back(self, optimiser: optim.Optimizer) -> None:
        """Write the rows and their moments back into the table."""
        self.parameters[self.index] = self.table
        self.table[self.indices] = self.values.detach()
        state: dict[str, Any] = optimiser.state[self.table]
        for name, value in optimiser.state.pop(self.values, {}).items():
            if not _is_elementwise(self.values, value):
                state[name] = value
                continue
            if state.get(name) is None:
                state[name] = mapped_zeros(self.table.detach(), self.folder)
            state[name][self.indices] = value


def _is_elementwise(parameter: Tensor, value: Any) -> bool:
    """Return True if an entry of the optimiser's state has one value per value of the parameter."""
    return isinstance(value, Tensor) and value.shape == parameter.shape


def _nonzero_rows(gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the indices of the rows whose gradient is not 0, and the gradient of these rows."""
    assert gradient is not None
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        rows = gradient.indices()[0]
        values = gradient.values()
        # A row that was read may have a gradient of exactly 0, and is skipped as in the dense case.
        nonzero = values.any(1)
        return rows[nonzero], values[nonzero]
    rows = (gradient if gradient.dim() == 1 else gradient.any(1)).nonzero()[:, 0]
    return rows, gradient[rows]
