"""Attention as one composition: features -> score -> mask and window -> normaliser -> window's factor -> context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import AttentionConfig
from rnnsearch.models.attention.features import FEATURES, NO_WORDS, Feature, FeatureSizes, WordSizes
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS, WindowMask
from rnnsearch.models.batch_rng import BatchRng, dropout_mask
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import Encoded, Memory
from rnnsearch.utils.tensors import at_least_fp32, map_tree


class PreviousStep(NamedTuple):
    """What was found at the target position before. centre: the window's [N, ...]; alpha: [N, J]; each None where the
    window, or the normaliser, remembers nothing."""

    window_centre: Tensor | None = None
    alpha: Tensor | None = None


class AttentionState(NamedTuple):
    """What attention carries from one target position to the next; all None or empty for global soft attention.

    position: t [N], from 0. features: each feature's own state. drawn: [N, I, M, J], for all target positions and M
    heads the normaliser's random numbers, or else dropout's mask on the weights.
    """

    position: Tensor | None = None
    features: tuple[Any, ...] = ()
    random: Tensor | None = None
    previous: PreviousStep = PreviousStep()


class AttentionOutput(NamedTuple):
    """alpha: [B, Q, J]; context: [B, Q, H]; expected: [B, Q, J], what a hard alpha was drawn from, else None; centre:
    the window's [B, Q, ...], if it remembers; left: [B, Q, J], what was untranslated yet, where a feature says so."""

    alpha: Tensor
    context: Tensor
    expected_alpha: Tensor | None
    window_centre: Tensor | None = None
    untranslated: Tensor | None = None


class Query(NamedTuple):
    """What Q queries a sentence ask with. query: [B, Q, D]; position: t of each [B, Q]; features: the features' states,
    B * Q rows; drawn: [B, Q, M, J]; last: B * Q rows."""

    vectors: Tensor
    position: Tensor | None = None
    features: tuple[Any, ...] = ()
    random: Tensor | None = None
    previous: PreviousStep = PreviousStep()


class AttentionInputs(NamedTuple):
    """What queries see of P source positions. keys: [B, P, K]; values: [B, P, H]; extra: [B, Q, P, A], what
    features add; placement: [B, Q, P]; drawn: [B, Q, M, P]; last: [B, Q, P], the weights before, if they matter."""

    keys: Tensor
    values: Tensor
    extra: Tensor | None
    window: WindowMask
    drawn: Tensor | None
    previous_alpha: Tensor | None = None


class Attention(nn.Module):
    """The attention that `[model.attention]` composes, of a decoder's states (queries) over annotations.

    Holds parameters only: keys live in the `Memory`.
    """

    fast_forward: Callable[[Attention, Query, Memory], AttentionOutput] | None = None

    def __init__(
        self,
        config: AttentionConfig,
        query_size: int,
        annotation_size: int,
        dropout: float = 0.0,
        words: WordSizes = NO_WORDS,
    ) -> None:
        """dropout: share of the weights that are set to zero in training. words: of what features read of words."""
        super().__init__()
        self.dropout = dropout
        self.score = SCORES[config.score.type](config.score, query_size, annotation_size)
        self.window = WINDOWS[config.window.type](config.window, query_size)
        self.normaliser = NORMALISERS[config.normaliser]()
        sizes = FeatureSizes(query_size, annotation_size, words)
        features = [FEATURES[own.type](own, sizes) for own in config.features]
        self.features = nn.ModuleList(features)
        self.feature_weights = nn.ModuleList(
            Linear(feature.width, self.score.hidden_size, bias=False, role="alignment") for feature in features
        )
        """W_f of each feature."""
        self.reads_words = any(feature.reads_words for feature in features)
        """Whether a feature does."""
        self._tells = next((n for n, feature in enumerate(features) if feature.component.tracks_untranslated), None)
        """Which feature, if one does, says what it holds untranslated."""

    def _features(self) -> list[tuple[Feature, nn.Linear]]:
        """The features, each with its W_f."""
        features, weights = cast(list[Feature], list(self.features)), cast(list[nn.Linear], list(self.feature_weights))
        return list(zip(features, weights, strict=True))

    @property
    def is_parallel(self) -> bool:
        """Whether a position's weights need no other position's, so that all can be attended from at once."""
        pieces = (self.window, self.normaliser, *(feature for feature, _ in self._features()))
        return not any(piece.is_sequential for piece in pieces)

    def on(self, encoded: Encoded) -> Memory:
        """The memory of B sentences: keys are projected here, once a sentence."""
        if self.score.max_positions is not None:
            known = torch.arange(encoded.mask.shape[1], device=encoded.mask.device) < self.score.max_positions
            encoded = encoded._replace(mask=encoded.mask & known)
        keys, values = self.score.keys(encoded.annotations, encoded.mask), self.score.values(encoded.annotations)
        if self.window.reach is not None:  # rows are picked from these at every step: no copy there
            keys, values = keys.contiguous(), encoded.annotations.contiguous() if values is None else values
        features = tuple(feature.prepare(encoded) for feature, _ in self._features())
        return Memory(*encoded, keys=keys, features=features, values=values)

    def start(self, memory: Memory, draws: BatchRng | None = None, steps: int = 0) -> AttentionState:
        """What attention carries into the first target position; `steps`: target positions, where draws are given."""
        B, J = memory.mask.shape
        features = tuple(feature.start(memory) for feature, _ in self._features())
        drawn, shape = None, (steps, self.score.heads, J)
        if draws is not None and self.normaliser.component.needs_noise:
            drawn = self.normaliser.noise(draws, (B, *shape), memory.annotations)
        elif self.dropout:
            drawn = dropout_mask(draws, self.dropout, at_least_fp32(memory.annotations), *shape)
        last = PreviousStep(self.window.start(memory), self.normaliser.start(memory))
        counts = (
            self.window.needs_position
            or self.normaliser.component.needs_noise
            or drawn is not None
            or not self.is_parallel
        )
        counts = counts or bool(self.features)
        return AttentionState(memory.mask.new_zeros(B, dtype=torch.long) if counts else None, features, drawn, last)

    def attend(self, asked: Query, memory: Memory) -> AttentionOutput:
        """Weights alpha and contexts c of Q queries a sentence, rows [B, Q, ...]: over all source positions, those
        outside the window masked, or by a chosen twin (`accel/registry.py`)."""
        if self.fast_forward is not None:
            return self.fast_forward(self, asked, memory)
        centre = self.window_centre(asked, memory)
        attended = self.forward(asked.vectors, self.inputs(asked, memory, centre))
        return attended._replace(centre=centre) if self.window.is_sequential else attended

    def inputs(self, asked: Query, memory: Memory, centre: Tensor | None) -> AttentionInputs:
        """All source positions, in a window around p_t where the window has a centre."""
        assert memory.keys is not None
        positions = torch.arange(memory.mask.shape[1], device=asked.vectors.device)[None, None]
        placement = self.window.mask(centre, positions, memory.mask.unsqueeze(1))
        last = asked.previous.alpha
        last = None if last is None else last.unflatten(0, (memory.mask.shape[0], -1))
        return AttentionInputs(
            memory.keys, memory.context_values, self.feature_sum(asked, memory), placement, asked.random, last
        )

    def forward(self, query: Float[Tensor, "R q D"], seen: AttentionInputs) -> AttentionOutput:
        """e_ij = a(s_{i-1}, h_j),  alpha_ij = softmax_j(e_ij),  c_i = sum_j alpha_ij h_j (Bahdanau et al., eq. 5-6;
        Luong et al., eq. 7-10). The weights of several heads are given as their mean."""
        heads = self.score.heads
        allowed, factor = (_each_head(part, heads) for part in seen.window)
        assert allowed is not None
        energy = self.score(query, seen.keys, seen.extra).masked_fill(~allowed, -torch.inf)
        drawn = None if seen.drawn is None else seen.drawn.flatten(1, 2)
        draws_noise = self.normaliser.component.needs_noise
        alpha, expected = self.normaliser(energy, drawn if draws_noise else None, seen.previous_alpha)
        alpha = alpha if factor is None else alpha * factor
        used = alpha if drawn is None or draws_noise else alpha * drawn
        context = _context(used.to(seen.values.dtype), seen.values, heads)
        if heads > 1:
            alpha, expected = map_tree(lambda weights: weights.unflatten(1, (-1, heads)).mean(2), (alpha, expected))
        return AttentionOutput(alpha, context, expected)

    def window_centre(self, asked: Query, memory: Memory) -> Float[Tensor, "B Q *n"] | None:
        """p_t of each query, in annotations, of which each may be of several source positions."""
        at = asked.position
        if at is not None and memory.origin is not None:
            source = memory.origin.position
            at = source.gather(1, at.clamp(max=source.shape[1] - 1))
        centre: Tensor | None = self.window.centre(asked.vectors, memory.mask, at, asked.previous.window_centre)
        return centre

    def feature_sum(self, asked: Query, memory: Memory, index: Tensor | None = None) -> Tensor | None:
        """What all features together add inside the score's hidden layer [B, Q, J, A]; of positions `index` alone
        [B, Q, P, A], where it is given."""
        extra: Tensor | None = None
        for (feature, weight), state, prepared in zip(self._features(), asked.features, memory.features, strict=True):
            assert asked.position is not None
            values = feature.values(state, prepared, asked.position)
            if index is not None:
                values = values.gather(2, index.unsqueeze(3).expand(*index.shape, values.shape[3]))
            share: Tensor = weight(values.to(weight.weight.dtype))
            extra = share if extra is None else extra + share
        return extra

    def attend_all(self, query: Float[Tensor, "N I D"], state: AttentionState, memory: Memory) -> AttentionOutput:
        """All I target positions of N = B * K hypotheses at once, for a decoder into whose recurrence nothing of this
        re-enters: K * I queries a sentence."""
        assert self.is_parallel
        B, (N, I, _) = memory.mask.shape[0], query.shape
        position = None
        if state.position is not None:
            position = (state.position[:, None] + torch.arange(I, device=query.device)).view(B, -1)
        drawn = None if state.random is None else state.random.reshape(B, -1, *state.random.shape[2:])
        attended = self.attend(Query(query.reshape(B, -1, query.shape[2]), position, state.features, drawn), memory)
        return map_tree(lambda part: part.reshape(N, I, -1), attended)

    def step(
        self,
        query: Float[Tensor, "N D"],
        state: AttentionState,
        memory: Memory,
        word: Float[Tensor, "N G"] | None = None,
    ) -> tuple[AttentionOutput, AttentionState]:
        """One target position of N = B * K hypotheses, K consecutive rows for each of B sentences: rows [N, ...];
        word: the decoder's share of the word before, where a feature reads words."""
        B = memory.mask.shape[0]
        if self.reads_words:
            assert state.position is not None and word is not None
            pairs, at = zip(self._features(), state.features, strict=True), state.position
            state = state._replace(features=tuple(own.read_word(before, word, at) for (own, _), before in pairs))
        position = None if state.position is None else state.position.view(B, -1)
        asked = Query(query.unflatten(0, (B, -1)), position, state.features, _drawn_now(state, B), state.previous)
        attended = map_tree(lambda part: part.flatten(0, 1), self.attend(asked, memory))
        if self._tells is not None:
            telling, _ = self._features()[self._tells]
            attended = attended._replace(left=telling.untranslated(state.features[self._tells]))
        if state.position is not None:
            features = tuple(
                feature.update(s, prepared, query, attended.alpha)
                for (feature, _), s, prepared in zip(self._features(), state.features, memory.features, strict=True)
            )
            last = PreviousStep(attended.window_centre, attended.alpha if self.normaliser.is_sequential else None)
            state = AttentionState(state.position + 1, features, state.random, last)
        return attended, state


def _drawn_now(state: AttentionState, sentences: int) -> Tensor | None:
    """What is drawn for this target position [B, K, M, J]."""
    if state.random is None or state.position is None:
        return None
    N, _, M, J = state.random.shape
    rows: Tensor = state.random.gather(1, state.position[:, None, None, None].expand(N, 1, M, J))
    return rows.view(sentences, -1, M, J)


def _each_head(part: Tensor | None, heads: int) -> Tensor | None:
    """[B, Q, P], the same for each head of a query, as [B, Q * heads, P]."""
    if part is None or heads == 1 or part.shape[1] == 1:
        return part
    return part.repeat_interleave(heads, dim=1)


def _context(alpha: Float[Tensor, "B E J"], values: Float[Tensor, "B J H"], heads: int) -> Float[Tensor, "B Q H"]:
    """sum_j alpha_ij h_j; each head's of its own H / heads numbers, side by side."""
    if heads == 1:
        return torch.bmm(alpha, values)
    own = values.unflatten(2, (heads, -1))
    return torch.einsum("rqmp,rpmh->rqmh", alpha.unflatten(1, (-1, heads)), own).flatten(2)
