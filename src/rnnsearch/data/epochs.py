"""Plans of epochs: which pairs form which batch, by similar length and within a budget.

A plan depends only on seed and epoch number. It holds no object per pair: one array of row numbers (4 bytes per pair)
and the bounds of each batch in it. Lengths are read from the memory-mapped corpus, some thousand pairs at a time.

`data/batches.py` calls it; `training/run.py` creates the `CorpusMixture`. A change of the order of random numbers
changes the batches of resumed runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.config import BatchConfig
from rnnsearch.data.id_store import ParallelIds

Integers = npt.NDArray[np.int64]
RowNumbers = npt.NDArray[np.uint32]
_BLOCK_PAIRS = 1 << 16
"""Pairs whose lengths are read together."""


@dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch; batch k has the pairs `order[starts[k]:ends[k]]`."""

    order: RowNumbers
    """Row numbers in the order of the batches."""
    starts: Integers
    """Start of each batch in `order`."""
    ends: Integers
    """End of each batch in `order`."""
    waste: float
    """Fraction of padding among all positions."""

    def __len__(self) -> int:
        return len(self.starts)

    def pairs(self, batch: int) -> Integers:
        """Return the row numbers of one batch."""
        return self.order[self.starts[batch] : self.ends[batch]].astype(np.int64)


class CorpusMixture(NamedTuple):
    """Weights of the corpus files, which determine how often an epoch contains their rows."""

    ends: Integers
    """Row number after the last row of each file."""
    weights: npt.NDArray[np.float64]
    """Expected repetitions of each file's rows."""

    def sample(self, rows: RowNumbers, rng: np.random.Generator) -> RowNumbers:
        """Return rows repeated by their weight: its integer part, and once more with the probability of the rest."""
        weights = self.weights[np.searchsorted(self.ends, rows, side="right")]
        whole = np.floor(weights).astype(np.int64)
        return np.repeat(rows, whole + (rng.random(len(rows)) < weights - whole))


class BatchWidths(NamedTuple):
    """Widths of batches: multiples of some number of tokens, for few different shapes."""

    multiple: int
    """Number of tokens that widths are multiples of."""
    longest: int
    """Length of the longest sentence; no batch is padded beyond it."""

    def round_up(self, lengths: Integers) -> Integers:
        """Return the widths of batches whose longest sentences have these lengths."""
        padded: Integers = np.minimum(-(-lengths // self.multiple) * self.multiple, np.maximum(self.longest, lengths))
        return padded


def plan_epoch(
    ids: ParallelIds,
    rows: RowNumbers | None,
    batch: BatchConfig,
    seed: int,
    epoch: int,
    widths: BatchWidths,
    mixture: CorpusMixture | None = None,
) -> EpochPlan:
    """Return the batches of an epoch.

    Pairs are shuffled; `sort_batches` batches' worth of them at a time are sorted by length and cut into batches
    (Bahdanau et al. 2015, appendix B.2, with 20 batches' worth); then batches are shuffled. With `shuffle = "once"`
    all epochs equal the first one, whose batches are not shuffled. The token budget bounds rows * max(J, I), with EOS
    and padding.

    Args:
        ids: The corpus.
        rows: Row numbers to use; None for all.
        batch: Budget and grouping.
        seed: Seed of the run.
        epoch: Number of the epoch.
        widths: Rounding of batch widths.
        mixture: How often each row occurs; None for once. If it samples no row, each row occurs once.
    """
    once = batch.shuffle == "once"
    # Seed and epoch determine the plan, so that a run can be resumed in the middle of an epoch.
    rng = np.random.default_rng([seed, 0 if once else epoch])
    order = np.arange(len(ids), dtype=np.uint32) if rows is None else rows.copy()
    if mixture is not None:
        sampled = mixture.sample(order, rng)
        order = sampled if len(sampled) else order
    # Before the sorting, so that chunks, and pairs of equal length in them, differ between epochs.
    rng.shuffle(order)
    batch_starts: list[Integers] = []
    num_positions = 0
    num_tokens = 0
    for start, end in _chunks(ids, order, batch):
        # Sorted in place: `order` is the only array with an entry per pair.
        order[start:end], lengths = _sort_by_length(ids, order[start:end])  # lengths: [streams, pairs]
        first = _cut(widths.round_up(lengths.max(0)), batch)  # start of each batch in the chunk
        batch_starts.append(first + start)
        num_rows = np.diff(first, append=end - start)
        batch_widths = widths.round_up(np.maximum.reduceat(lengths, first, axis=1))  # [streams, batches]
        num_positions += int((batch_widths * num_rows).sum())
        num_tokens += int(lengths.sum())
    # Batches are consecutive in `order`: each ends where the next one starts.
    starts = np.concatenate(batch_starts)
    ends = np.append(starts[1:], len(order))
    permutation = np.arange(len(starts)) if once else rng.permutation(len(starts))
    return EpochPlan(order, starts[permutation], ends[permutation], 1.0 - num_tokens / num_positions)


def length_blocks(ids: ParallelIds) -> Iterator[Integers]:
    """Yield the lengths [streams, rows] of all rows with EOS, in the corpus's order, block by block."""
    for start in range(0, len(ids), _BLOCK_PAIRS):
        yield ids.lengths(np.arange(start, min(start + _BLOCK_PAIRS, len(ids))))


def _chunks(ids: ParallelIds, order: RowNumbers, batch: BatchConfig) -> Iterator[tuple[int, int]]:
    """Yield start and end, in `order`, of chunks of about `sort_batches` batches."""
    if batch.sentences is not None:
        size = batch.sentences * batch.sort_batches
        for start in range(0, len(order), size):
            yield start, min(start + size, len(order))
        return
    assert batch.tokens is not None
    budget = batch.tokens * batch.sort_batches
    used = 0
    chunk_start = 0
    for start in range(0, len(order), _BLOCK_PAIRS):
        total = used + np.cumsum(ids.lengths(order[start : start + _BLOCK_PAIRS]).max(0))
        full = np.flatnonzero(np.diff(total // budget, prepend=used // budget))  # pairs that exceed a budget
        for end in (full + start).tolist():
            if end > chunk_start:
                yield chunk_start, end
                chunk_start = end
        # Budgets are counted over the whole epoch, so that chunks do not depend on the size of a block.
        used = int(total[-1])
    yield chunk_start, len(order)


def _sort_by_length(ids: ParallelIds, chunk: RowNumbers) -> tuple[RowNumbers, Integers]:
    """Return a chunk sorted by length, and its lengths [streams, pairs].

    Pairs are sorted by the longer stream, then by the difference between the first and the last stream, in
    alternating order, so that neighbours are similar in both.
    """
    lengths = ids.lengths(chunk)
    longer = lengths.max(0)
    difference = lengths[0] - lengths[-1]
    # The last key is the first criterion.
    by_length = np.lexsort((np.where(longer % 2 == 0, difference, -difference), longer))
    return chunk[by_length], lengths[:, by_length]


def _cut(widths: Integers, batch: BatchConfig) -> Integers:
    """Return the start of each batch in a sorted chunk, with as many rows as the budget allows."""
    if batch.sentences is not None:
        return np.arange(0, len(widths), batch.sentences)
    assert batch.tokens is not None
    starts = []
    start = 0
    while start < len(widths):
        starts.append(start)
        # Rows are sorted: the last row of a batch is its widest, and no more rows fit than at the width of the first.
        candidates = widths[start : start + batch.tokens // int(widths[start])]
        sizes = candidates * np.arange(1, len(candidates) + 1)  # of the batch if it ends at each row
        # At least one, because no row exceeds the budget (`Batches` checks it).
        start += int(np.searchsorted(sizes, batch.tokens, side="right"))
    return np.array(starts)
