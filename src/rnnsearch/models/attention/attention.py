"""Attention as one composition: features -> score -> mask and window -> normaliser -> window's factor -> context."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rnnsearch.config import AttentionConfig
from rnnsearch.models.attention.features import FEATURES, Feature
from rnnsearch.models.attention.normalisers import NORMALISERS, Normaliser, Softmax
from rnnsearch.models.attention.scores import SCORES, Score
from rnnsearch.models.attention.windows import WINDOWS, Global, Window
from rnnsearch.models.draws import Draws
from rnnsearch.models.initialise import Init
from rnnsearch.models.memory import Encoded, Memory


class AttentionState(NamedTuple):
    """What attention carries from one target position to the next; all None or empty for global soft attention.

    position: t [N], from 0. features: each feature's own state. noise: [N, I, J], the random numbers of hard
    attention for all target positions, drawn once.
    """

    position: Tensor | None = None
    features: tuple[Any, ...] = ()
    noise: Tensor | None = None


class Attended(NamedTuple):
    """alpha: [B, Q, J]; context: [B, Q, H]; expected: [B, Q, J], what a hard alpha was drawn from, else None."""

    alpha: Tensor
    context: Tensor
    expected: Tensor | None


class Attention(nn.Module):
    """Attention of a decoder over annotations. Holds parameters only: keys live in the `Memory`."""

    def __init__(
        self, score: Score, window: Window, normaliser: Normaliser, features: tuple[Feature, ...] = ()
    ) -> None:
        super().__init__()
        self.score = score
        self.window = window
        self.normaliser = normaliser
        self.features = nn.ModuleList(features)
        self.feature_weights = nn.ModuleList(
            nn.Linear(feature.width, score.hidden_size, bias=False) for feature in features
        )
        """W_f of each feature."""

    @classmethod
    def make(cls, config: AttentionConfig, query_size: int, annotation_size: int) -> Attention:
        """The attention that `[model.attention]` composes."""
        score = SCORES[config.score].make(config, query_size, annotation_size)
        window = WINDOWS[config.window].make(config, query_size)
        features = tuple(FEATURES[name].make(config, query_size, annotation_size) for name in config.features)
        return cls(score, window, NORMALISERS[config.normaliser](), features)

    def initialise(self, init: Init) -> None:
        """Draw the parameters."""
        self.score.initialise(init)
        self.window.initialise(init)
        for feature, weight in self._features():
            feature.initialise(init)
            init.alignment(weight.weight)

    def _features(self) -> list[tuple[Feature, nn.Linear]]:
        """The features, each with its W_f."""
        features, weights = cast(list[Feature], list(self.features)), cast(list[nn.Linear], list(self.feature_weights))
        return list(zip(features, weights, strict=True))

    @property
    def is_plain(self) -> bool:
        """Whether it is global with a softmax and without features: what fast twins of a recurrence need."""
        return type(self.window) is Global and type(self.normaliser) is Softmax and not self.features

    @property
    def merges(self) -> bool:
        """Whether a position's weights need no other position's, so that all can be attended from at once."""
        return not self.features

    def on(self, encoded: Encoded) -> Memory:
        """The memory of B sentences: keys are projected here, once a sentence."""
        features = tuple(feature.on(encoded) for feature, _ in self._features())
        return Memory(*encoded, keys=self.score.keys(encoded.annotations), features=features)

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> AttentionState:
        """What attention carries into the first target position; `steps`: target positions, where draws are given."""
        B, J = memory.mask.shape
        counts = self.window.counts or bool(self.features) or self.normaliser.draws_noise
        features = tuple(
            feature.start(memory, prepared)
            for (feature, _), prepared in zip(self._features(), memory.features, strict=True)
        )
        noise = None
        if draws is not None and self.normaliser.draws_noise:
            noise = draws.uniform((B, steps, J), memory.annotations)
        return AttentionState(memory.mask.new_zeros(B, dtype=torch.long) if counts else None, features, noise)

    def attend(
        self,
        query: Float[Tensor, "B Q D"],
        memory: Memory,
        position: Int[Tensor, "B Q"] | None = None,
        extra: Float[Tensor, "B Q J A"] | None = None,
        noise: Float[Tensor, "B Q J"] | None = None,
    ) -> Attended:
        """Weights alpha and contexts c of Q queries a sentence (Bahdanau et al., eq. 5-6; Luong et al., eq. 7-10)."""
        assert memory.keys is not None
        energy = self.score(query, memory.keys, extra)
        placement = self.window.place(query, memory.mask, position)
        weights = self.normaliser(energy.masked_fill(~placement.allowed, -torch.inf), noise)
        alpha = weights.alpha if placement.factor is None else weights.alpha * placement.factor
        context = torch.bmm(alpha.to(memory.annotations.dtype), memory.annotations)
        return Attended(alpha, context, weights.expected)

    def attend_all(self, query: Float[Tensor, "B I D"], state: AttentionState, memory: Memory) -> Attended:
        """All target positions at once, for a decoder into whose recurrence nothing of this re-enters."""
        assert self.merges
        position = None
        if state.position is not None:
            position = state.position[:, None] + torch.arange(query.shape[1], device=query.device)
        return self.attend(query, memory, position, None, state.noise)

    def step(
        self, query: Float[Tensor, "N D"], state: AttentionState, memory: Memory
    ) -> tuple[Attended, AttentionState]:
        """One target position of N = B * K hypotheses, K consecutive rows for each of B sentences: rows [N, ...]."""
        B = memory.mask.shape[0]
        position = None if state.position is None else state.position.view(B, -1)
        extra = self._extra(state, memory, position)
        attended = self.attend(query.unflatten(0, (B, -1)), memory, position, extra, self._noise(state, B))
        alpha, context = attended.alpha.flatten(0, 1), attended.context.flatten(0, 1)
        expected = None if attended.expected is None else attended.expected.flatten(0, 1)
        if state.position is not None:
            features = tuple(
                feature.after(s, prepared, memory, query, alpha)
                for (feature, _), s, prepared in zip(self._features(), state.features, memory.features, strict=True)
            )
            state = AttentionState(state.position + 1, features, state.noise)
        return Attended(alpha, context, expected), state

    def _extra(self, state: AttentionState, memory: Memory, position: Tensor | None) -> Tensor | None:
        """What all features together add inside the score's hidden layer [B, K, J, A]."""
        extra: Tensor | None = None
        for (feature, weight), s, prepared in zip(self._features(), state.features, memory.features, strict=True):
            assert position is not None
            share: Tensor = weight(feature.values(s, prepared, memory, position))
            extra = share if extra is None else extra + share
        return extra

    def _noise(self, state: AttentionState, sentences: int) -> Tensor | None:
        if state.noise is None or state.position is None:
            return None
        J = state.noise.shape[2]
        rows: Tensor = state.noise.gather(1, state.position[:, None, None].expand(-1, 1, J))
        return rows.view(sentences, -1, J)
