"""Operations of one position of the recurrences in `torch_recurrences.py`, between their matrix products.

`TorchKernels` defines them; `triton_kernels.py` has each of them as one GPU kernel. Both write into memory that the
recurrence has allocated for all positions. `kernel_choice.py` chooses.

All operations compute in fp32 or wider. Outputs that are operands of matrix products are rounded to their type.
Gradients of pre-activations use tanh' = 1 - tanh^2 and sigma' = sigma (1 - sigma).

Tests: tests/models/test_recurrent_kernels.py compares both implementations.

Axes: B sentences, I target positions, J source positions, D state, H annotation, A alignment hidden.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AttentionInputs(NamedTuple):
    """Tensors that additive attention reads at all positions."""

    h: Tensor
    """Annotations [B, J, H]."""
    k: Tensor
    """Keys U_a h_j [B, J, A]."""
    mask: Tensor
    """True on real source positions [B, J]."""
    v: Tensor
    """v_a [A]."""


class TorchKernels:
    """The operations in PyTorch: a definition for `triton_kernels.py`, and the implementation without Triton."""

    def gates(self, product: Tensor, x: Tensor, context: Tensor | None, h: Tensor, zr: Tensor, reset: Tensor) -> None:
        """Compute z and r of a GRU, and r * h.

        Args:
            product: [U_z; U_r] h [B, 2 D].
            x: Gate inputs [B, 3 D].
            context: A further summand of the gate inputs [B, 3 D], or None.
            h: Previous state [B, D].
            zr: Output [B, 2 D].
            reset: Output r * h [B, D].
        """
        D = h.shape[1]
        inputs = x[:, : 2 * D] if context is None else x[:, : 2 * D] + context[:, : 2 * D]
        torch.sigmoid(inputs + product, out=zr)
        torch.mul(zr[:, D:], h, out=reset)

    def update(
        self,
        product: Tensor,
        x: Tensor,
        context: Tensor | None,
        h: Tensor,
        zr: Tensor,
        active: Tensor | None,
        candidate: Tensor,
        new: Tensor,
        rounded: Tensor,
    ) -> None:
        """Compute the candidate and the next state h' = h + z (h~ - h) of a GRU.

        Args:
            product: U [r * h] [B, D].
            x: Gate inputs [B, 3 D].
            context: A further summand of the gate inputs [B, 3 D], or None.
            h: Previous state [B, D].
            zr: z and r [B, 2 D].
            active: False where the state stays as it is [B]; None if it does nowhere.
            candidate: Output h~ [B, D].
            new: Output h' [B, D].
            rounded: Output h' in the type of matrix products; may share the memory of `new`.
        """
        D = h.shape[1]
        inputs = x[:, 2 * D :] if context is None else x[:, 2 * D :] + context[:, 2 * D :]
        torch.tanh(inputs + product, out=candidate)
        torch.addcmul(h, _used(zr, active), candidate - h, out=new)
        if rounded.dtype != new.dtype:
            rounded.copy_(new)

    def candidate_backward(
        self,
        d_carried: Tensor,
        d_product: Tensor,
        d_output: Tensor,
        h: Tensor,
        zr: Tensor,
        candidate: Tensor,
        active: Tensor | None,
        d_z: Tensor,
        d_candidate: Tensor,
    ) -> None:
        """Compute the gradients of the pre-activations of z and of the candidate.

        The gradient of h' is the sum of the first three arguments [B, D].

        Args:
            d_carried: The part that was carried over by the following position; overwritten with the part that this
                position carries over, d_h' (1 - z).
            d_product: The part from the following position's products.
            d_output: The part from the output of this position.
            h: Previous state [B, D].
            zr: z and r [B, 2 D].
            candidate: h~ [B, D].
            active: See `update`.
            d_z: Output [B, D].
            d_candidate: Output [B, D].
        """
        D = h.shape[1]
        d_next = d_carried + d_product + d_output
        used = _used(zr, active)
        d_candidate.copy_(d_next * used * (1 - candidate * candidate))
        d_z.copy_(d_next * (candidate - h) * used * (1 - zr[:, :D]))
        torch.mul(d_next, 1 - used, out=d_carried)

    def reset_backward(self, d_reset: Tensor, h: Tensor, zr: Tensor, d_r: Tensor, d_carried: Tensor) -> None:
        """Compute the gradient of the pre-activation of r, and add d_reset r to `d_carried`.

        Args:
            d_reset: Gradient of r * h [B, D].
            h: Previous state [B, D].
            zr: z and r [B, 2 D].
            d_r: Output [B, D].
            d_carried: [B, D].
        """
        r = zr[:, h.shape[1] :]
        d_r.copy_(d_reset * h * r * (1 - r))
        d_carried.addcmul_(d_reset.to(d_carried.dtype), r)

    def attend(self, q: Tensor, inputs: AttentionInputs, alpha: Tensor, context: Tensor) -> None:
        """Compute alpha = softmax_j v^T tanh(q + k_j) and the context sum_j alpha_j h_j.

        Args:
            q: W_a s [B, A].
            inputs: See `AttentionInputs`.
            alpha: Output [B, J].
            context: Output [B, H].
        """
        energy = torch.tanh_(inputs.k + q.unsqueeze(1)) @ inputs.v  # [B, J]
        # In fp32: bf16 has only 8 significant bits, too few for sums of probabilities.
        torch.softmax(energy.to(alpha.dtype).masked_fill_(~inputs.mask, -torch.inf), dim=-1, out=alpha)
        torch.bmm(alpha.unsqueeze(1).to(inputs.h.dtype), inputs.h, out=context.unsqueeze(1))  # [B, 1, H]

    def attention_backward(self, queries: Tensor, alphas: Tensor, inputs: AttentionInputs) -> AttentionBackward:
        """Return the backward pass of `attend` at all positions.

        Args:
            queries: [I, B, A].
            alphas: [I, B, J].
            inputs: See `AttentionInputs`.
        """
        return AttentionBackward(queries, alphas, inputs)


class AttentionBackward:
    """The backward pass of `TorchKernels.attend`, one position after the other."""

    def __init__(self, queries: Tensor, alphas: Tensor, inputs: AttentionInputs) -> None:
        self._queries = queries
        self._alphas = alphas
        self._inputs = inputs
        self._d_keys = torch.zeros(inputs.k.shape, dtype=alphas.dtype, device=alphas.device)
        self._d_v = torch.zeros_like(inputs.v, dtype=alphas.dtype)

    def position(
        self, i: int, d_product: Tensor, d_context: Tensor, d_alpha: Tensor, d_c: Tensor, d_query: Tensor
    ) -> None:
        """Compute the gradients of position i.

        Args:
            i: Target position.
            d_product: Gradient of the context from the gates [B, H].
            d_context: Gradient of the context as an output [B, H].
            d_alpha: Gradient of the weights as an output [B, J].
            d_c: Output, the sum of both gradients of the context [B, H].
            d_query: Output, the gradient of q [B, A].
        """
        h, k, _, v = self._inputs
        alpha = self._alphas[i]
        torch.add(d_product, d_context.to(d_c.dtype), out=d_c)
        d_alpha = torch.bmm(h, d_c.unsqueeze(2)).squeeze(2).to(alpha.dtype) + d_alpha  # [B, J]
        weighted = alpha * d_alpha
        # Backward pass of the softmax: alpha * (d_alpha - sum_j alpha_j d_alpha_j).
        d_energy = weighted - alpha * weighted.sum(-1, keepdim=True)
        # Computed again: all positions together would take [I, B, J, A].
        hidden = torch.tanh_(k + self._queries[i].unsqueeze(1))  # [B, J, A]
        d_e = d_energy.to(k.dtype)
        self._d_v += (d_e.flatten() @ hidden.flatten(0, 1)).to(self._d_v.dtype)
        # Gradient of the argument of tanh: d_e v (1 - hidden^2)
        d_hidden = torch.addcmul(v, hidden, hidden * v, value=-1).mul_(d_e.unsqueeze(2))
        self._d_keys += d_hidden
        torch.sum(d_hidden, dim=1, out=d_query)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of the keys [B, J, A] and of v [A], summed over the positions."""
        return self._d_keys, self._d_v


def _used(zr: Tensor, active: Tensor | None) -> Tensor:
    """Return the weight of the candidate in h': z, or 0 where the state stays as it is."""
    z = zr[:, : zr.shape[1] // 2]
    return z if active is None else z * active.unsqueeze(1)
