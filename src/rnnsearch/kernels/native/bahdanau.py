"""The positions of RNNsearch's decoder in C++ (`bahdanau.cpp`), in order and in reverse: see `kernels/bahdanau.py`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rnnsearch.kernels.native.library import function, serves


class Found(NamedTuple):
    """What a loop's way back gives. Rows of all positions, in one order: d of the gates before their sigmoids [., 3 D],
    d of W_a s_{i-1}, s_{i-1}, r s_{i-1}, c_i. Then d of what the loop has read, in its shapes."""

    d_gates: Tensor
    d_queries: Tensor
    before: Tensor
    reset: Tensor
    contexts: Tensor
    d_x: Tensor
    d_s_0: Tensor
    d_h: Tensor
    d_keys: Tensor
    d_v: Tensor


def can_run(x: Tensor, annotations: Tensor, keys: Tensor, U: Tensor) -> bool:
    """Whether the compiled functions are there for these inputs and these weights."""
    return serves("bahdanau_forward", "bahdanau", x, U, sizes=(U.shape[0], keys.shape[2], annotations.shape[2]))


def onward(
    x: Tensor,
    s_0: Tensor,
    h: Tensor,
    k: Tensor,
    mask: Tensor,
    v_a: Tensor,
    fed_back: Tensor,
    C: Tensor,
    U: Tensor,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """s_{i-1} [B, I, D], c_i [B, I, H] and alpha_i [B, I, J], and what `back` needs. fed_back: W_a above U_gates."""
    run = function("bahdanau_forward", "bahdanau", U.dtype)
    assert run is not None
    x, s_0, mask = x.to(U.dtype).contiguous(), s_0.to(v_a.dtype).contiguous(), mask.contiguous()
    h, k, v_a, fed_back, C, U = (part.contiguous() for part in (h, k, v_a, fed_back, C, U))
    B, I, J, D, A, H = sizes = (*x.shape[:2], k.shape[1], U.shape[0], k.shape[2], h.shape[2])
    s, candidates, zr = (v_a.new_empty(B, I, n) for n in (D, D, 2 * D))
    before, reset, queries, contexts = (U.new_empty(B, I, n) for n in (D, D, A, H))
    alphas = v_a.new_empty(B, I, J)
    run(
        *(*sizes, x, s_0, h, k, mask, fed_back, v_a, C, U),
        *(s, before, zr, candidates, reset, queries, contexts, alphas),
    )
    saved = h, k, mask, fed_back, v_a, C, U, s, zr, candidates, queries, alphas, before, reset, contexts
    return (s, contexts, alphas), saved


def back(grads: tuple[Tensor, ...], saved: tuple[Tensor, ...]) -> Found:
    """The positions in reverse."""
    h, k, mask, fed_back, v_a, C, U, s, zr, candidates, queries, alphas, before, reset, contexts = saved
    B, I, J, D, A, H = sizes = (*s.shape[:2], k.shape[1], s.shape[2], k.shape[2], h.shape[2])
    run = function("bahdanau_backward", "bahdanau", U.dtype)
    assert run is not None
    d_s, d_contexts, d_alphas = (g.to(s.dtype).contiguous() for g in grads)
    d_x, d_queries, d_c = (U.new_empty(B, I, n) for n in (3 * D, A, H))
    d_h, d_keys, d_v, d_s_0 = torch.empty_like(h), s.new_empty(B, J, A), torch.empty_like(v_a), s.new_empty(B, D)
    run(
        *(*sizes, h, k, mask, fed_back, v_a, C, U, s, zr, candidates, queries, alphas, d_s, d_contexts, d_alphas),
        *(d_x, d_queries, d_c, d_h, d_keys, d_v, d_s_0),
    )
    return Found(d_x, d_queries, before, reset, contexts, d_x, d_s_0, d_h, d_keys, d_v)
