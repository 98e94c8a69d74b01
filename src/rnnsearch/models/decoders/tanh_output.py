"""The deep output with one tanh layer (Nematus: Sennrich et al. 2017, section 3)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.models.linear import Linear


class TanhOutput(nn.Module):
    """t_i = tanh(W_t1 s_i + W_t2 E y_{i-1} + W_t3 c_i + b)."""

    def __init__(self, state: int, embedding: int, context: int, size: int) -> None:
        super().__init__()
        self.state = Linear(state, size)
        """W_t1 and b."""
        self.word = Linear(embedding, size, bias=False)
        """W_t2."""
        self.context = Linear(context, size, bias=False)
        """W_t3."""

    def forward(
        self,
        state: Float[Tensor, "*rows D"],
        word: Float[Tensor, "*rows E"],
        context: Float[Tensor, "*rows H"],
    ) -> Float[Tensor, "*rows R"]:
        """The layer's units."""
        return torch.tanh(self.state(state) + self.word(word) + self.context(context))
