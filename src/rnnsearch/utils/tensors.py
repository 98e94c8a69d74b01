"""Operations on trees of tensors, and small tensor helpers.

A tree is a nested named tuple, tuple or dict whose leaves are batch-first tensors or other values,
such as None. Search states and encoder memories are trees.

`search` reorders states with it. New types of tree nodes must be handled in all functions.

Axes: N rows (hypotheses), B sentences, J source positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Tree = TypeVar("Tree")


def map_tree(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Apply a function to every tensor of a tree; other leaves stay."""
    mapped: Tree = _map(function, tree)
    return mapped


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, tuple):
        items = [_map(function, item) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if isinstance(tree, dict):
        return {name: _map(function, item) for name, item in tree.items()}
    return tree


def leaves(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree in order."""
    tensors: list[Tensor] = []
    map_tree(lambda leaf: tensors.append(leaf) or leaf, tree)  # type: ignore[func-returns-value]
    return tensors


def with_leaves(tree: Tree, values: Iterable[Tensor]) -> Tree:
    """Return a tree with its tensors replaced by others, in the order of `leaves`."""
    remaining = iter(values)
    return map_tree(lambda _: next(remaining), tree)


def stack(trees: Sequence[Tree], dim: int) -> Tree:
    """Stack the tensors of trees of the same structure along a new axis."""
    columns = zip(*(leaves(tree) for tree in trees), strict=True)
    return with_leaves(trees[0], [torch.stack(column, dim) for column in columns])


def select(tree: Tree, index: Tensor) -> Tree:
    """Return a tree with the rows `index` [N] of every tensor; this is how states and memories are reordered."""
    return map_tree(lambda leaf: leaf.index_select(0, index), tree)


def repeat_rows(tensor: Tensor, num_rows: int) -> Tensor:
    """Repeat each sentence's row for its hypotheses, which are consecutive, to `num_rows` rows in total."""
    return tensor if len(tensor) == num_rows else tensor.repeat_interleave(num_rows // len(tensor), dim=0)


def at_least_fp32(x: Tensor) -> Tensor:
    """Return x in fp32 if it is narrower (bf16), else unchanged; used for sums of exponentials."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class HostCopy:
    """A copy of a tensor on the host, which is made while the host goes on."""

    def __init__(self, tensor: Tensor) -> None:
        """Start the copy; later changes of the tensor do not affect it."""
        self._copy = tensor.to("cpu", non_blocking=True, copy=True)
        self._copied: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def is_ready(self) -> bool:
        """Return True if `wait` does not wait. It is False for a tensor on the host, so that tests read late."""
        return self._copied is not None and self._copied.query()

    def wait(self) -> Tensor:
        """Return the copy when it is complete."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without waiting for the device's other work."""
    # Only from pinned memory is the copy asynchronous.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Return the type of matrix products with x: autocast's type if it is enabled, else that of x."""
    device_type = x.device.type
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else x.dtype


def lengths_mask(lengths: Tensor, width: int) -> Tensor:
    """Return a mask [B, width] that is True at the first `lengths` [B] positions of each row."""
    return torch.arange(width, device=lengths.device)[None, :] < lengths[:, None]


def without_last(mask: Tensor) -> Tensor:
    """Return a left-aligned mask [B, J] without the last position of each sentence, its end token."""
    return torch.nn.functional.pad(mask[:, 1:], (0, 1))
