"""A small value whose text would fill all machines."""

from functools import reduce
from typing import Any

ENDLESS: list[Any] = reduce(lambda held, _: [held, held], range(60), list[Any]())
"""Sixty lists, each twice in the next."""
