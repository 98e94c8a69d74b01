"""The deep output with one maxout layer (Bahdanau et al., appendix A.2.2; Cho et al. 2014, appendix A)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.models.linear import Linear


class DeepOutput(nn.Module):
    """t = [max(t~_{2j-1}, t~_{2j})]_{j=1..l},  t~ = U_o s + V_o E y_{i-1} + C_o c + b.

    l is `maxout`; the papers' equations leave the biases out "to increase readability".
    """

    def __init__(self, state: int, embedding: int, context: int, maxout: int) -> None:
        super().__init__()
        self.state = Linear(state, 2 * maxout)
        """U_o and b."""
        self.word = Linear(embedding, 2 * maxout, bias=False)
        """V_o."""
        self.context = Linear(context, 2 * maxout, bias=False)
        """C_o."""

    def forward(
        self,
        state: Float[Tensor, "*rows D"],
        word: Float[Tensor, "*rows E"],
        context: Float[Tensor, "*rows H"],
    ) -> Float[Tensor, "*rows R"]:
        """The maxout layer's units, R = l."""
        hidden = self.state(state) + self.word(word) + self.context(context)
        return torch.maximum(hidden[..., 0::2], hidden[..., 1::2])
