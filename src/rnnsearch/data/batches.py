"""Batches of similar length within a budget: seeded, resumable at any batch, their rows shared out among processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from random import Random
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rnnsearch.config import BatchConfig
from rnnsearch.data.batch import PAIR, Direction, Noise, Proposal, Side
from rnnsearch.data.characters import NO_SPELLINGS, Spellings
from rnnsearch.data.epochs import Epoch, Mixture, Widths, blocks, plan
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.links import links_matrix
from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.tokenizer import Spelled
from rnnsearch.text.vocabulary import PAD

Indices = npt.NDArray[np.int64]
Segments = Callable[[Sequence[int], Random], list[int]]
"""Other ids of the same text, as `text.merge_dropout` draws them."""
Inlines = Callable[[Sequence[int], Sequence[int], Random], Sequence[int]]
"""Ids of a source sentence that says more of its translation, as `text.inline_terms` draws them."""


class Share(NamedTuple):
    """What a batch is of a whole one whose rows several processes work on; of one process, all of it."""

    rows: tuple[int, ...]
    """Which rows of the whole batch these are."""
    indices: tuple[int, ...]
    """The numbers in the corpus of all the whole batch's pairs."""
    target_tokens: int
    """The whole batch's real target symbols, EOS included."""
    counts: bool = True
    """False where there are fewer pairs than processes and this one only keeps step, on a row that another has."""


@dataclass(frozen=True)
class Batch:
    """Sentences and their translations. Every sentence ends with EOS."""

    sides: Mapping[str, Side]
    direction: Direction
    indices: tuple[int, ...]
    """The rows' numbers in the corpus."""
    links: Bool[Tensor, "B I J"] | None = None
    """True where target symbol i is linked to source symbol j; None for a corpus without word alignments."""
    share: Share | None = None
    """Of the batches of an epoch: what others have of it."""
    copies: Bool[Tensor, "B I J"] | None = None
    """True where target symbol i is unknown and a copy of source symbol j; None where nobody asks."""
    vocabulary: Int[Tensor, "C"] | None = None
    """The target symbols that the softmax is over in training, sorted; None: all."""
    noise: Noise | None = None
    """The noise words that the target symbols are told from in training, where they are."""

    @property
    def sources(self) -> dict[str, Side]:
        """The sides that it is translated from, by name."""
        return {name: self.sides[name] for name in self.direction.sources}

    @property
    def source(self) -> Side:
        """The one source."""
        (name,) = self.direction.sources
        return self.sides[name]

    @property
    def target(self) -> Side:
        """What is translated into."""
        return self.sides[self.direction.target]

    @property
    def sentences(self) -> int:
        """The number of rows B."""
        return len(self.indices)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device; the copy does not wait where memory is pinned."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """The same batch in memory that a GPU copies from without waiting."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        links, copies = (None if one is None else change(one) for one in (self.links, self.copies))
        sides = {name: side.each(change) for name, side in self.sides.items()}
        vocabulary = None if self.vocabulary is None else change(self.vocabulary)
        noise = None if self.noise is None else self.noise.each(change)
        return replace(self, sides=sides, links=links, copies=copies, vocabulary=vocabulary, noise=noise)

    def turned(self) -> Batch:
        """The same pairs in the other direction: targets as sources."""
        links = None if self.links is None else self.links.transpose(1, 2)
        turned = self.direction.turned()
        return replace(self, direction=turned, links=links, copies=None, vocabulary=None, noise=None)

    def split(self) -> tuple[Batch, Batch]:
        """Two halves of at least one row each, as wide as the whole, so that random numbers drawn for the whole fit;
        needs two rows."""
        assert self.sentences >= 2, "a batch of one row has no halves"
        half = self.sentences // 2
        return self._rows(0, half), self._rows(half, self.sentences)

    def _rows(self, start: int, stop: int) -> Batch:
        sides = {name: side.rows(start, stop) for name, side in self.sides.items()}
        links, copies = (None if one is None else one[start:stop] for one in (self.links, self.copies))
        share = None if self.share is None else self.share._replace(rows=self.share.rows[start:stop])
        indices = self.indices[start:stop]
        noise = None if self.noise is None else self.noise.rows(start, stop)
        return replace(self, sides=sides, indices=indices, links=links, share=share, copies=copies, noise=noise)


def make_batch(
    rows: Sequence[tuple[Sequence[int], ...]],
    indices: Sequence[int],
    direction: Direction = PAIR,
    spellings: Spellings = NO_SPELLINGS,
) -> Batch:
    """The batch of rows of ids, the direction's sources before its target, without BOS and EOS; `indices` are their
    numbers. `spellings`: what is to be held of unknown words, of rows that are `Spelled`."""
    assert len(rows) == len(indices) > 0
    columns = [list(column) for column in zip(*rows, strict=True)]
    sides = dict(zip((*direction.sources, direction.target), columns, strict=True))
    return _batch(ParallelIds.of(sides), np.arange(len(rows)), tuple(indices), direction, spellings)


def _batch(
    ids: ParallelIds,
    rows: Indices,
    indices: tuple[int, ...],
    direction: Direction,
    spellings: Spellings,
    share: Share | None = None,
    widths: Sequence[int] | None = None,
) -> Batch:
    """The batch of rows of a direction's `ids`; `widths`: of its sides, where they are to be wider than the rows."""
    sides = {}
    for name, width in zip(ids.names, widths or [0] * len(ids.names), strict=True):
        padded, inventory = torch.from_numpy(ids.padded(name, rows, width)), spellings.characters.get(name)
        spelling = None if inventory is None else inventory.spelling(padded, ids.unknown_words(name, rows))
        sides[name] = Side.of(padded, spelling)
    batch = Batch(sides, direction, indices, share=share)
    if spellings.copies is not None:
        (source,) = direction.sources
        unknown = [ids.unknown_words(name, rows) for name in (source, direction.target)]
        copies = spellings.copies.matrix(batch.source.ids, unknown[0], batch.target.ids, unknown[1])
        batch = replace(batch, copies=copies)
    if ids.links is None:
        return batch
    links = links_matrix(ids.links, rows, batch.target.ids.shape[1], batch.source.ids.shape[1])
    return replace(batch, links=torch.from_numpy(links))


class Batches:
    """The batches of any epoch (see `epochs.plan`), a function of (corpus, budget, seed, epoch number) alone.

    Of each batch, process `rank` of `world` has rows rank, rank + world, ...; they are as wide as the whole batch, so
    that random numbers drawn for the whole fit. So the batches, and what is learned from them, are the same whatever
    the number of processes, and the budget is that of all processes together. Sides are padded up to a `multiple` where
    few different shapes are wanted.

    Sides that `segments` names are segmented anew each time: a function of seed, epoch number and row. Budget and
    `max_length` count the symbols of the corpus, and word alignments, which are between those, are left out. What
    batches hold of unknown words, `spellings` says. Likewise `inlines` of the first source, before that.

    A `mixture` says how often an epoch has each row.

    With `partition` successive batches of an epoch that have so many different target symbols, or fewer, share these as
    the vocabulary of their softmax (Jean et al. 2015, section 3.2); a batch that alone has more has its own.

    With a `proposal` each batch has its noise words: a function of seed, epoch number and batch.

    They are of one `direction` (without one: from all sides but the last to the last), and hold the rows that have all
    of its sides.

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
        multiple: int = 1,
        direction: Direction | None = None,
        segments: Mapping[str, Segments] | None = None,
        inlines: Inlines | None = None,
        spellings: Spellings = NO_SPELLINGS,
        partition: int | None = None,
        proposal: Proposal | None = None,
        mixture: Mixture | None = None,
    ) -> None:
        assert 0 <= rank < world
        self._mixture = mixture
        self._partition, self._proposal = partition, proposal
        self._segments, self._inlines, self._spellings = dict(segments or {}), inlines, spellings
        self.direction = direction or Direction(ids.names[:-1], ids.names[-1])
        ids = ids.only((*self.direction.sources, self.direction.target))
        self._ids, self._config, self._seed, self._rank, self._world = ids, batch, seed, rank, world
        self._kept, longest, self.left_out = _fitting(ids, max_length)
        """`left_out`: rows with more than `max_length` symbols (without EOS) on some side."""
        self._widths = Widths(multiple, longest)
        if self._kept is not None and len(self._kept) == 0:
            raise DataError(f"no training pair has at most {max_length} symbols a side (training.max_length)")
        if batch.tokens is not None and longest > batch.tokens:
            wanted = f"must be at least {longest}, the length of the longest training pair"
            advice = "training.max_length leaves long pairs out"
            raise ConfigError([f"training.batch.tokens: {wanted} ({advice}); got {batch.tokens}"])
        self._plan: tuple[int, Epoch] | None = None
        self._counts: dict[int, int] = {}
        self._lock = Lock()  # batches are made by a thread ahead of the loop, which asks for counts meanwhile

    def count(self, epoch: int) -> int:
        """The number of batches of an epoch."""
        with self._lock:
            return self._counts[epoch] if epoch in self._counts else len(self._planned(epoch))

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """This process's share of the batches of an epoch, without the first `skip`, which cost nothing."""
        with self._lock:
            planned = self._planned(number)
        for batch, vocabulary in zip(range(skip, len(planned)), self._vocabularies(planned, skip), strict=False):
            made = self._share(planned.pairs(batch), number)
            if vocabulary is not None:
                made = replace(made, vocabulary=torch.from_numpy(vocabulary))
            if self._proposal is not None:
                noise = self._proposal.noise(made.target.ids, self._seed, number, batch)
                made = replace(made, noise=noise)
            yield made

    def _vocabularies(self, planned: Epoch, skip: int) -> Iterator[Indices | None]:
        """That of each batch of an epoch but the first `skip`, where it is parted."""
        if self._partition is None:
            yield from repeat(None)
            return
        begin, target = 0, self._ids.names[-1]
        while begin < len(planned):
            known, end = np.zeros(0, dtype=np.int64), begin
            while end < len(planned):
                more = np.union1d(known, np.setdiff1d(self._ids.padded(target, planned.pairs(end)), [PAD]))
                if end > begin and len(more) > self._partition:
                    break
                known, end = more, end + 1
            yield from repeat(known, max(0, end - max(begin, skip)))
            begin = end

    def of(self, indices: Sequence[int]) -> Batch:
        """The whole batch of some pairs, as the corpus has them."""
        return _batch(self._ids, np.asarray(indices, dtype=np.int64), tuple(indices), self.direction, self._spellings)

    @property
    def padding_waste(self) -> float:
        """The share of padding among all positions of all sides, over the last epoch planned."""
        with self._lock:
            return (self._plan[1] if self._plan else self._planned(0)).waste

    def _planned(self, epoch: int) -> Epoch:
        if self._plan is None or self._plan[0] != epoch:
            self._plan = None  # two at once would take twice the memory
            made = plan(self._ids, self._kept, self._config, self._seed, epoch, self._widths, self._mixture)
            self._plan = epoch, made
            self._counts[epoch] = len(self._plan[1])
        return self._plan[1]

    def _share(self, pairs: Indices, epoch: int) -> Batch:
        drawn = self._segments or self._inlines
        ids, places = (self._drawn(pairs, epoch), np.arange(len(pairs))) if drawn else (self._ids, pairs)
        lengths = ids.lengths(places)
        counts = self._rank < len(pairs)
        rows = np.arange(self._rank, len(pairs), self._world) if counts else np.array([0])
        share = Share(tuple(rows.tolist()), tuple(pairs.tolist()), int(lengths[-1].sum()), counts)
        widths = self._widths.of(lengths.max(1)).tolist()
        numbers = tuple(pairs[rows].tolist())
        return _batch(ids, places[rows], numbers, self.direction, self._spellings, share, widths)

    def _drawn(self, pairs: Indices, epoch: int) -> ParallelIds:
        """Pairs in memory, the sides that `segments` names anew. All processes draw all rows: they share the widths."""
        rows = [self._ids.row(pair) for pair in pairs.tolist()]
        if self._inlines is not None:
            for n, ((source, *others), pair) in enumerate(zip(rows, pairs.tolist(), strict=True)):
                told = self._inlines(source.tolist(), others[-1].tolist(), Random(f"{self._seed} {epoch} {pair} terms"))
                rows[n] = (np.array(told), *others)
        sides: dict[str, list[list[int]]] = {}
        for name, column in zip(self._ids.names, zip(*rows, strict=True), strict=True):
            unknown = self._ids.unknown_words(name, pairs)
            sides[name] = [Spelled(ids.tolist(), words) for ids, words in zip(column, unknown, strict=True)]
            if draw := self._segments.get(name):
                randoms = (Random(f"{self._seed} {epoch} {pair} {name}") for pair in pairs.tolist())
                sides[name] = [draw(ids, random) for ids, random in zip(sides[name], randoms, strict=True)]
        return ParallelIds.of(sides)


def _fitting(ids: ParallelIds, max_length: int | None) -> tuple[npt.NDArray[np.uint32] | None, int, int]:
    """The rows that have all sides and are short enough (None: all rows), the longest side among them, and how many
    are too long."""
    limit = np.iinfo(np.int64).max if max_length is None else max_length + 1
    parts, longest, begin, long = [], 0, 0, 0
    for lengths in blocks(ids):
        whole, longer = lengths.min(0) > 0, lengths.max(0)
        fits = np.flatnonzero(whole & (longer <= limit))
        parts.append((fits + begin).astype(np.uint32))
        longest = max(longest, int(longer[fits].max(initial=0)))
        long += int(whole.sum()) - len(fits)
        begin += lengths.shape[1]
    kept = np.concatenate([np.zeros(0, dtype=np.uint32), *parts])
    return (None if len(kept) == len(ids) > 0 else kept), longest, long
