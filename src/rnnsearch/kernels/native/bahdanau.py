"""The whole recurrence of RNNsearch's decoder in C++ (`bahdanau.cpp`): the twin of `fused/bahdanau.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rnnsearch.kernels.native.library import function, serves
from rnnsearch.kernels.products import weight_gradient
from rnnsearch.tensors import product_type


def can_run(x: Tensor, annotations: Tensor, keys: Tensor, U: Tensor) -> bool:
    """Whether the compiled functions are there for these inputs and these weights."""
    return serves("bahdanau_forward", "bahdanau", x, U, sizes=(U.shape[0], keys.shape[2], annotations.shape[2]))


def unroll(
    x: Tensor, s_0: Tensor, annotations: Tensor, keys: Tensor, mask: Tensor, *weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """s_{i-1} [B, I, D], c_i [B, I, H] and alpha_i [B, I, J]; arguments as `fused.bahdanau.unroll`'s."""
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Recurrence.apply
    return apply(x, s_0, annotations, keys, mask, *weights)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, s_0: Tensor, annotations: Tensor, keys: Tensor, mask: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        kind, full = product_type(x), weights[-1].dtype
        run = function("bahdanau_forward", "bahdanau", kind)
        assert run is not None
        W_a, _, C, U_gates, U = (w.to(kind).contiguous() for w in weights)
        v_a = weights[1].contiguous()
        fed_back = torch.cat([W_a, U_gates])  # both read s: one product
        x, h, k = (part.to(kind).contiguous() for part in (x, annotations, keys))
        s_0, mask = s_0.to(full).contiguous(), mask.contiguous()
        B, I, J, D, A, H = sizes = (*x.shape[:2], k.shape[1], U.shape[0], k.shape[2], h.shape[2])
        s, candidates, zr = (v_a.new_empty(B, I, n) for n in (D, D, 2 * D))
        before, reset, queries, contexts = (U.new_empty(B, I, n) for n in (D, D, A, H))
        alphas = v_a.new_empty(B, I, J)
        run(
            *(*sizes, x, s_0, h, k, mask, fed_back, v_a, C, U),
            *(s, before, zr, candidates, reset, queries, contexts, alphas),
        )
        ctx.save_for_backward(
            *(h, k, mask, fed_back, v_a, C, U, s, zr, candidates, queries, alphas, before, reset, contexts)
        )
        return s, contexts, alphas

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        h, k, mask, fed_back, v_a, C, U, *made = ctx.saved_tensors
        s, zr, candidates, queries, alphas, before, reset, contexts = made
        B, I, J, D, A, H = sizes = (*s.shape[:2], k.shape[1], s.shape[2], k.shape[2], h.shape[2])
        kind, full = U.dtype, s.dtype
        run = function("bahdanau_backward", "bahdanau", kind)
        assert run is not None
        d_s, d_contexts, d_alphas = (g.to(full).contiguous() for g in grads)
        d_x, d_queries, d_c = (U.new_empty(B, I, n) for n in (3 * D, A, H))
        d_h, d_keys, d_v, d_s_0 = torch.empty_like(h), s.new_empty(B, J, A), torch.empty_like(v_a), s.new_empty(B, D)
        run(
            *(*sizes, h, k, mask, fed_back, v_a, C, U, s, zr, candidates, queries, alphas, d_s, d_contexts, d_alphas),
            *(d_x, d_queries, d_c, d_h, d_keys, d_v, d_s_0),
        )
        with torch.autocast("cpu", enabled=False):
            d_W_a, d_C = weight_gradient(d_queries, before), weight_gradient(d_x, contexts)
            d_U_gates = weight_gradient(d_x[..., : 2 * D], before)
            d_U = weight_gradient(d_x[..., 2 * D :], reset)
        return d_x, d_s_0, d_h, d_keys, None, d_W_a, d_v, d_C, d_U_gates, d_U
