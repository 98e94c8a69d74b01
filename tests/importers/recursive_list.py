"""A value in a small file whose text would exceed any memory."""

from functools import reduce
from typing import Any

RECURSIVE_LIST: list[Any] = reduce(lambda inner, _: [inner, inner], range(60), list[Any]())
"""Sixty nested lists, each of which contains the next one twice."""
