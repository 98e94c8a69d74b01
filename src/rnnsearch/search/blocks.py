"""Score columns in blocks, so that what is drawn among all of them is drawn among blocks first, and then within few."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
