"""Selection of continuations: the best of K hypotheses times C score columns per sentence.

`best_continuations` is the ordinary choice of beam search. Other searches pass their own `ContinuationSelector`, or a
`HypothesisScorer` if hypotheses are also ranked by something other than their log-probability (`sampling.py`,
`stochastic.py`). A continuation is identified by its flat index: hypothesis * C + column.

`BeamSearch` calls the selector once per step. Ties go to the lowest index and NaN counts as the highest score, like in
native code (`ops/rows.py`), so that all devices find the same translations.

Axes: A sentences still in the batch, K hypotheses per sentence, C score columns, M continuations per sentence, W
columns per block, N blocks.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rnnsearch.ops import rows

BLOCK_COLUMNS = 64
"""Columns per block, for searches that first choose among blocks and then within a few of them."""
MAX_SINGLE_PASS_SCORES = 4096
"""Up to this many continuations per sentence, one pass over all of them is faster than blocks."""


class ScoredRows(NamedTuple):
    """Rows of a batch of scores [A * K, C]."""

    position: int
    """Target position of the scored token, from 1."""
    sentences: Tensor
    """[A] int64, indices in the call of the sentences still in the batch."""
    width: int
    """Rows per sentence (K); row n belongs to sentence `sentences[n // width]`."""


ContinuationSelector = Callable[[Tensor, Tensor, int, ScoredRows], Tensor]
"""(scores, log_probs, count, rows) -> the best `count` continuations per sentence (or all, if there are fewer).

Args:
    scores: [A, K, C], -inf if not allowed.
    log_probs: [A, K] of the live hypotheses, -inf in an empty slot.

Returns:
    Distinct flat indices [A, count], best first. The search itself sums the log-probabilities: the selector only
    determines which continuations it considers.
"""


class ScoredContinuations(NamedTuple):
    """Continuations chosen by a `HypothesisScorer`, with the scores that replace their log-probabilities."""

    indices: Tensor
    """[A, M], flat indices like those of a `ContinuationSelector`."""
    total: Tensor
    """[A, M], scores that hypotheses are compared by until the end; at most that of the parent, -inf if not allowed."""
    carry: Tensor
    """[A, M], values that `select` gets back for continuations that become live hypotheses."""


@runtime_checkable
class HypothesisScorer(Protocol):
    """A selector of continuations with its own scores, which also rank the finished hypotheses."""

    def select(self, scores: Tensor, total: Tensor, carry: Tensor, count: int, rows: ScoredRows) -> ScoredContinuations:
        """Return the best `count` continuations per sentence.

        Args:
            scores: [A, K, C], -inf if not allowed.
            total: [A, K], scores of the live hypotheses; 0 for the empty one, -inf in an empty slot.
            carry: [A, K], values carried from the last step; 0 for the empty hypothesis.
        """


def best_continuations(
    scores: Float[Tensor, "A K C"], log_probs: Float[Tensor, "A K"], count: int, _rows: ScoredRows | None = None
) -> Int[Tensor, "A M"]:
    """Return the continuations with the highest log_probs + scores, best first; NaN counts as the highest.

    Of equal ones the lowest flat index comes first, whichever other sentences are in the batch.
    """
    # Relative to the sentence's best hypothesis: a long sum would swallow small differences of scores.
    relative = log_probs - log_probs.amax(1, keepdim=True)  # [A, K]
    # Equal to the definition below, including ties.
    if rows.supports_topk(scores, count):
        return rows.topk(scores, relative, count)
    return best_continuations_in_blocks(scores, relative, count)


def best_continuations_in_blocks(
    scores: Float[Tensor, "A K C"], relative: Float[Tensor, "A K"], count: int
) -> Int[Tensor, "A M"]:
    """Return the continuations with the highest relative + scores, best first, on any device.

    This is the definition of `ops.rows.topk`. One pass over all scores finds the maximum of each block of
    columns. Only the `count` blocks with the highest maxima can contain one of the `count` best continuations, so
    everything after this pass is small.
    """
    A, K, C = scores.shape
    if K * C <= MAX_SINGLE_PASS_SCORES:
        total = (scores + relative[:, :, None]).flatten(1)  # [A, K * C]
        return _highest_by_position(total, count)
    blocks = C // BLOCK_COLUMNS  # N full blocks per hypothesis
    full = scores[:, :, : blocks * BLOCK_COLUMNS].reshape(A, K, blocks, BLOCK_COLUMNS)
    # Adding a hypothesis's total to its maxima, instead of to all scores, saves a pass.
    maxima = (full.amax(3) + relative[:, :, None]).flatten(1)  # [A, K * N]
    block = _highest_by_position(maxima, count)  # [A, count]
    # Flat index of each block's first column: a hypothesis has C - blocks * BLOCK_COLUMNS more columns than its blocks.
    first = block * BLOCK_COLUMNS
    if blocks * BLOCK_COLUMNS < C:
        first = torch.add(first, block // blocks, alpha=C - blocks * BLOCK_COLUMNS)
    index = (first[:, :, None] + torch.arange(BLOCK_COLUMNS, device=first.device)).flatten(1)
    if blocks * BLOCK_COLUMNS < C:  # the columns after the last full block are always candidates
        remaining = torch.arange(K * C, device=first.device).view(K, C)[:, blocks * BLOCK_COLUMNS :]
        index = torch.cat((index, remaining.flatten().expand(A, -1)), 1)
    total = scores.flatten(1).gather(1, index) + relative.gather(1, index // C)
    return index.gather(1, _highest(total, index, count))


def _highest_by_position(values: Tensor, count: int) -> Tensor:
    """Return the positions [A, count] of the highest `values` [A, n]; ties go to the lowest position."""
    if values.device.type == "cuda":
        # Fewer kernels than `_highest`, but slower on a CPU.
        return values.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return _highest(values, torch.arange(values.shape[1], device=values.device), count)


def _highest(values: Tensor, index: Tensor, count: int) -> Tensor:
    """Return the positions [A, count] of the highest `values` [A, n]; ties go to the lowest `index`, [n] or [A, n].

    A float32 value converted to float64 has unused digits below its last one, which hold the index: 2^-52 of the value
    times the index is less than the distance to the next float32 for indices up to 2^28. The 1e-200 separates zeros.
    """
    wide = values.double()
    wide = torch.addcmul(wide, wide.abs() + 1e-200, (index + 1) * 2.0**-52, value=-1)
    return wide.topk(min(count, wide.shape[1]), dim=1).indices


def block_logsumexp(scores: Float[Tensor, "A K C"]) -> Float[Tensor, "A K N"]:
    """Return log(sum(exp(scores))) of each block of columns; the last block may be shorter."""
    blocks = scores.shape[2] // BLOCK_COLUMNS
    full = scores[:, :, : blocks * BLOCK_COLUMNS].reshape(*scores.shape[:2], blocks, BLOCK_COLUMNS).logsumexp(3)
    if blocks * BLOCK_COLUMNS == scores.shape[2]:
        return full
    return torch.cat((full, scores[:, :, blocks * BLOCK_COLUMNS :].logsumexp(2, keepdim=True)), 2)


def block_columns(
    scores: Float[Tensor, "A K C"], row: Int[Tensor, "A M"], block: Int[Tensor, "A M"]
) -> tuple[Int[Tensor, "A M W"], Float[Tensor, "A M W"]]:
    """Return the W columns of M blocks and their scores; -inf after the last column.

    Args:
        row: Hypothesis (0 to K - 1) of each block.
        block: Index of each block in its row.
    """
    A, _, C = scores.shape
    column = block[:, :, None] * BLOCK_COLUMNS + torch.arange(min(BLOCK_COLUMNS, C), device=block.device)
    # The last block may be shorter than the others: its missing columns read the last one and get -inf.
    valid = column.clamp(max=C - 1)
    flat_index = (row[:, :, None] * C + valid).flatten(1)
    values = scores.flatten(1).gather(1, flat_index).view(A, *column.shape[1:])
    return valid, values.masked_fill(column >= C, -torch.inf)
