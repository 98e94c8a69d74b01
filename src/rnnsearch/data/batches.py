"""Batches of sentences of similar length within a budget.

`Batches` yields the batches of an epoch: seeded, resumable at any batch, with their rows distributed over processes.
`make_batch` makes one batch from given rows.

`training/run.py` creates `Batches`. The rows of a batch and their order must not depend on the number of processes, nor
on where a run was resumed: tests/data/test_batches.py, tests/training/test_distributed.py.

Axes: B rows, J source and I target positions, C tokens of a reduced softmax vocabulary.
"""

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
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rnnsearch.config import BatchConfig
from rnnsearch.data.arrays import ArrayIds
from rnnsearch.data.batch import DEFAULT_DIRECTION, Direction, NoiseDistribution, NoiseWords, Stream
from rnnsearch.data.characters import NO_CHARACTERS, WordCharacters
from rnnsearch.data.epochs import BatchWidths, CorpusMixture, EpochPlan, length_blocks, plan_epoch
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.links import links_matrix
from rnnsearch.data.ragged import RaggedArray
from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.tokenizer import SpelledIds
from rnnsearch.text.vocabulary import PAD

Indices = npt.NDArray[np.int64]
Resegment = Callable[[Sequence[int], Random], list[int]]
"""A function that samples another segmentation of a sentence (`text.bpe_dropout`, `text.unigram_sampling`)."""
InlineTermsFunction = Callable[[Sequence[int], Sequence[int], Random], Sequence[int]]
"""A function that adds translations of terms to source ids, given source and target (`text.inline_terms`)."""


class Shard(NamedTuple):
    """The part of a whole batch that one of several processes works on; with one process, all of it."""

    rows: tuple[int, ...]
    """Indices of these rows in the whole batch."""
    indices: tuple[int, ...]
    """Corpus indices of the pairs of the whole batch."""
    target_tokens: int
    """Number of real target tokens in the whole batch, including EOS."""
    is_counted: bool = True
    """False if there are fewer pairs than processes and this process repeats another's row to stay in step."""


@dataclass(frozen=True)
class Batch:
    """Sentences and their translations; each sentence ends with EOS."""

    streams: Mapping[str, Stream]
    direction: Direction
    """Streams to read and to write."""
    indices: tuple[int, ...]
    """Corpus indices of the rows."""
    links: Bool[Tensor, "B I J"] | None = None
    """True if target token i is aligned to source token j; None for a corpus without word alignments."""
    shard: Shard | None = None
    """This process's part of a whole batch, for batches of an epoch."""
    copies: Bool[Tensor, "B I J"] | None = None
    """True if target token i is unknown and a copy of source token j; None if the model does not copy."""
    vocabulary: Int[Tensor, "C"] | None = None
    """Sorted target ids that the training softmax covers; None for all."""
    log_weights: Float[Tensor, "C"] | None = None
    """Logarithm of the importance weight of each token of `vocabulary`; None if all weights are 1."""
    noise: NoiseWords | None = None
    """Noise words for noise-contrastive objectives."""

    @property
    def sources(self) -> dict[str, Stream]:
        """The source streams by name."""
        return {name: self.streams[name] for name in self.direction.sources}

    @property
    def source(self) -> Stream:
        """The source stream of a direction with one source."""
        (name,) = self.direction.sources
        return self.streams[name]

    @property
    def target(self) -> Stream:
        """The target stream."""
        return self.streams[self.direction.target]

    @property
    def sentences(self) -> int:
        """Number of rows B."""
        return len(self.indices)

    def to(self, device: torch.device | str) -> Batch:
        """Return a copy on a device, without waiting if memory is pinned."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """Return a copy in pinned memory, from which a GPU copies asynchronously."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self,
            streams={name: stream.map(function) for name, stream in self.streams.items()},
            links=None if self.links is None else function(self.links),
            copies=None if self.copies is None else function(self.copies),
            vocabulary=None if self.vocabulary is None else function(self.vocabulary),
            log_weights=None if self.log_weights is None else function(self.log_weights),
            noise=None if self.noise is None else self.noise.map(function),
        )

    def reversed(self) -> Batch:
        """Return the same pairs in the opposite direction."""
        links = None if self.links is None else self.links.transpose(1, 2)
        direction = self.direction.reversed()
        # The others belong to the former target.
        batch = replace(self, direction=direction, links=links, copies=None)
        return replace(batch, vocabulary=None, log_weights=None, noise=None)

    def split(self) -> tuple[Batch, Batch]:
        """Return two halves of a batch of at least two rows.

        Both are as wide as the whole batch, so that random numbers of the whole batch fit them.
        """
        assert self.sentences >= 2, "a batch of one row cannot be split"
        half = self.sentences // 2
        return self._slice_rows(0, half), self._slice_rows(half, self.sentences)

    def _slice_rows(self, start: int, stop: int) -> Batch:
        return replace(
            self,
            streams={name: stream.slice_rows(start, stop) for name, stream in self.streams.items()},
            indices=self.indices[start:stop],
            links=None if self.links is None else self.links[start:stop],
            shard=None if self.shard is None else self.shard._replace(rows=self.shard.rows[start:stop]),
            copies=None if self.copies is None else self.copies[start:stop],
            noise=None if self.noise is None else self.noise.slice_rows(start, stop),
        )


def make_batch(
    rows: Sequence[tuple[Sequence[int] | None, ...]],
    indices: Sequence[int],
    direction: Direction = DEFAULT_DIRECTION,
    spellings: WordCharacters = NO_CHARACTERS,
) -> Batch:
    """Return the batch of some rows of ids.

    Args:
        rows: Ids of each stream without BOS and EOS: the direction's sources, then its target. None if a row does not
            have a source.
        indices: Corpus indices of the rows.
        direction: Names of the streams.
        spellings: Characters and copies to add for unknown words, of rows that are `SpelledIds`.
    """
    assert len(rows) == len(indices) > 0
    columns = [_column(column) for column in zip(*rows, strict=True)]
    streams = dict(zip((*direction.sources, direction.target), columns, strict=True))
    return _batch(ParallelIds.from_rows(streams), np.arange(len(rows)), tuple(indices), direction, spellings)


def _column(sentences: Sequence[Sequence[int] | None]) -> list[Sequence[int] | None] | RaggedArray:
    """Return one stream of some rows, which may be `ArrayIds`; None if a row does not have it."""
    arrays = [ids.values for ids in sentences if isinstance(ids, ArrayIds)]
    if not arrays:
        return list(sentences)
    missing = arrays[0][:0]
    return RaggedArray.from_arrays([ids.values if isinstance(ids, ArrayIds) else missing for ids in sentences])


def _batch(
    ids: ParallelIds,
    rows: Indices,
    indices: tuple[int, ...],
    direction: Direction,
    spellings: WordCharacters,
    shard: Shard | None = None,
    widths: Sequence[int] | None = None,
) -> Batch:
    """Return the batch of some rows of `ids`, each stream at least as wide as `widths` says."""
    streams = {}
    for name, width in zip(ids.names, widths or [0] * len(ids.names), strict=True):
        if ids.is_array(name):
            streams[name] = Stream.from_arrays(ids.arrays(name, rows), width)
            continue
        padded = torch.from_numpy(ids.padded(name, rows, width))
        inventory = spellings.characters.get(name)
        characters = None
        if inventory is not None:
            characters = inventory.character_table(padded, ids.unknown_words(name, rows))
        streams[name] = Stream.from_ids(padded, characters)
    batch = Batch(streams, direction, indices, shard=shard)
    if spellings.copies is not None:
        (source,) = direction.sources
        copies = spellings.copies.matrix(
            batch.source.ids,
            ids.unknown_words(source, rows),
            batch.target.ids,
            ids.unknown_words(direction.target, rows),
        )
        batch = replace(batch, copies=copies)
    if ids.links is None:
        return batch
    links = links_matrix(ids.links, rows, batch.target.ids.shape[1], batch.source.ids.shape[1])
    return replace(batch, links=torch.from_numpy(links))


class Batches:
    """The batches of each epoch, which depend only on corpus, budget, seed and epoch number (see `epochs.plan`).

    Process `rank` of `world` has rows rank, rank + world, ... of each batch, padded to the width of the whole batch,
    so that random numbers of the whole batch fit. Batches, and what is learned from them, are therefore the same for
    any number of processes; the budget applies to all processes together.

    Args:
        ids: The corpus.
        batch: Budget and grouping of batches.
        max_length: Max tokens (without EOS) of a stream; longer rows are skipped and counted in `left_out`.
        seed: Seed of the run.
        rank: Number of this process.
        world: Number of processes.
        multiple: Widths are rounded up to a multiple of this, for few different shapes.
        direction: Streams of the batches. By default all but the last are sources.
        any_source: True if rows need only one of the sources, in addition to the target; otherwise they must have all.
        segments: Functions that sample a new segmentation of a stream in each epoch, from seed, epoch number and row.
            Budget and `max_length` count the corpus's own tokens; word alignments, which refer to these, are dropped.
        inlines: A function that adds translations of terms to the first source, before `segments`.
        spellings: Characters and copies of unknown words to include.
        partition: Successive batches with at most this many distinct target tokens share these as the vocabulary of
            their softmax (Jean et al. 2015, section 3.2); a batch that has more by itself has its own.
        shortlist: Distribution of the tokens that are sampled into the vocabulary of each batch's softmax, from seed,
            epoch number and batch number; the target tokens of the whole batch are always in it.
        proposal: Distribution of the noise words of each batch, from the same numbers.
        mixture: How often an epoch contains each row.

    Raises:
        DataError: If no pair is within `max_length`.
        ConfigError: If a single pair exceeds the budget.
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
        any_source: bool = False,
        segments: Mapping[str, Resegment] | None = None,
        inlines: InlineTermsFunction | None = None,
        spellings: WordCharacters = NO_CHARACTERS,
        partition: int | None = None,
        shortlist: NoiseDistribution | None = None,
        proposal: NoiseDistribution | None = None,
        mixture: CorpusMixture | None = None,
    ) -> None:
        assert 0 <= rank < world
        self.direction = direction or Direction(ids.names[:-1], ids.names[-1])
        ids = ids.select((*self.direction.sources, self.direction.target))
        self._ids = ids
        self._config = batch
        self._seed = seed
        self._rank = rank
        self._world = world
        self._segments = dict(segments or {})
        self._inlines = inlines
        self._spellings = spellings
        self._partition = partition
        self._shortlist = shortlist
        self._proposal = proposal
        self._mixture = mixture
        self._rows, longest, self.left_out = _select_rows(ids, max_length, any_source)
        self._widths = BatchWidths(multiple, longest)
        if self._rows is not None and len(self._rows) == 0:
            pair = "training pair" if direction is None else f"training pair of {direction.name}"
            raise DataError(f"no {pair} has at most {max_length} tokens per side (training.max_length)")
        # `epochs.plan_epoch` relies on every row fitting into a batch.
        if batch.tokens is not None and longest > batch.tokens:
            requirement = f"must be at least {longest}, the length of the longest training pair"
            advice = "training.max_length leaves long pairs out"
            raise ConfigError([f"training.batch.tokens: {requirement} ({advice}); got {batch.tokens}"])
        self._plan: tuple[int, EpochPlan] | None = None
        self._counts: dict[int, int] = {}
        self._lock = Lock()  # a prefetching thread makes batches while the training loop asks for counts

    def count(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        with self._lock:
            return self._counts[epoch] if epoch in self._counts else len(self._planned(epoch))

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """Yield this process's shards of the batches of an epoch, without the first `skip`, which cost nothing."""
        with self._lock:
            planned = self._planned(number)
        for index, vocabulary in zip(range(skip, len(planned)), self._vocabularies(planned, skip), strict=False):
            batch = self._shard(planned.pairs(index), number)
            if vocabulary is not None:
                batch = replace(batch, vocabulary=torch.from_numpy(vocabulary))
            if self._shortlist is not None:
                targets = self._target_tokens(planned, index)
                chosen, log_weights = self._shortlist.shortlist(targets, self._seed, number, index)
                weights = torch.from_numpy(log_weights)
                batch = replace(batch, vocabulary=torch.from_numpy(chosen), log_weights=weights)
            if self._proposal is not None:
                noise = self._proposal.sample(batch.target.ids, self._seed, number, index)
                batch = replace(batch, noise=noise)
            yield batch

    def _vocabularies(self, planned: EpochPlan, skip: int) -> Iterator[Indices | None]:
        """Yield the softmax vocabulary of each batch of an epoch but the first `skip`."""
        if self._partition is None:
            yield from repeat(None)
            return
        start = 0
        while start < len(planned):
            vocabulary = np.zeros(0, dtype=np.int64)
            end = start
            while end < len(planned):
                enlarged = np.union1d(vocabulary, self._target_tokens(planned, end))
                # The first batch is always taken: it may have more distinct tokens than the partition allows.
                if end > start and len(enlarged) > self._partition:
                    break
                vocabulary = enlarged
                end += 1
            # Skipped batches count, too, so that a resumed epoch has the same vocabularies.
            yield from repeat(vocabulary, max(0, end - max(start, skip)))
            start = end

    def _target_tokens(self, planned: EpochPlan, index: int) -> Indices:
        """Return the distinct target ids of a whole batch, sorted, as `Output.losses` requires."""
        return np.setdiff1d(self._ids.padded(self._ids.names[-1], planned.pairs(index)), [PAD])

    def whole_batch(self, indices: Sequence[int], direction: Direction | None = None) -> Batch:
        """Return the batch of some pairs of the corpus, with the rows of all processes.

        Args:
            indices: Corpus indices of the pairs.
            direction: Direction of the batch, which is that of all batches.
        """
        assert direction in (None, self.direction)
        return _batch(self._ids, np.asarray(indices, dtype=np.int64), tuple(indices), self.direction, self._spellings)

    @property
    def padding_waste(self) -> float:
        """Fraction of padding among all positions of the last epoch planned."""
        with self._lock:
            return (self._plan[1] if self._plan else self._planned(0)).waste

    def _planned(self, epoch: int) -> EpochPlan:
        if self._plan is None or self._plan[0] != epoch:
            self._plan = None  # free the old plan first: two would need twice the memory
            # Deterministic, so that all processes make the same plan without communicating.
            planned = plan_epoch(self._ids, self._rows, self._config, self._seed, epoch, self._widths, self._mixture)
            self._plan = epoch, planned
            self._counts[epoch] = len(planned)
        return self._plan[1]

    def _shard(self, pairs: Indices, epoch: int) -> Batch:
        """Return this process's rows of the batch of some pairs."""
        ids = self._ids
        positions = pairs
        if self._segments or self._inlines:
            ids = self._resample(pairs, epoch)
            positions = np.arange(len(pairs))
        lengths = ids.lengths(positions)  # [streams, pairs]
        is_counted = self._rank < len(pairs)
        # A process without a row repeats row 0, which does not count (see `Shard.is_counted`).
        rows = np.arange(self._rank, len(pairs), self._world) if is_counted else np.array([0])
        shard = Shard(tuple(rows.tolist()), tuple(pairs.tolist()), int(lengths[-1].sum()), is_counted)
        # The widths of the whole batch, so that its random numbers fit the rows of every process.
        widths = self._widths.round_up(lengths.max(1)).tolist()
        indices = tuple(pairs[rows].tolist())
        return _batch(ids, positions[rows], indices, self.direction, self._spellings, shard, widths)

    def _resample(self, pairs: Indices, epoch: int) -> ParallelIds:
        """Return pairs in memory with sampled terms and segmentations.

        Each process samples the rows of all processes, because they share the batch's widths.
        """
        texts = self._ids.select([name for name in self._ids.names if not self._ids.is_array(name)])
        rows = [texts.row(pair) for pair in pairs.tolist()]
        if self._inlines is not None:
            for n, pair in enumerate(pairs.tolist()):
                source, *others = rows[n]
                # Seeded by pair: the result depends neither on the batch nor on the process.
                rng = Random(f"{self._seed} {epoch} {pair} terms")
                rows[n] = (np.array(self._inlines(source.tolist(), others[-1].tolist(), rng)), *others)
        streams: dict[str, list[list[int] | None] | RaggedArray] = {}
        present = texts.lengths(pairs) > 0  # [streams, pairs]
        for name, column, has_stream in zip(texts.names, zip(*rows, strict=True), present, strict=True):
            unknown = texts.unknown_words(name, pairs)
            sentences: list[list[int] | None] = []
            for pair, ids, words, is_present in zip(pairs.tolist(), column, unknown, has_stream, strict=True):
                sentence: list[int] = SpelledIds(ids.tolist(), words)
                if resegment := self._segments.get(name):
                    sentence = resegment(sentence, Random(f"{self._seed} {epoch} {pair} {name}"))
                sentences.append(sentence if is_present else None)
            streams[name] = sentences
        for name in self._ids.names:
            if self._ids.is_array(name):
                streams[name] = RaggedArray.from_arrays(self._ids.arrays(name, pairs))
        return ParallelIds.from_rows({name: streams[name] for name in self._ids.names})


def _select_rows(
    ids: ParallelIds, max_length: int | None, any_source: bool
) -> tuple[npt.NDArray[np.uint32] | None, int, int]:
    """Select the rows that have all streams, or the target and `any_source`, and are short enough.

    Returns:
        The row numbers (None for all rows), the length of the longest stream among them, and the number of rows that
        are too long.
    """
    has_eos = np.array([[not ids.is_array(name)] for name in ids.names])  # [streams, 1]
    limits = np.iinfo(np.int64).max - 1 if max_length is None else max_length + has_eos
    selected = []
    longest = 0
    num_too_long = 0
    start = 0
    for lengths in length_blocks(ids):  # [streams, rows]
        # Without a source, as for a language model, only the target counts.
        source_lengths = lengths[:-1].max(0) if any_source and len(lengths) > 1 else lengths.min(0)
        is_complete = np.minimum(source_lengths, lengths[-1]) > 0
        max_lengths = lengths.max(0)
        # A length of 0 is a missing stream; an empty sentence has EOS.
        fitting = np.flatnonzero(is_complete & (lengths <= limits).all(0))
        selected.append((fitting + start).astype(np.uint32))
        longest = max(longest, int(max_lengths[fitting].max(initial=0)))
        num_too_long += int(is_complete.sum()) - len(fitting)
        start += lengths.shape[1]
    rows = np.concatenate([np.zeros(0, dtype=np.uint32), *selected])
    # None saves an array with an entry per pair.
    return (None if len(rows) == len(ids) > 0 else rows), longest, num_too_long
