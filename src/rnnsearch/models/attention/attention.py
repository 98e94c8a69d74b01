"""Attention as one composition: features -> score -> mask and window -> normaliser -> window's factor -> context."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding

from rnnsearch.config import AttentionConfig
from rnnsearch.models.attention.features import FEATURES, Feature
from rnnsearch.models.attention.normalisers import NORMALISERS, Normaliser, Softmax
from rnnsearch.models.attention.scores import SCORES, Score
from rnnsearch.models.attention.windows import WINDOWS, Global, Placement, Window
from rnnsearch.models.draws import Draws
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import Encoded, Memory

PRODUCTS_A_PICK = 24
"""How many products with a key in one matrix product take as long as one with a key picked by itself (measured)."""


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
            Linear(feature.width, score.hidden_size, bias=False, role="alignment") for feature in features
        )
        """W_f of each feature."""

    @classmethod
    def make(cls, config: AttentionConfig, query_size: int, annotation_size: int) -> Attention:
        """The attention that `[model.attention]` composes."""
        score = SCORES[config.score].make(config, query_size, annotation_size)
        window = WINDOWS[config.window].make(config, query_size)
        features = tuple(FEATURES[name].make(config, query_size, annotation_size) for name in config.features)
        return cls(score, window, NORMALISERS[config.normaliser](), features)

    def _features(self) -> list[tuple[Feature, nn.Linear]]:
        """The features, each with its W_f."""
        features, weights = cast(list[Feature], list(self.features)), cast(list[nn.Linear], list(self.feature_weights))
        return list(zip(features, weights, strict=True))

    @property
    def is_plain(self) -> bool:
        """Whether it is global with a softmax and without features: what fast twins of a recurrence need."""
        plain = type(self) is Attention and not self.features
        return plain and type(self.window) is Global and type(self.normaliser) is Softmax

    @property
    def merges(self) -> bool:
        """Whether a position's weights need no other position's, so that all can be attended from at once."""
        return not any(feature.remembers for feature, _ in self._features())

    def on(self, encoded: Encoded) -> Memory:
        """The memory of B sentences: keys are projected here, once a sentence. Errors: ModelError (a location score
        and too long a source)."""
        keys, values = self.score.keys(encoded.annotations), self.score.values(encoded.annotations)
        if self.window.reach is not None:  # rows are picked from these at every step: no copy there
            keys, values = keys.contiguous(), encoded.annotations.contiguous() if values is None else values
        features = tuple(feature.on(encoded) for feature, _ in self._features())
        return Memory(*encoded, keys=keys, features=features, values=values)

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
        states: tuple[Any, ...] = (),
        noise: Float[Tensor, "B Q J"] | None = None,
    ) -> Attended:
        """Weights alpha and contexts c of Q queries a sentence (Bahdanau et al., eq. 5-6; Luong et al., eq. 7-10);
        `states`: those of the features."""
        at = position
        if position is not None and memory.origin is not None:  # annotations of several source positions each
            source = memory.origin.position
            at = source.gather(1, position.clamp(max=source.shape[1] - 1))
        centre = self.window.centre(query, memory.mask, at)
        if centre is not None and self._gathers(query.shape[1], memory.mask.shape[1]):
            return self._within(query, centre, memory, position, states, noise)
        return self._everywhere(query, centre, memory, position, states, noise)

    def attend_all(self, query: Float[Tensor, "B I D"], state: AttentionState, memory: Memory) -> Attended:
        """All target positions at once, for a decoder into whose recurrence nothing of this re-enters."""
        assert self.merges
        position = None
        if state.position is not None:
            position = state.position[:, None] + torch.arange(query.shape[1], device=query.device)
        return self.attend(query, memory, position, state.features, state.noise)

    def step(
        self, query: Float[Tensor, "N D"], state: AttentionState, memory: Memory
    ) -> tuple[Attended, AttentionState]:
        """One target position of N = B * K hypotheses, K consecutive rows for each of B sentences: rows [N, ...]."""
        B = memory.mask.shape[0]
        position = None if state.position is None else state.position.view(B, -1)
        attended = self.attend(query.unflatten(0, (B, -1)), memory, position, state.features, self._noise(state, B))
        alpha, context = attended.alpha.flatten(0, 1), attended.context.flatten(0, 1)
        expected = None if attended.expected is None else attended.expected.flatten(0, 1)
        if state.position is not None:
            features = tuple(
                feature.after(s, prepared, memory, query, alpha)
                for (feature, _), s, prepared in zip(self._features(), state.features, memory.features, strict=True)
            )
            state = AttentionState(state.position + 1, features, state.noise)
        return Attended(alpha, context, expected), state

    def _gathers(self, queries: int, width: int) -> bool:
        """Whether looking at the windows' positions alone is less work than at all J and masking them.

        Both are the same but for rounding. A score's hidden layer costs as much a position either way; a product of
        all queries with all keys is so much quicker than products with keys picked one by one that these must be few.
        """
        if self.window.reach is None:
            return False
        reached = 2 * self.window.reach + 1
        cost = min(2 * queries, PRODUCTS_A_PICK) if self.score.multiplies else 1
        return reached * cost < width

    def _everywhere(
        self,
        query: Tensor,
        centre: Tensor | None,
        memory: Memory,
        position: Tensor | None,
        states: tuple[Any, ...],
        noise: Tensor | None,
    ) -> Attended:
        """All source positions, those outside the window masked: the definition."""
        assert memory.keys is not None
        positions = torch.arange(memory.mask.shape[1], device=query.device)[None, None]
        placement = self.window.place(centre, positions, memory.mask.unsqueeze(1))
        values = memory.annotations if memory.values is None else memory.values
        extra = self._extra(states, memory, position, None)
        return self._weigh(query, memory.keys, values, extra, placement, noise)

    def _within(
        self,
        query: Tensor,
        centre: Tensor,
        memory: Memory,
        position: Tensor | None,
        states: tuple[Any, ...],
        noise: Tensor | None,
    ) -> Attended:
        """The fast twin of `_everywhere` for local windows: the P = 2 D + 1 positions of each query alone.

        Each query is then a sentence of its own, [B * Q, 1, P]; the weights are put back into J columns.
        """
        reach = self.window.reach
        assert memory.keys is not None
        assert reach is not None
        (B, J), Q, P = memory.mask.shape, query.shape[1], 2 * reach + 1
        first = (centre.detach() - reach).ceil().clamp(0, J - P).long()
        index = first.unsqueeze(2) + torch.arange(P, device=query.device)
        real = memory.mask.unsqueeze(1).expand(B, Q, J).gather(2, index)
        placement = self.window.place(centre, index, real)
        factor = None if placement.factor is None else placement.factor.view(B * Q, 1, P)
        extra = self._extra(states, memory, position, index)
        attended = self._weigh(
            query.reshape(B * Q, 1, -1),
            _pick(memory.keys, index),
            _pick(memory.annotations if memory.values is None else memory.values, index),
            None if extra is None else extra.view(B * Q, 1, P, -1),
            Placement(placement.allowed.view(B * Q, 1, P), factor),
            None if noise is None else noise.gather(2, index).view(B * Q, 1, P),
        )
        alpha, expected = (
            None if w is None else w.new_zeros(B, Q, J).scatter(2, index, w.view(B, Q, P))
            for w in (attended.alpha, attended.expected)
        )
        assert alpha is not None
        return Attended(alpha, attended.context.view(B, Q, -1), expected)

    def _weigh(
        self,
        query: Float[Tensor, "R q D"],
        keys: Float[Tensor, "R P K"],
        values: Float[Tensor, "R P H"],
        extra: Float[Tensor, "R q P A"] | None,
        placement: Placement,
        noise: Float[Tensor, "R q P"] | None,
    ) -> Attended:
        """Score, mask, normaliser, the window's factor, context; the weights of several heads as their mean."""
        M = self.score.heads
        allowed, factor = placement
        if M > 1:
            allowed = allowed if allowed.shape[1] == 1 else allowed.repeat_interleave(M, dim=1)
            factor = None if factor is None else factor.repeat_interleave(M, dim=1)
        energy = self.score(query, keys, extra)
        alpha, expected = self.normaliser(energy.masked_fill(~allowed, -torch.inf), noise)
        alpha = alpha if factor is None else alpha * factor
        if M == 1:
            return Attended(alpha, torch.bmm(alpha.to(values.dtype), values), expected)
        by_head = alpha.unflatten(1, (-1, M))  # [R, q, M, P]
        parts = values.unflatten(2, (M, -1))  # [R, P, M, H / M]
        context = torch.einsum("rqmp,rpmh->rqmh", by_head.to(values.dtype), parts).flatten(2)
        return Attended(by_head.mean(2), context, None if expected is None else expected.unflatten(1, (-1, M)).mean(2))

    def _extra(
        self, states: tuple[Any, ...], memory: Memory, position: Tensor | None, index: Tensor | None
    ) -> Tensor | None:
        """What all features together add inside the score's hidden layer [B, Q, J, A]; of positions `index` alone
        [B, Q, P, A], where it is given."""
        extra: Tensor | None = None
        for (feature, weight), s, prepared in zip(self._features(), states, memory.features, strict=True):
            assert position is not None
            values = feature.values(s, prepared, memory, position)
            if index is not None:
                values = values.gather(2, index.unsqueeze(3).expand(*index.shape, values.shape[3]))
            share: Tensor = weight(values.to(weight.weight.dtype))
            extra = share if extra is None else extra + share
        return extra

    def _noise(self, state: AttentionState, sentences: int) -> Tensor | None:
        if state.noise is None or state.position is None:
            return None
        J = state.noise.shape[2]
        rows: Tensor = state.noise.gather(1, state.position[:, None, None].expand(-1, 1, J))
        return rows.view(sentences, -1, J)


def _pick(rows: Float[Tensor, "B J K"], index: Int[Tensor, "B Q P"]) -> Float[Tensor, "N P K"]:
    """Rows of every sentence, N = B * Q; its gradient is summed in a fixed order on every device."""
    B, J, K = rows.shape
    offset = torch.arange(0, B * J, J, device=index.device)[:, None, None]
    return embedding((index + offset).flatten(0, 1), rows.reshape(B * J, K))
