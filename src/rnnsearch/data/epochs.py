"""Which pairs make the batches of an epoch: similar lengths together, within a budget, a function of seed and number.

Nothing here holds an object a pair: an epoch is one array of pair numbers, 4 bytes a pair, and where each batch begins
and ends in it. Lengths are read from the memory-mapped corpus, some thousand pairs at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.config import BatchConfig
from rnnsearch.data.id_store import ParallelIds

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint32]
_BLOCK = 1 << 16
"""Pairs whose lengths are looked at together."""


@dataclass(frozen=True)
class Epoch:
    """Batch k is the pairs `order[begins[k]:ends[k]]`; `waste`: the share of padding among all positions."""

    order: Numbers
    begins: Integers
    ends: Integers
    waste: float

    def __len__(self) -> int:
        return len(self.begins)

    def pairs(self, batch: int) -> Integers:
        """The pair numbers of one batch."""
        return self.order[self.begins[batch] : self.ends[batch]].astype(np.int64)


class Mixture(NamedTuple):
    """How often an epoch has the rows of each file of a corpus, whose rows end before the number `ends` of the file."""

    ends: Integers
    weights: npt.NDArray[np.float64]

    def drawn(self, rows: Numbers, rng: np.random.Generator) -> Numbers:
        """Each of some rows as often as its weight says: the whole part, and once more with the probability left."""
        weights = self.weights[np.searchsorted(self.ends, rows, side="right")]
        whole = np.floor(weights).astype(np.int64)
        return np.repeat(rows, whole + (rng.random(len(rows)) < weights - whole))


class Widths(NamedTuple):
    """How wide batches are made: up to a `multiple` of symbols, where few different shapes are wanted, but no wider
    than the longest side of all pairs."""

    multiple: int
    longest: int

    def of(self, lengths: Integers) -> Integers:
        """The widths of batches whose longest sentences are so long."""
        padded: Integers = np.minimum(-(-lengths // self.multiple) * self.multiple, np.maximum(self.longest, lengths))
        return padded


def plan(
    ids: ParallelIds,
    kept: Numbers | None,
    batch: BatchConfig,
    seed: int,
    epoch: int,
    widths: Widths,
    mixture: Mixture | None = None,
) -> Epoch:
    """The batches of an epoch over the pairs `kept` (None: all), as often as a `mixture` says (None: once). An epoch of
    which none is drawn has them once.

    Pairs are shuffled; `sort_batches` batches' worth of them at a time are sorted by length and cut into batches
    (Bahdanau et al., 2015, appendix B.2, take 20 batches' worth), and all batches are shuffled again; or with
    `shuffle = "once"` all epochs are the first one, whose batches stay where their pairs were. The token budget bounds
    rows * max(J, I), with EOS, as padded.
    """
    once = batch.shuffle == "once"
    rng = np.random.default_rng([seed, 0 if once else epoch])
    order = np.arange(len(ids), dtype=np.uint32) if kept is None else kept.copy()
    if mixture is not None and len(drawn := mixture.drawn(order, rng)):
        order = drawn
    rng.shuffle(order)
    cuts: list[Integers] = []
    positions = real = 0
    for begin, end in _chunks(ids, order, batch):
        order[begin:end], lengths = _sorted(ids, order[begin:end])
        first = _cut(widths.of(lengths.max(0)), batch)
        cuts.append(first + begin)
        rows = np.diff(first, append=end - begin)
        positions += int((widths.of(np.maximum.reduceat(lengths, first, axis=1)) * rows).sum())
        real += int(lengths.sum())
    begins = np.concatenate(cuts)
    ends = np.append(begins[1:], len(order))
    turn = np.arange(len(begins)) if once else rng.permutation(len(begins))
    return Epoch(order, begins[turn], ends[turn], 1.0 - real / positions)


def blocks(ids: ParallelIds) -> Iterator[Integers]:
    """The lengths [sides, rows] of all rows, EOS included, in the corpus's order, block by block."""
    for begin in range(0, len(ids), _BLOCK):
        yield ids.lengths(np.arange(begin, min(begin + _BLOCK, len(ids))))


def _chunks(ids: ParallelIds, order: Numbers, batch: BatchConfig) -> Iterator[tuple[int, int]]:
    """Begin and end, in `order`, of pieces of about `sort_batches` batches each."""
    if batch.sentences is not None:
        size = batch.sentences * batch.sort_batches
        yield from ((begin, min(begin + size, len(order))) for begin in range(0, len(order), size))
        return
    assert batch.tokens is not None
    budget, used, begin = batch.tokens * batch.sort_batches, 0, 0
    for start in range(0, len(order), _BLOCK):
        total = used + np.cumsum(ids.lengths(order[start : start + _BLOCK]).max(0))
        full = np.flatnonzero(np.diff(total // budget, prepend=used // budget))
        for end in (full + start).tolist():
            if end > begin:
                yield begin, end
                begin = end
        used = int(total[-1])
    yield begin, len(order)


def _sorted(ids: ParallelIds, chunk: Numbers) -> tuple[Numbers, Integers]:
    """A chunk by the longest side, then by the difference of the first and the last to and fro, so that neighbours are
    alike on both; and the lengths [sides, pairs] of what it then holds."""
    lengths = ids.lengths(chunk)
    longer, difference = lengths.max(0), lengths[0] - lengths[-1]
    by_length = np.lexsort((np.where(longer % 2 == 0, difference, -difference), longer))
    return chunk[by_length], lengths[:, by_length]


def _cut(widths: Integers, batch: BatchConfig) -> Integers:
    """Where batches begin in a sorted chunk: as many rows each as the budget allows."""
    if batch.sentences is not None:
        return np.arange(0, len(widths), batch.sentences)
    assert batch.tokens is not None
    begins, start = [], 0
    while start < len(widths):
        begins.append(start)
        # sorted, so that the last row of a batch is its widest
        most = widths[start : start + batch.tokens // int(widths[start])]
        start += int(np.searchsorted(most * np.arange(1, len(most) + 1), batch.tokens, side="right"))
    return np.array(begins)
