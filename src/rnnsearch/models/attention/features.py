"""Features: what the alignment model sees of each source position besides query and annotation.

A feature gives [B, Q, J, F] numbers a target position, from what it remembers of the weights so far (coverage,
Markov, fertility) or from the positions alone. They enter inside the score, through a matrix of their own:
e_ij = v_a^T tanh(W_a s + U_a h_j + W_f f_ij) (Tu et al. 2016; Cohn et al. 2016).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from rnnsearch.config import AttentionConfig
from rnnsearch.models.initialise import Init
from rnnsearch.models.memory import Encoded, Memory


class Feature(nn.Module, ABC):
    """A feature of `width` numbers (F) a source position."""

    name: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()
    """Options of `[model.attention]` that this class needs."""
    width: int

    @classmethod
    @abstractmethod
    def make(cls, config: AttentionConfig, query_size: int, annotation_size: int) -> Feature:
        """A feature of the config's options."""

    def on(self, encoded: Encoded) -> Tensor | None:
        """What it computes once a sentence, [B, ...]; kept in `Memory.features`."""
        return None

    @abstractmethod
    def start(self, memory: Memory, prepared: Tensor | None) -> Any:
        """Its state before the first target position: a named tuple of tensors, one row a sentence."""

    @abstractmethod
    def values(
        self, state: Any, prepared: Tensor | None, memory: Memory, position: Int[Tensor, "B Q"]
    ) -> Float[Tensor, "B Q J F"]:
        """The feature of every source position for Q queries a sentence; rows of `state` are B * Q."""

    @abstractmethod
    def after(
        self,
        state: Any,
        prepared: Tensor | None,
        memory: Memory,
        query: Float[Tensor, "N D"],
        alpha: Float[Tensor, "N J"],
    ) -> Any:
        """The state after a target position whose weights were alpha; N = B * Q rows."""

    def initialise(self, init: Init) -> None:
        """Draw the parameters, if there are any."""


FEATURES: dict[str, type[Feature]] = {}
