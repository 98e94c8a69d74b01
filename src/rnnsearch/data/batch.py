"""One side of a batch: a language, or a stream of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rnnsearch.text.vocabulary import BOS, PAD

# Which sides a translation goes from and to. Imports no torch, as preparing a corpus does not.


class Direction(NamedTuple):
    """The sides that a translation goes from, and the one it goes to."""

    sources: tuple[str, ...]
    target: str

    def turned(self) -> "Direction":
        """The other way round, of a direction with one source."""
        (source,) = self.sources
        return Direction((self.target,), source)


PAIR = Direction(("source",), "target")
"""Of sentence pairs whose languages do not matter."""


# Noise words: what an objective that tells words of the text from others (`objectives/contrast.py`) draws a batch.


class Noise(NamedTuple):
    """K words that all target positions of a batch share."""

    ids: Int[Tensor, "K"]
    log_q: Float[Tensor, "K"]
    """The log-probability of each under the distribution that they are drawn from."""
    of_target: Float[Tensor, "B I"]
    """That of the target symbols."""

    def rows(self, start: int, stop: int) -> Noise:
        """That of some rows of the batch."""
        return self._replace(of_target=self.of_target[start:stop])

    def each(self, change: Callable[[Tensor], Tensor]) -> Noise:
        """The same, each tensor changed."""
        return Noise(*map(change, self))


class Proposal:
    """Words drawn by their counts in the training text to a power; one that never occurs counts as if once."""

    def __init__(self, counts: NDArray[np.int64], power: float, samples: int) -> None:
        share = np.maximum(counts, 1).astype(np.float64) ** power
        self._ends = np.cumsum(share)
        self._log_q = np.log(share / self._ends[-1]).astype(np.float32)
        self._samples = samples

    def noise(self, targets: Int[Tensor, "B I"], *seed: int) -> Noise:
        """That of a batch: a function of the `seed` alone."""
        at = np.random.default_rng(seed).random(self._samples) * self._ends[-1]
        ids = np.minimum(np.searchsorted(self._ends, at, side="right"), len(self._ends) - 1)
        return Noise(*map(torch.from_numpy, (ids, self._log_q[ids], self._log_q[targets.numpy()])))


# What models read: the ids of symbols and, where something composes them, the characters they are made of.


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
