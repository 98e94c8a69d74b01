"""Scores: how well a query and an annotation match, e [B, Q, J]. `keys` is made once a sentence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import AttentionConfig
from rnnsearch.models.initialise import Init


class Score(nn.Module, ABC):
    """A score of queries of `query_size` numbers against annotations of `annotation_size` numbers."""

    name: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()
    """Options of `[model.attention]` that this class needs."""
    takes_features: ClassVar[bool] = False
    """Whether features can enter its hidden layer; `hidden_size` is then A."""
    hidden_size: int = 0

    @classmethod
    @abstractmethod
    def make(cls, config: AttentionConfig, query_size: int, annotation_size: int) -> Score:
        """A score of the config's options."""

    @abstractmethod
    def keys(self, annotations: Float[Tensor, "B J H"]) -> Float[Tensor, "B J K"]:
        """The part that depends on the annotations alone."""

    @abstractmethod
    def forward(
        self,
        query: Float[Tensor, "B Q D"],
        keys: Float[Tensor, "B J K"],
        extra: Float[Tensor, "B Q J A"] | None = None,
    ) -> Float[Tensor, "B Q J"]:
        """Energies of Q queries a sentence. `extra`: what features add inside the hidden layer."""

    @abstractmethod
    def initialise(self, init: Init) -> None:
        """Draw the parameters."""


class Additive(Score):
    """The alignment model of Bahdanau et al. (appendix A.1.2): e_ij = v_a^T tanh(W_a s_{i-1} + U_a h_j).

    U_a h_j is the key, computed once a sentence ("V h_j is precomputed" in the slides).
    """

    name = "additive"
    options = frozenset({"size"})
    takes_features = True

    def __init__(self, query_size: int, annotation_size: int, size: int) -> None:
        super().__init__()
        self.hidden_size = size
        self.query = nn.Linear(query_size, size, bias=False)
        """W_a."""
        self.key = nn.Linear(annotation_size, size, bias=False)
        """U_a."""
        self.vector = nn.Parameter(torch.empty(size))
        """v_a."""

    @classmethod
    def make(cls, config: AttentionConfig, query_size: int, annotation_size: int) -> Additive:
        assert config.size is not None
        return cls(query_size, annotation_size, config.size)

    def initialise(self, init: Init) -> None:
        init.alignment(self.query.weight)
        init.alignment(self.key.weight)
        init.alignment_vector(self.vector)

    def keys(self, annotations: Float[Tensor, "B J H"]) -> Float[Tensor, "B J K"]:
        keys: Tensor = self.key(annotations)
        return keys

    def forward(
        self,
        query: Float[Tensor, "B Q D"],
        keys: Float[Tensor, "B J K"],
        extra: Float[Tensor, "B Q J A"] | None = None,
    ) -> Float[Tensor, "B Q J"]:
        hidden = self.query(query).unsqueeze(2) + keys.unsqueeze(1)
        hidden = torch.tanh(hidden if extra is None else hidden + extra)
        return hidden @ self.vector.to(hidden.dtype)


SCORES: dict[str, type[Score]] = {c.name: c for c in (Additive,)}
