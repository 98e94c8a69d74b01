"""Functions on trees of tensors."""

from typing import NamedTuple

import torch
from torch import Tensor

from rnnsearch.utils.tensors import at_least_fp32, lengths_mask, map_tree, select


class Inner(NamedTuple):
    a: Tensor
    nothing: Tensor | None


class Outer(NamedTuple):
    inner: Inner
    plain: tuple[Tensor, int]


class Empty(NamedTuple):
    pass


def test_select_reorders_repeats_and_drops_rows_of_every_leaf():
    rows = torch.arange(3)
    tree = Outer(Inner(rows[:, None] * 10, None), (rows, 5))
    picked = select(tree, torch.tensor([2, 0, 0, 1]))
    assert isinstance(picked, Outer)
    assert isinstance(picked.inner, Inner)
    assert picked.inner.a.tolist() == [[20], [0], [0], [10]]
    assert picked.inner.nothing is None
    assert picked.plain[0].tolist() == [2, 0, 0, 1]
    assert picked.plain[1] == 5
    assert select(tree, torch.tensor([], dtype=torch.int64)).inner.a.shape == (0, 1)
    assert tree.plain[0].tolist() == [0, 1, 2]


def test_map_tree_ignores_non_tensors():
    mark = object()
    assert map_tree(lambda leaf: leaf + 1, (torch.zeros(1), mark, "a", None, Empty())) == (1, mark, "a", None, ())
    assert type(map_tree(lambda leaf: leaf, Empty())) is Empty


def test_lengths_mask():
    expected = [[True, True, False], [False, False, False], [True, True, True]]
    assert lengths_mask(torch.tensor([2, 0, 3]), 3).tolist() == expected


def test_at_least_fp32():
    kinds = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
    kinds |= {torch.float32: torch.float32, torch.float64: torch.float64}
    assert {kind: at_least_fp32(torch.ones(1, dtype=kind)).dtype for kind in kinds} == kinds
