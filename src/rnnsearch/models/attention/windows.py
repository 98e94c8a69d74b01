"""Windows: which source positions a query may attend to, and how its weights fall off within them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor, nn


class Window(nn.Module, ABC):
    """A window over the source positions."""

    name: ClassVar[str]

    @abstractmethod
    def allowed(self, mask: Bool[Tensor, "B J"]) -> Bool[Tensor, "B #Q J"]:
        """True where a query may attend."""

    @abstractmethod
    def weigh(self, alpha: Float[Tensor, "B Q J"]) -> Float[Tensor, "B Q J"]:
        """The weights after normalising (local-p: times its Gaussian, not renormalised)."""


class Global(Window):
    """All real source positions."""

    name = "global"

    def allowed(self, mask: Bool[Tensor, "B J"]) -> Bool[Tensor, "B #Q J"]:
        return mask.unsqueeze(1)

    def weigh(self, alpha: Float[Tensor, "B Q J"]) -> Float[Tensor, "B Q J"]:
        return alpha


WINDOWS: dict[str, type[Window]] = {c.name: c for c in (Global,)}
