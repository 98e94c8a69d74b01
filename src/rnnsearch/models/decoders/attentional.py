"""The attentional hidden state of Luong et al. 2015."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.models.linear import Linear


class Attentional(nn.Module):
    """h~_t = tanh(W_c [c_t; h_t]) (Luong et al. 2015, eq. 5); it has no bias."""

    def __init__(self, context: int, state: int, size: int) -> None:
        super().__init__()
        self.combine = Linear(context + state, size, bias=False)
        """W_c."""

    def forward(self, context: Float[Tensor, "*rows H"], h: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows R"]:
        """h~ of any number of positions."""
        return torch.tanh(self.combine(torch.cat([context.to(h.dtype), h], dim=-1)))
