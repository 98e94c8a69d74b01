"""Batches of similar length within a budget: seeded, resumable at any batch, shared out among ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rnnsearch.config import BatchConfig
from rnnsearch.data.prepared import ParallelIds
from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.vocabulary import BOS, PAD

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as padded ids; masks are True on real symbols. Every sentence ends with EOS."""

    source: Int[Tensor, "B J"]
    source_mask: Bool[Tensor, "B J"]
    target: Int[Tensor, "B I"]
    target_mask: Bool[Tensor, "B I"]
    indices: tuple[int, ...]
    """The pairs' numbers in the corpus."""
    links: Bool[Tensor, "B I J"] | None = None
    """True where target symbol i is linked to source symbol j; None for a corpus without word alignments."""

    @property
    def sentences(self) -> int:
        """The number of pairs B."""
        return len(self.indices)

    @property
    def source_tokens(self) -> int:
        """The real source symbols, EOS included."""
        return int(self.source_mask.sum())

    @property
    def target_tokens(self) -> int:
        """The real target symbols, EOS included."""
        return int(self.target_mask.sum())

    def previous(self) -> Int[Tensor, "B I"]:
        """y_{i-1} for every position i: BOS, then the target shifted right."""
        first = torch.full_like(self.target[:, :1], BOS)
        return torch.cat([first, self.target[:, :-1]], dim=1)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device; the copy does not wait where memory is pinned."""
        return Batch(
            source=self.source.to(device, non_blocking=True),
            source_mask=self.source_mask.to(device, non_blocking=True),
            target=self.target.to(device, non_blocking=True),
            target_mask=self.target_mask.to(device, non_blocking=True),
            indices=self.indices,
            links=None if self.links is None else self.links.to(device, non_blocking=True),
        )

    def turned(self) -> "Batch":
        """The same pairs in the other direction: targets as sources."""
        links = None if self.links is None else self.links.transpose(1, 2)
        return Batch(self.target, self.target_mask, self.source, self.source_mask, self.indices, links)

    def split(self) -> tuple["Batch", "Batch"]:
        """Two halves of at least one pair each, needless padding cut off; needs two pairs."""
        assert self.sentences >= 2, "a batch of one pair has no halves"
        half = self.sentences // 2
        return self._rows(0, half), self._rows(half, self.sentences)

    def _rows(self, start: int, stop: int) -> "Batch":
        source_mask, target_mask = self.source_mask[start:stop], self.target_mask[start:stop]
        width, height = int(source_mask.sum(1).max()), int(target_mask.sum(1).max())
        return Batch(
            source=self.source[start:stop, :width],
            source_mask=source_mask[:, :width],
            target=self.target[start:stop, :height],
            target_mask=target_mask[:, :height],
            indices=self.indices[start:stop],
            links=None if self.links is None else self.links[start:stop, :height, :width],
        )


def make_batch(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], indices: Sequence[int]) -> Batch:
    """The batch of (source ids, target ids) pairs, given without BOS and EOS; `indices` are their numbers."""
    assert len(pairs) == len(indices) > 0
    ids = ParallelIds.of([source for source, _ in pairs], [target for _, target in pairs])
    return _batch(ids, np.arange(len(pairs)), tuple(indices))


def _batch(ids: ParallelIds, rows: Indices, indices: tuple[int, ...]) -> Batch:
    source, target = (torch.from_numpy(side) for side in ids.padded(rows))
    links = None
    if ids.links is not None:
        links = torch.from_numpy(ids.links.dense(rows, target.shape[1], source.shape[1]))
    return Batch(source, source != PAD, target, target != PAD, indices, links)


@dataclass(frozen=True)
class _Plan:
    """One epoch: its batches' pair numbers in the order of use, and the share of padding in them."""

    epoch: int
    batches: list[Indices]
    waste: float


class Batches:
    """The batches of any epoch, a function of (corpus, budget, seed, epoch number) alone.

    Pairs are shuffled; `sort_batches` batches' worth of them at a time are sorted by length and cut
    into batches, and all batches are shuffled again (Bahdanau et al., 2015, appendix B.2, take 20
    batches' worth). The token budget bounds rows * max(J, I), with EOS. With several ranks, rank r
    takes batches r, r + world, ...; all ranks have equally many, for which the largest batches are
    halved until the number divides (where only single pairs are left, the last few wait for another
    epoch's shuffle).

    Errors: DataError if no pair is within `max_length`; ConfigError if a pair alone is over the budget.
    """

    def __init__(
        self,
        ids: ParallelIds,
        batch: BatchConfig,
        max_length: int | None,
        seed: int,
        *,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        assert 0 <= rank < world
        self._ids, self._config, self._seed, self._rank, self._world = ids, batch, seed, rank, world
        self._widths = np.maximum(ids.source_lengths, ids.target_lengths)
        fits = np.ones(len(ids), dtype=bool) if max_length is None else self._widths <= max_length + 1
        self._kept: Indices = np.flatnonzero(fits)
        self.left_out = len(ids) - len(self._kept)
        """Pairs with more than `max_length` symbols (without EOS) on either side."""
        if len(self._kept) == 0:
            raise DataError(f"no training pair has at most {max_length} symbols a side (training.max_length)")
        longest = int(self._widths[self._kept].max())
        if batch.tokens is not None and longest > batch.tokens:
            wanted = f"must be at least {longest}, the length of the longest training pair"
            advice = "training.max_length leaves long pairs out"
            raise ConfigError([f"training.batch.tokens: {wanted} ({advice}); got {batch.tokens}"])
        self._plan: _Plan | None = None

    def count(self, epoch: int) -> int:
        """The number of batches of an epoch on each rank."""
        return len(self._planned(epoch).batches) // self._world

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """This rank's batches of an epoch, without the first `skip`, which cost nothing."""
        batches = self._planned(number).batches
        for rows in batches[self._rank :: self._world][skip:]:
            yield _batch(self._ids, rows, tuple(rows.tolist()))

    @property
    def padding_waste(self) -> float:
        """The share of padding among all positions of both sides, over the last epoch asked for."""
        return (self._plan or self._planned(0)).waste

    def _planned(self, epoch: int) -> _Plan:
        if self._plan is None or self._plan.epoch != epoch:
            rng = np.random.default_rng([self._seed, epoch])
            pool = rng.permutation(self._kept)
            batches = [rows for chunk in self._chunks(pool) for rows in self._cut(self._sorted(chunk))]
            order = rng.permutation(len(batches))
            batches = _divisible([batches[i] for i in order], self._world)
            self._plan = _Plan(epoch, batches, self._waste(batches))
        return self._plan

    def _chunks(self, pool: Indices) -> list[Indices]:
        """The pool in pieces of about `sort_batches` batches each."""
        if self._config.sentences is not None:
            size = self._config.sentences * self._config.sort_batches
            return np.split(pool, range(size, len(pool), size))
        assert self._config.tokens is not None
        used = np.cumsum(self._widths[pool], dtype=np.int64) // (self._config.tokens * self._config.sort_batches)
        return np.split(pool, np.flatnonzero(np.diff(used)) + 1)

    def _sorted(self, chunk: Indices) -> Indices:
        """By the longer side, then by the sides' difference to and fro: neighbours are alike on both sides."""
        longer = self._widths[chunk]
        difference = self._ids.source_lengths[chunk] - self._ids.target_lengths[chunk]
        return chunk[np.lexsort((np.where(longer % 2 == 0, difference, -difference), longer))]

    def _cut(self, chunk: Indices) -> list[Indices]:
        """Batches, in order: as many rows each as the budget allows."""
        config = self._config
        if config.sentences is not None:
            return np.split(chunk, range(config.sentences, len(chunk), config.sentences))
        assert config.tokens is not None
        widths, batches, start = self._widths[chunk].astype(np.int64), [], 0
        while start < len(chunk):
            width = np.maximum.accumulate(widths[start : start + config.tokens // widths[start]])
            rows = int(np.searchsorted(width * np.arange(1, len(width) + 1), config.tokens, side="right"))
            batches.append(chunk[start : start + rows])
            start += rows
        return batches

    def _waste(self, batches: list[Indices]) -> float:
        positions = 0
        for lengths in (self._ids.source_lengths, self._ids.target_lengths):
            positions += sum(len(rows) * int(lengths[rows].max()) for rows in batches)
        rows = np.concatenate(batches)
        real = int(self._ids.source_lengths[rows].sum()) + int(self._ids.target_lengths[rows].sum())
        return 1.0 - real / positions


def _divisible(batches: list[Indices], world: int) -> list[Indices]:
    """The batches with the largest halved until `world` divides their number; single pairs are left over."""
    missing = -len(batches) % world
    for _ in range(missing):
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        rows = batches[largest]
        if len(rows) == 1:
            return batches[: len(batches) // world * world]
        batches[largest] = rows[: len(rows) // 2]
        batches.append(rows[len(rows) // 2 :])
    return batches
