"""Fast implementation of `Attention.attend` with a local window: only the positions inside the window are read.

`registry.py` selects `attend`, which decides per call whether gathering the positions is less work than masking.

Axes: B sentences, Q queries, N = B * Q, M heads, J source positions, K values per row of a memory, D half the
window's width (Luong et al. 2015), P = 2 D + 1 positions of a window.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from rnnsearch.models.attention.attention import Attention, AttentionInputs, AttentionOutput, Query
from rnnsearch.models.attention.windows import WindowMask
from rnnsearch.models.memory import Memory

PRODUCTS_PER_GATHER = 24  # products with a key in one matrix product that take as long as one with a gathered key


def attend(attention: Attention, query: Query, memory: Memory) -> AttentionOutput:
    """Attend only to the P = 2 D + 1 positions of each query's window, if that is less work."""
    centre = attention.window_centre(query, memory)
    if centre is None or not gathering_is_faster(attention, query.vectors.shape[1], memory.mask.shape[1]):
        return attention.forward(query.vectors, attention.inputs(query, memory, centre))
    return attend_gathered(attention, centre, query, memory)


def gathering_is_faster(attention: Attention, num_queries: int, num_positions: int) -> bool:
    """Return True if reading only the positions in the windows is less work than reading all and masking them.

    The results are equal up to rounding. The hidden layer of a score costs the same per position either way, but the
    product of all queries with all keys is so much faster than products with gathered keys that these must be few.
    """
    if attention.window.reach is None or attention.score.neighbours:
        return False
    positions_in_window = 2 * attention.window.reach + 1
    cost = min(2 * num_queries, PRODUCTS_PER_GATHER) if attention.score.is_product else 1
    return positions_in_window * cost < num_positions


def attend_gathered(
    attention: Attention, centre: Float[Tensor, "B Q"], query: Query, memory: Memory
) -> AttentionOutput:
    """Attend to gathered positions, with each query as its own sentence, and scatter the weights to J columns."""
    reach = attention.window.reach
    assert memory.keys is not None and reach is not None
    B, J = memory.mask.shape
    Q = query.vectors.shape[1]
    P = 2 * reach + 1
    # Moved so that P positions fit into the sentence; the window's mask excludes those outside. J > P, because
    # gathering would not be faster otherwise.
    first = (centre.detach() - reach).ceil().clamp(0, J - P).long()  # [B, Q]
    index = first.unsqueeze(2) + torch.arange(P, device=centre.device)  # [B, Q, P]
    real = memory.mask.unsqueeze(1).expand(B, Q, J).gather(2, index)  # [B, Q, P]
    allowed, factor = attention.window.mask(centre, index, real)
    extra = attention.feature_sum(query, memory, index)
    # Each query is a sentence of its own from here on: N = B * Q rows with one query and P positions.
    inputs = AttentionInputs(
        _gather_rows(memory.keys, index),
        _gather_rows(memory.context_values, index),
        None if extra is None else extra.view(B * Q, 1, P, -1),
        WindowMask(allowed.view(B * Q, 1, P), None if factor is None else factor.view(B * Q, 1, P)),
        *attention.split_random(None if query.random is None else _gather_random(query.random, index)),
    )
    output = attention.forward(query.vectors.reshape(B * Q, 1, -1), inputs)

    def scattered(weights: Tensor) -> Tensor:
        return weights.new_zeros(B, Q, J).scatter(2, index, weights.view(B, Q, P))

    expected_alpha = None if output.expected_alpha is None else scattered(output.expected_alpha)
    return AttentionOutput(scattered(output.alpha), output.context.view(B, Q, -1), expected_alpha)


def _gather_random(random: Float[Tensor, "B Q M J"], index: Int[Tensor, "B Q P"]) -> Float[Tensor, "N 1 M P"]:
    per_head = index.unsqueeze(2).expand(-1, -1, random.shape[2], -1)
    return random.gather(3, per_head).flatten(0, 1).unsqueeze(1)


def _gather_rows(rows: Float[Tensor, "B J K"], index: Int[Tensor, "B Q P"]) -> Float[Tensor, "N P K"]:
    """Return the rows of each query, N = B * Q; their gradient is summed in a fixed order on every device."""
    B, J, K = rows.shape
    offset = torch.arange(0, B * J, J, device=index.device)[:, None, None]
    return embedding((index + offset).flatten(0, 1), rows.reshape(B * J, K))


def attend_unsupported_reason(attention: Attention) -> str | None:
    """Return why `attend` does not apply to an attention, or None if it does."""
    return None if attention.window.reach is not None else "its window sees all positions"
