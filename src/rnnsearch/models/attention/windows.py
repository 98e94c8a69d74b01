"""Windows: which source positions a query may attend to, and how its weights fall off within them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rnnsearch.config import AttentionConfig
from rnnsearch.models.initialise import Init


class Placement(NamedTuple):
    """Where Q queries a sentence may attend.

    allowed: [B, Q or 1, J], True inside the window and on real positions.
    factor: [B, Q, J], what the normalised weights are multiplied with (local-p's Gaussian, not renormalised:
        Luong et al., eq. 10); None for 1.
    """

    allowed: Tensor
    factor: Tensor | None = None


class Window(nn.Module, ABC):
    """A window over the source positions, which count in the original source order."""

    name: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()
    """Options of `[model.attention]` that this class needs."""
    counts: ClassVar[bool] = False
    """Whether it needs the target position t."""

    @classmethod
    @abstractmethod
    def make(cls, config: AttentionConfig, query_size: int) -> Window:
        """A window of the config's options."""

    @abstractmethod
    def place(
        self, query: Float[Tensor, "B Q D"], mask: Bool[Tensor, "B J"], position: Int[Tensor, "B Q"] | None
    ) -> Placement:
        """The windows of Q queries a sentence at target positions t (from 0; None unless `counts`)."""

    def initialise(self, init: Init) -> None:
        """Draw the parameters, if there are any."""


class Global(Window):
    """All real source positions."""

    name = "global"

    @classmethod
    def make(cls, config: AttentionConfig, query_size: int) -> Global:
        return cls()

    def place(
        self, query: Float[Tensor, "B Q D"], mask: Bool[Tensor, "B J"], position: Int[Tensor, "B Q"] | None
    ) -> Placement:
        return Placement(mask.unsqueeze(1))


WINDOWS: dict[str, type[Window]] = {c.name: c for c in (Global,)}
