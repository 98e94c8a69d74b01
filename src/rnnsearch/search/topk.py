"""Which continuations the beam looks at: the hook for searches that choose differently (`variants`)."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rnnsearch.ops import rows as native

# Score columns in blocks, so that what is drawn among all of them is drawn among blocks first, and then within few.

BLOCK = 64
"""Columns that stand together."""


def sums(scores: Float[Tensor, "A K C"]) -> Float[Tensor, "A K N"]:
    """The logarithm of each block's sum of exponentials: the score of its columns as one. The last may be shorter."""
    blocks = scores.shape[2] // BLOCK
    whole = scores[:, :, : blocks * BLOCK].reshape(*scores.shape[:2], blocks, BLOCK).logsumexp(3)
    if blocks * BLOCK == scores.shape[2]:
        return whole
    return torch.cat((whole, scores[:, :, blocks * BLOCK :].logsumexp(2, keepdim=True)), 2)


def members(
    scores: Float[Tensor, "A K C"], row: Int[Tensor, "A M"], block: Int[Tensor, "A M"]
) -> tuple[Int[Tensor, "A M W"], Float[Tensor, "A M W"]]:
    """The columns of the block of a row that each of M is, and their scores; -inf behind the last column."""
    A, _, C = scores.shape
    column = block[:, :, None] * BLOCK + torch.arange(min(BLOCK, C), device=block.device)
    known = column.clamp(max=C - 1)
    found = scores.flatten(1).gather(1, (row[:, :, None] * C + known).flatten(1)).view(A, *column.shape[1:])
    return known, found.masked_fill(column >= C, -torch.inf)


SMALL = 4096
"""Up to so many continuations a sentence, one pass over all of them is quicker."""


class ScoredRows(NamedTuple):
    """Which rows a batch of scores has."""

    position: int
    """Position of the scored symbol, from 1."""
    sentences: Tensor
    """[A] int64: which sentences of the call are still in the batch."""
    width: int
    """Rows of scores a sentence (K); row n belongs to sentence `sentences[n // width]`."""


Choose = Callable[[Tensor, Tensor, int, ScoredRows], Tensor]
"""(scores, log_probs, count, rows) -> the `count` (or all, where there are fewer) most wanted continuations of each
sentence's K live hypotheses.

scores: [A, K, C], -inf where not allowed. log_probs: [A, K], -inf in an empty place.
Returns distinct flat indices [A, count], hypothesis * C + column, the most wanted first. The search sums the
log-probabilities itself: only the choice is free.
"""


class Worth(NamedTuple):
    """Continuations, and what they are compared by in the place of their log-probabilities."""

    places: Tensor
    """[A, M], as of a `Choose`."""
    worth: Tensor
    """[A, M], by which hypotheses are compared to the end, ended or cut alike: that of a continuation is at most its
    hypothesis's. -inf where not allowed."""
    known: Tensor
    """[A, M], what `judge` is to be told of each where it goes on."""


@runtime_checkable
class Judge(Protocol):
    """Chooses as a `Choose` does, by a worth of its own."""

    def judge(self, scores: Tensor, worth: Tensor, known: Tensor, count: int, rows: ScoredRows) -> Worth:
        """The `count` continuations of most worth of each sentence's hypotheses, whose own worth, -inf in an empty
        place, and what was said of them stand in `worth` and `known` [A, K]: 0 both of the empty hypothesis."""


def best(
    scores: Float[Tensor, "A K C"], log_probs: Float[Tensor, "A K"], count: int, _rows: ScoredRows | None = None
) -> Int[Tensor, "A M"]:
    """The highest log_probs + scores, of equals the lowest flat index first, whatever the rows. NaN counts as the
    highest."""
    # Relative to the sentence's best hypothesis: a long sum would swallow the scores' small differences.
    ahead = log_probs - log_probs.amax(1, keepdim=True)
    return native.best(scores, ahead, count) if native.serves(scores) else best_of_blocks(scores, ahead, count)


def best_of_blocks(scores: Float[Tensor, "A K C"], ahead: Float[Tensor, "A K"], count: int) -> Int[Tensor, "A M"]:
    """The definition of `rows.best`, on every device.

    Only `count` blocks of columns, those of the highest maxima, can hold one of the `count` best: one pass
    over all scores finds the maxima, and everything else is small.
    """
    _, hypotheses, columns = scores.shape
    if hypotheses * columns <= SMALL:
        total = (scores + ahead[:, :, None]).flatten(1)
        index = torch.arange(total.shape[1], device=total.device)
        return _first(total, index, count)
    blocks = columns // BLOCK
    whole = scores[:, :, : blocks * BLOCK].reshape(*scores.shape[:2], blocks, BLOCK)
    maxima = (whole.amax(3) + ahead[:, :, None]).flatten(1)
    block = _first(maxima, torch.arange(maxima.shape[1], device=maxima.device), count)
    begin = (block // blocks) * columns + (block % blocks) * BLOCK
    index = (begin[:, :, None] + torch.arange(BLOCK, device=begin.device)).flatten(1)
    if blocks * BLOCK < columns:
        rest = torch.arange(blocks * BLOCK, columns, device=begin.device)
        rest = rest + columns * torch.arange(hypotheses, device=begin.device)[:, None]
        index = torch.cat((index, rest.flatten().expand(index.shape[0], -1)), 1)
    total = scores.flatten(1).gather(1, index) + ahead.gather(1, index // columns)
    return index.gather(1, _first(total, index, count))


def _first(values: Tensor, index: Tensor, count: int) -> Tensor:
    """Positions [A, count] of the highest `values` [A, n]; of equals those of lowest `index`, [n] or [A, n].

    A float32 value as float64 has room for the index below its last digit: 2^-52 of the value times the index
    stays under the distance to the next float32 for indices up to 2^28. The 1e-200 tells zeros apart.
    """
    wide = values.double()
    wide = wide - (wide.abs() + 1e-200) * ((index + 1) * 2.0**-52)
    return wide.topk(min(count, wide.shape[1]), dim=1).indices
