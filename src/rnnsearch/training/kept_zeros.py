"""Weights that stay zero while the others are trained: retraining of a pruned model (See et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class KeptZeros:
    """The pruned weights of a model, by masks of its parameters; without masks none.

    They have no gradient, so that neither clipping nor an optimiser's moments know of them; and whatever an update did
    to them is undone right after it.
    """

    def __init__(self, model: nn.Module | None = None, masks: Mapping[str, Tensor] | None = None) -> None:
        own = {} if model is None else dict(model.named_parameters())
        self._pruned = [(own[name], mask.to(own[name].device)) for name, mask in (masks or {}).items()]

    def clear_gradients(self) -> None:
        """Their gradients become zero."""
        for parameter, mask in self._pruned:
            if parameter.grad is not None:
                parameter.grad.masked_fill_(mask, 0.0)

    @torch.no_grad()
    def hold(self) -> None:
        """They become zero."""
        for parameter, mask in self._pruned:
            parameter.masked_fill_(mask, 0.0)
