"""Small tools on trees of tensors: nested named tuples and dicts whose leaves are batch-first tensors or None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Tree = TypeVar("Tree")


def map_tree(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """`function` of every tensor in nested (named) tuples and dicts; other leaves (None, numbers) stay."""
    mapped: Tree = _map(function, tree)
    return mapped


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, tuple):
        parts = [_map(function, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if isinstance(tree, dict):
        return {name: _map(function, part) for name, part in tree.items()}
    return tree


def leaves(tree: Any) -> list[Tensor]:
    """Every tensor of a tree, in order."""
    found: list[Tensor] = []
    map_tree(lambda leaf: found.append(leaf) or leaf, tree)  # type: ignore[func-returns-value]
    return found


def with_leaves(tree: Tree, values: Iterable[Tensor]) -> Tree:
    """The tree with other tensors in the places of its own, in the order of `leaves`."""
    each = iter(values)
    return map_tree(lambda _: next(each), tree)


def stack(trees: Sequence[Tree], dim: int) -> Tree:
    """Trees of one shape as one tree, their tensors side by side on a new axis."""
    columns = zip(*(leaves(tree) for tree in trees), strict=True)
    return with_leaves(trees[0], [torch.stack(column, dim) for column in columns])


def select(tree: Tree, index: Tensor) -> Tree:
    """The rows `index` [N] of every tensor in the tree: the one place that reorders states and memories."""
    return map_tree(lambda leaf: leaf.index_select(0, index), tree)


def each(part: Tensor, rows: int) -> Tensor:
    """A sentence's row for each of its hypotheses: `rows` of them, as many consecutive ones a sentence."""
    return part if len(part) == rows else part.repeat_interleave(rows // len(part), dim=0)


def at_least_fp32(x: Tensor) -> Tensor:
    """x in fp32 where it is narrower (bf16), else as it is: what sums of exponentials are taken in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def product_type(x: Tensor) -> torch.dtype:
    """The type that matrix products with x run in here: autocast's where it is on, else that of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def lengths_mask(lengths: Tensor, width: int) -> Tensor:
    """Mask [B, width], True at the first `lengths` [B] positions of each row."""
    return torch.arange(width, device=lengths.device)[None, :] < lengths[:, None]


def without_last(mask: Tensor) -> Tensor:
    """A mask [B, J] of sentences from the left without each one's last position: its end symbol."""
    return torch.nn.functional.pad(mask[:, 1:], (0, 1))
