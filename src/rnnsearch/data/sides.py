"""One side of a batch: a language, or a stream of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rnnsearch.symbols import Spelling, Symbols
from rnnsearch.text.vocabulary import BOS, PAD


@dataclass(frozen=True)
class Side:
    """Sentences as padded ids, each ended by EOS. A row that lacks this side is nothing but padding."""

    ids: Int[Tensor, "B J"]
    mask: Bool[Tensor, "B J"]
    """True on real symbols, EOS among them."""
    places: Int[Tensor, "N"]
    """Where the real symbols are in `ids.flatten()`, in order: as long as they are many, so a GPU that selects by it
    need not be waited for, as by a mask."""
    spelling: Spelling | None = None

    @classmethod
    def of(cls, ids: Int[Tensor, "B J"], spelling: Spelling | None = None) -> Side:
        """From rows that are padded by PAD."""
        mask = ids != PAD
        return cls(ids, mask, mask.flatten().nonzero()[:, 0], spelling)

    @classmethod
    def unplaced(cls, ids: Int[Tensor, "B J"], mask: Bool[Tensor, "B J"]) -> Side:
        """For those who need not know the places: there are none."""
        return cls(ids, mask, ids.new_empty(0))

    @property
    def symbols(self) -> Symbols:
        """What an embedding takes."""
        return Symbols(self.ids, self.spelling)

    @property
    def tokens(self) -> int:
        """The real symbols, EOS included."""
        return len(self.places)

    @property
    def present(self) -> Bool[Tensor, "B"]:
        """True for rows that have this side."""
        return self.mask.any(1)

    def previous(self) -> Int[Tensor, "B J"]:
        """y_{i-1} for every position i: BOS, then the ids shifted right."""
        first = torch.full_like(self.ids[:, :1], BOS)
        return torch.cat([first, self.ids[:, :-1]], dim=1)

    def to(self, device: torch.device | str) -> Side:
        """The same on a device; the copy does not wait where memory is pinned."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def rows(self, start: int, stop: int) -> Side:
        """Some rows, as wide as all."""
        return Side.of(self.ids[start:stop], None if self.spelling is None else self.spelling.rows(start, stop))

    def each(self, change: Callable[[Tensor], Tensor]) -> Side:
        """The same with all tensors changed."""
        spelling = None if self.spelling is None else self.spelling.each(change)
        return Side(change(self.ids), change(self.mask), change(self.places), spelling)
