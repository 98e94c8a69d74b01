"""Attention as one composition: score -> mask and window -> normaliser -> window's weighting -> context.

Features (coverage, position, fertility) enter inside the score; they and windows that move with the
target position are what `AttentionState` is for. Global attention carries nothing from step to step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import AttentionConfig
from rnnsearch.models.attention.normalisers import NORMALISERS, Normaliser, Softmax
from rnnsearch.models.attention.scores import SCORES, Score
from rnnsearch.models.attention.windows import WINDOWS, Global, Window
from rnnsearch.models.initialise import Init
from rnnsearch.models.memory import Encoded, Memory


class AttentionState(NamedTuple):
    """What attention carries from one target position to the next: nothing, for global attention."""


class Attention(nn.Module):
    """Attention of a decoder over annotations. Holds parameters only: keys live in the `Memory`."""

    def __init__(self, score: Score, window: Window, normaliser: Normaliser) -> None:
        super().__init__()
        self.score = score
        self.window = window
        self.normaliser = normaliser

    @classmethod
    def make(cls, config: AttentionConfig, query_size: int, annotation_size: int) -> Attention:
        """The attention that `[model.attention]` composes."""
        score = SCORES[config.score].make(config, query_size, annotation_size)
        return cls(score, WINDOWS[config.window](), NORMALISERS[config.normaliser]())

    def initialise(self, init: Init) -> None:
        """Draw the parameters."""
        self.score.initialise(init)

    @property
    def is_plain(self) -> bool:
        """Whether it is global with a softmax and carries nothing: what fast twins of a recurrence need."""
        return type(self) is Attention and type(self.window) is Global and type(self.normaliser) is Softmax

    def on(self, encoded: Encoded) -> Memory:
        """The memory of B sentences: keys are projected here, once a sentence."""
        return Memory(*encoded, keys=self.score.keys(encoded.annotations))

    def start(self) -> AttentionState:
        """What attention carries into the first target position."""
        return AttentionState()

    def attend(
        self, query: Float[Tensor, "B Q D"], memory: Memory
    ) -> tuple[Float[Tensor, "B Q J"], Float[Tensor, "B Q H"]]:
        """Weights alpha and contexts c of Q queries a sentence (Bahdanau et al., eq. 5-6)."""
        assert memory.keys is not None
        energy = self.score(query, memory.keys)
        energy = energy.masked_fill(~self.window.allowed(memory.mask), -torch.inf)
        alpha = self.window.weigh(self.normaliser(energy))
        return alpha, torch.bmm(alpha.to(memory.annotations.dtype), memory.annotations)

    def step(
        self, query: Float[Tensor, "N D"], state: AttentionState, memory: Memory
    ) -> tuple[Float[Tensor, "N J"], Float[Tensor, "N H"], AttentionState]:
        """One target position of N = B * K hypotheses, K consecutive rows for each of B sentences."""
        alpha, context = self.attend(query.unflatten(0, (memory.mask.shape[0], -1)), memory)
        return alpha.flatten(0, 1), context.flatten(0, 1), state
