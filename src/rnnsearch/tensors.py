"""Small tools on trees of tensors: nested named tuples whose leaves are batch-first tensors or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Tree = TypeVar("Tree")


def map_tree(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """`function` of every tensor in nested (named) tuples; other leaves (None, numbers) stay."""
    mapped: Tree = _map(function, tree)
    return mapped


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, tuple):
        parts = [_map(function, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


def select(tree: Tree, index: Tensor) -> Tree:
    """The rows `index` [N] of every tensor in the tree: the one place that reorders states and memories."""
    return map_tree(lambda leaf: leaf.index_select(0, index), tree)


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
