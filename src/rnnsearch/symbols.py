"""What models read: the ids of symbols and, where something composes them, the characters they are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Spelling:
    """The characters of a batch's symbols, each different symbol once. A plain object: `tensors.select` leaves it.

    Row 0 of `characters` is of what has no spelling (padding, EOS): all 0, which also pads shorter symbols.
    """

    which: Int[Tensor, "B J"]
    """The row of `characters` that spells each symbol."""
    characters: Int[Tensor, "S L"]

    def each(self, change: Callable[[Tensor], Tensor]) -> Spelling:
        """The same spelling with both tensors changed."""
        return Spelling(change(self.which), change(self.characters))

    def rows(self, start: int, stop: int) -> Spelling:
        """That of some rows; the table stays whole."""
        return Spelling(self.which[start:stop], self.characters)


class Symbols(NamedTuple):
    """Symbols as an embedding takes them."""

    ids: Int[Tensor, "*rows"]
    spelling: Spelling | None = None
