"""What character models are made of: filters over windows of positions, and highway layers."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.models.initialise import parameter
from rnnsearch.models.linear import Linear


class Filters(nn.Module):
    """<X[j - before : j - before + w], H_f> + b_f of every position j and each of some widths w, side by side; beyond
    the ends are zeros. A window begins at its position, or is `centred` on it: before = (w - 1) / 2, rounded down."""

    def __init__(self, inputs: int, filters: dict[int, int], centred: bool) -> None:
        """filters: how many are of each width."""
        super().__init__()
        self.widths, self.centred = list(filters), centred
        self.layers = nn.ModuleList(Linear(w * inputs, count) for w, count in filters.items())
        """H and b of each width."""
        self.size = sum(filters.values())

    def forward(self, x: Float[Tensor, "B J E"]) -> Float[Tensor, "B J F"]:
        """What each filter finds at each position."""
        found = []
        for w, layer in zip(self.widths, self.layers, strict=True):
            before = (w - 1) // 2 if self.centred else 0
            windows = functional.pad(x, (0, 0, before, w - 1 - before)).unfold(1, w, 1)  # [B, J, E, w]
            found.append(layer(windows.transpose(2, 3).flatten(2)))
        return torch.cat(found, dim=-1)


class Highway(nn.Module):
    """z = t * g(W_H y + b_H) + (1 - t) * y,  t = sigmoid(W_T y + b_T), g = ReLU (Srivastava et al. 2015; Kim et al.
    2016, eq. 8); b_T begins at -2, so that a layer first passes y on."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.change = Linear(size, size)
        """W_H and b_H."""
        self.gate = Linear(size, size, bias=False)
        """W_T."""
        self.gate_bias = parameter(-2.0, size)

    def forward(self, y: Float[Tensor, "*rows F"]) -> Float[Tensor, "*rows F"]:
        """One layer."""
        t = torch.sigmoid(self.gate(y) + self.gate_bias)
        return t * torch.relu(self.change(y)) + (1 - t) * y


def highways(size: int, layers: int) -> nn.Sequential:
    """Several layers, one after the other."""
    return nn.Sequential(*(Highway(size) for _ in range(layers)))
