"""Local windows' fast twin of `Attention.attend`: the positions within reach alone."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from rnnsearch.models.attention.attention import Asked, Attended, Attention, Seen
from rnnsearch.models.attention.windows import Placement
from rnnsearch.models.memory import Memory

PRODUCTS_A_PICK = 24
"""How many products with a key in one matrix product take as long as one with a key picked by itself (measured)."""


def attend(attention: Attention, asked: Asked, memory: Memory) -> Attended:
    """`Attention.attend`, where that is less work over the P = 2 D + 1 positions of each query alone."""
    centre = attention.centre(asked, memory)
    if centre is None or not gathers(attention, asked.query.shape[1], memory.mask.shape[1]):
        return attention.weigh(asked.query, attention.see(asked, memory, centre))
    return within(attention, centre, asked, memory)


def gathers(attention: Attention, queries: int, width: int) -> bool:
    """Whether looking at the windows' positions alone is less work than at all J and masking them.

    Both are the same but for rounding. A score's hidden layer costs as much a position either way; a product of all
    queries with all keys is so much quicker than products with keys picked one by one that these must be few.
    """
    if attention.window.reach is None or attention.score.neighbours:
        return False
    reached = 2 * attention.window.reach + 1
    cost = min(2 * queries, PRODUCTS_A_PICK) if attention.score.multiplies else 1
    return reached * cost < width


def within(attention: Attention, centre: Float[Tensor, "B Q"], asked: Asked, memory: Memory) -> Attended:
    """Each query is a sentence of its own, [B * Q, 1, P]; the weights are put back into J columns."""
    reach = attention.window.reach
    assert memory.keys is not None
    assert reach is not None
    (B, J), Q, P = memory.mask.shape, asked.query.shape[1], 2 * reach + 1
    first = (centre.detach() - reach).ceil().clamp(0, J - P).long()
    index = first.unsqueeze(2) + torch.arange(P, device=centre.device)
    real = memory.mask.unsqueeze(1).expand(B, Q, J).gather(2, index)
    allowed, factor = attention.window.place(centre, index, real)
    extra = attention.extra(asked, memory, index)
    seen = Seen(
        _pick(memory.keys, index),
        _pick(memory.attended, index),
        None if extra is None else extra.view(B * Q, 1, P, -1),
        Placement(allowed.view(B * Q, 1, P), None if factor is None else factor.view(B * Q, 1, P)),
        None if asked.drawn is None else _pick_drawn(asked.drawn, index),
    )
    attended = attention.weigh(asked.query.reshape(B * Q, 1, -1), seen)
    alpha, expected = (
        None if w is None else w.new_zeros(B, Q, J).scatter(2, index, w.view(B, Q, P))
        for w in (attended.alpha, attended.expected)
    )
    assert alpha is not None
    return Attended(alpha, attended.context.view(B, Q, -1), expected)


def _pick_drawn(drawn: Float[Tensor, "B Q M J"], index: Int[Tensor, "B Q P"]) -> Float[Tensor, "N 1 M P"]:
    heads = index.unsqueeze(2).expand(-1, -1, drawn.shape[2], -1)
    return drawn.gather(3, heads).flatten(0, 1).unsqueeze(1)


def _pick(rows: Float[Tensor, "B J K"], index: Int[Tensor, "B Q P"]) -> Float[Tensor, "N P K"]:
    """Rows of every sentence, N = B * Q; its gradient is summed in a fixed order on every device."""
    B, J, K = rows.shape
    offset = torch.arange(0, B * J, J, device=index.device)[:, None, None]
    return embedding((index + offset).flatten(0, 1), rows.reshape(B * J, K))
