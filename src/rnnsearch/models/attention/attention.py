"""Attention: features, score, window and normaliser composed into weights and contexts.

`Attention.forward` is the equation; `step` attends at one target position and `attend_all` at all of them. Decoders
call these and carry the `AttentionState`.

By default a checked equivalent (native or fused) runs if there is one (`accel/registry.py`); set `RNNSEARCH_FAST=0` to
debug the definition. For local windows, it replaces `attend` and reads only the positions inside the window. A native
or fused `Decoder.unroll` replaces attention as a whole: `forward` is then not called.

Axes: B sentences, Q queries per sentence, J source positions, P positions that the queries see (all J, or those of a
window), M heads, E = Q * M rows of energies, A units of the score's hidden layer, N = B * K hypotheses, K consecutive
rows per sentence, D query (decoder state), H annotation, I target positions, F values of a feature, G gate inputs of
the decoder.

`decoder.make_attention` creates it. The names of `score`, `window`, `normaliser`, `features` and `feature_weights` are
checkpoint keys. Tests: tests/models/test_attention.py, and tests/properties/test_combinations.py for all combinations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Shaped
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
    """Results of the previous target position, if the window or the normaliser depends on them."""

    window_centre: Tensor | None = None  # [N, ...]
    alpha: Tensor | None = None  # [N, J]


class AttentionState(NamedTuple):
    """State carried from one target position to the next; empty for global soft attention."""

    position: Tensor | None = None  # [N], target position from 0
    features: tuple[Any, ...] = ()  # the state of each feature
    random: Tensor | None = None  # [N, I, M, J], noise of the normaliser, or the dropout mask of the weights
    previous: PreviousStep = PreviousStep()  # values of the previous target position


class Query(NamedTuple):
    """Q queries per sentence, each with the attention state of its target position."""

    vectors: Tensor  # [B, Q, D], states of the decoder
    position: Tensor | None = None  # [B, Q], target positions
    features: tuple[Any, ...] = ()  # states of the features, B * Q rows each
    random: Tensor | None = None  # [B, Q, M, J], see `AttentionState`
    previous: PreviousStep = PreviousStep()  # B * Q rows


class AttentionInputs(NamedTuple):
    """Everything that weights and contexts are computed from, in addition to the query vectors."""

    keys: Tensor  # [B, P, size of a key]
    values: Tensor  # [B, P, H]
    extra: Tensor | None  # [B, Q, P, A], sum of the features in the score's hidden layer
    window: WindowMask  # [B, Q, P]
    noise: Tensor | None = None  # [B, Q * M, P], random numbers of the normaliser
    dropout_mask: Tensor | None = None  # [B, Q * M, P]
    previous_alpha: Tensor | None = None  # [B, Q, P]


class AttentionOutput(NamedTuple):
    """Attention weights and contexts; the weights of several heads are averaged."""

    alpha: Tensor  # [B, Q, J]
    context: Tensor  # [B, Q, H]
    expected_alpha: Tensor | None  # [B, Q, J], the distribution that hard weights were sampled from
    window_centre: Tensor | None = None  # [B, Q, ...], if the window carries it to the next position
    untranslated: Tensor | None = None  # [B, Q, J], untranslated amount of each source position, if a feature has it


class Attention(nn.Module):
    """The attention of `[model.attention]`: decoder states are the queries, annotations are keys and values.

    The module holds only parameters; keys are part of the `Memory`.
    """

    fast_forward: Callable[[Attention, Query, Memory], AttentionOutput] | None = None
    """Fast implementation of `attend`, set by `accel/registry.py`."""

    def __init__(
        self,
        config: AttentionConfig,
        query_size: int,
        annotation_size: int,
        dropout: float = 0.0,
        words: WordSizes = NO_WORDS,
    ) -> None:
        """Create the components.

        Args:
            dropout: Dropout rate of the weights in training.
            words: Sizes of the word vectors that features read.
        """
        super().__init__()
        self.dropout = dropout
        self.score = SCORES[config.score.type](config.score, query_size, annotation_size)
        self.window = WINDOWS[config.window.type](config.window, query_size)
        self.normaliser = NORMALISERS[config.normaliser]()
        sizes = FeatureSizes(query_size, annotation_size, words)
        features = [FEATURES[options.type](options, sizes) for options in config.features]
        self.features = nn.ModuleList(features)
        self.feature_weights = nn.ModuleList(
            Linear(feature.width, self.score.hidden_size, bias=False, role="alignment") for feature in features
        )  # W_f of each feature
        self.reads_words = any(feature.reads_words for feature in features)
        """True if any feature reads words."""
        self._untranslated_index = next(
            (f for f, feature in enumerate(features) if feature.component.tracks_untranslated), None
        )
        """Index of the feature that defines `AttentionOutput.untranslated`."""

    @property
    def is_parallel(self) -> bool:
        """True if no position's weights depend on those of another, so that all can be computed at once."""
        components = (self.window, self.normaliser, *self._features())
        return not any(component.is_sequential for component in components)

    @property
    def _needs_position(self) -> bool:
        """True if a component reads the target position or results of the previous one."""
        reads_position = self.window.needs_position or self.normaliser.component.needs_noise
        return reads_position or not self.is_parallel or bool(self.features)

    def on(self, encoded: Encoded) -> Memory:
        """Return the memory of B sentences, with their keys and everything else that is computed once per sentence."""
        if self.score.max_positions is not None:
            in_range = torch.arange(encoded.mask.shape[1], device=encoded.mask.device) < self.score.max_positions
            # Positions that the score is not defined for count as padding, also for windows and features.
            encoded = encoded._replace(mask=encoded.mask & in_range)
        keys = self.score.keys(encoded.annotations, encoded.mask)
        values = self.score.values(encoded.annotations)
        if self.window.reach is not None:
            # The fast implementation gathers rows from these at every step, which must not copy them.
            keys = keys.contiguous()
            values = encoded.annotations.contiguous() if values is None else values
        features = tuple(feature.prepare(encoded) for feature in self._features())
        return Memory(*encoded, keys=keys, features=features, values=values)

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> AttentionState:
        """Return the state before the first target position.

        Args:
            rng: If given, the random numbers of all `steps` target positions are generated here.
        """
        B, J = memory.mask.shape
        features = tuple(feature.start(memory) for feature in self._features())
        random = None
        shape = (steps, self.score.heads, J)
        if rng is not None and self.normaliser.component.needs_noise:
            random = self.normaliser.noise(rng, (B, *shape), memory.annotations)
        elif self.dropout:
            # Weights are in fp32 or wider, and so is their dropout mask.
            random = dropout_mask(rng, self.dropout, at_least_fp32(memory.annotations), *shape)
        previous = PreviousStep(self.window.start(memory), self.normaliser.start(memory))
        # Global soft attention does not depend on the position and carries nothing.
        needs_position = self._needs_position or random is not None
        position = memory.mask.new_zeros(B, dtype=torch.long) if needs_position else None
        return AttentionState(position, features, random, previous)

    def step(
        self,
        query: Float[Tensor, "N D"],
        state: AttentionState,
        memory: Memory,
        word: Float[Tensor, "N G"] | None = None,
    ) -> tuple[AttentionOutput, AttentionState]:
        """Attend at one target position and return the state for the next one.

        Args:
            query: Decoder states of N = B * K hypotheses, K consecutive rows per sentence.
            word: Gate inputs of the previous word, for features that read words.

        Returns:
            The output, with rows [N, ...] instead of [B, Q, ...], and the next state.
        """
        B = memory.mask.shape[0]
        if self.reads_words:
            assert state.position is not None and word is not None
            states = zip(self._features(), state.features, strict=True)
            state = state._replace(features=tuple(f.read_word(before, word, state.position) for f, before in states))
        position = None if state.position is None else state.position.view(B, -1)
        random = _random_at_position(state, B)
        output = self.attend(
            Query(query.unflatten(0, (B, -1)), position, state.features, random, state.previous), memory
        )
        output = map_tree(lambda tensor: tensor.flatten(0, 1), output)  # [B, K, ...] to [N, ...]
        if self._untranslated_index is not None:
            # The amount before this position, as `decoder.UNTRANSLATED` defines it: `update` comes later.
            f = self._untranslated_index
            output = output._replace(untranslated=self._features()[f].untranslated(state.features[f]))
        # After the weights: at the next position, features and `previous` must describe this one.
        if state.position is not None:
            features = tuple(
                feature.update(before, prepared, query, output.alpha)
                for feature, before, prepared in zip(self._features(), state.features, memory.features, strict=True)
            )
            previous = PreviousStep(output.window_centre, output.alpha if self.normaliser.is_sequential else None)
            state = AttentionState(state.position + 1, features, state.random, previous)
        return output, state

    def attend_all(self, query: Float[Tensor, "N I D"], state: AttentionState, memory: Memory) -> AttentionOutput:
        """Attend at all I target positions of N = B * K hypotheses at once, with K * I queries per sentence.

        For decoders whose recurrence does not depend on contexts; requires `is_parallel`.
        """
        assert self.is_parallel
        B = memory.mask.shape[0]
        N, I, D = query.shape
        position = None
        if state.position is not None:
            position = (state.position[:, None] + torch.arange(I, device=query.device)).view(B, -1)  # [B, K * I]
        # [N, I, M, J] -> [B, K * I, M, J]; queries of a sentence are ordered by hypothesis, then by position.
        random = None if state.random is None else state.random.reshape(B, -1, *state.random.shape[2:])
        output = self.attend(Query(query.reshape(B, -1, D), position, state.features, random), memory)
        return map_tree(lambda tensor: tensor.reshape(N, I, -1), output)

    def attend(self, query: Query, memory: Memory) -> AttentionOutput:
        """Return weights and contexts of Q queries per sentence, from the fast implementation if there is one."""
        if self.fast_forward is not None:
            return self.fast_forward(self, query, memory)
        centre = self.window_centre(query, memory)
        output = self.forward(query.vectors, self.inputs(query, memory, centre))
        return output._replace(window_centre=centre) if self.window.is_sequential else output

    def forward(self, query: Float[Tensor, "B Q D"], inputs: AttentionInputs) -> AttentionOutput:
        """Return attention weights and contexts (Bahdanau et al., eq. 5-6; Luong et al., eq. 7-10).

        e_ij = score(s_{i-1}, h_j) inside the window,  alpha_ij = normalise_j(e_ij),  c_i = sum_j alpha_ij h_j.
        """
        heads = self.score.heads
        is_inside = _repeat_per_head(inputs.window.allowed, heads)  # [B, Q * M or 1, P]
        energy = self.score(query, inputs.keys, inputs.extra)  # [B, Q * M, P]
        # Every row has a position inside (see `WindowMask`), so that no softmax is over -inf only.
        energy = energy.masked_fill(~is_inside, -torch.inf)
        alpha, expected_alpha = self.normaliser(energy, inputs.noise, inputs.previous_alpha)  # [B, Q * M, P] each
        if inputs.window.factor is not None:
            alpha = alpha * _repeat_per_head(inputs.window.factor, heads)  # not renormalised (Luong et al., eq. 10)
        # Dropout affects only the context: features and penalties read the weights themselves.
        dropped = alpha if inputs.dropout_mask is None else alpha * inputs.dropout_mask
        context = _weighted_sum(dropped.to(inputs.values.dtype), inputs.values, heads)  # [B, Q, H]
        if heads > 1:
            alpha = alpha.unflatten(1, (-1, heads)).mean(2)  # [B, Q, P]
            if expected_alpha is not None:
                expected_alpha = expected_alpha.unflatten(1, (-1, heads)).mean(2)
        return AttentionOutput(alpha, context, expected_alpha)

    def inputs(self, query: Query, memory: Memory, centre: Tensor | None) -> AttentionInputs:
        """Return the inputs of `forward` for all source positions.

        Args:
            centre: The window's centres, from `window_centre`.
        """
        assert memory.keys is not None
        B, J = memory.mask.shape
        positions = torch.arange(J, device=query.vectors.device)[None, None]  # [1, 1, J]
        window = self.window.mask(centre, positions, memory.mask.unsqueeze(1))
        extra = self.feature_sum(query, memory)
        noise, mask = self.split_random(query.random)
        previous_alpha = query.previous.alpha
        if previous_alpha is not None:
            previous_alpha = previous_alpha.unflatten(0, (B, -1))  # [B, Q, J]
        return AttentionInputs(memory.keys, memory.context_values, extra, window, noise, mask, previous_alpha)

    def split_random(self, random: Float[Tensor, "B Q M P"] | None) -> tuple[Tensor | None, Tensor | None]:
        """Return the normaliser's noise and the dropout mask, [B, Q * M, P] each; at most one is not None."""
        flat = None if random is None else random.flatten(1, 2)
        return (flat, None) if self.normaliser.component.needs_noise else (None, flat)

    def window_centre(self, query: Query, memory: Memory) -> Float[Tensor, "B Q *n"] | None:
        """Return the window's centre p_t for each query, counted in annotations; None if the window has none."""
        position = query.position
        if position is not None and memory.origin is not None:
            # Target position t corresponds to source position t, which may share an annotation with others.
            annotation_of = memory.origin.position  # [B, source positions]
            position = annotation_of.gather(1, position.clamp(max=annotation_of.shape[1] - 1))
        centre: Tensor | None = self.window.centre(query.vectors, memory.mask, position, query.previous.window_centre)
        return centre

    def feature_sum(self, query: Query, memory: Memory, index: Tensor | None = None) -> Tensor | None:
        """Return the sum of all W_f f_ij, to be added inside the score's hidden layer; None without features.

        Args:
            index: Source positions [B, Q, P] to return; None for all.

        Returns:
            A tensor [B, Q, J, A], or [B, Q, P, A] with an index.
        """
        total: Tensor | None = None
        layers = cast(list[nn.Linear], list(self.feature_weights))
        for feature, layer, state, prepared in zip(
            self._features(), layers, query.features, memory.features, strict=True
        ):
            assert query.position is not None
            values = feature.values(state, prepared, query.position)  # [B, Q, J, F]
            if index is not None:
                values = values.gather(2, index.unsqueeze(3).expand(*index.shape, values.shape[3]))
            term: Tensor = layer(values.to(layer.weight.dtype))  # [B, Q, J or P, A]
            total = term if total is None else total + term
        return total

    def _features(self) -> list[Feature]:
        return cast(list[Feature], list(self.features))


def _random_at_position(state: AttentionState, B: int) -> Float[Tensor, "B K M J"] | None:
    """Return the random numbers of the state's target position."""
    if state.random is None or state.position is None:
        return None
    N, _, M, J = state.random.shape
    # [N, 1, M, J]. A gather with the position on the device: an index on the host would wait for the GPU.
    rows: Tensor = state.random.gather(1, state.position[:, None, None, None].expand(N, 1, M, J))
    return rows.view(B, -1, M, J)


def _repeat_per_head(x: Shaped[Tensor, "B Q P"], heads: int) -> Shaped[Tensor, "B E P"]:
    """Repeat the rows of each query for its heads; a single row for all queries stays single."""
    return x if heads == 1 or x.shape[1] == 1 else x.repeat_interleave(heads, dim=1)


def _weighted_sum(alpha: Float[Tensor, "B E P"], values: Float[Tensor, "B P H"], heads: int) -> Tensor:
    """Return sum_j alpha_ij h_j, [B, Q, H]; each head sums its own H / M units, and the heads are concatenated."""
    if heads == 1:
        return torch.bmm(alpha, values)
    head_values = values.unflatten(2, (heads, -1))  # [B, P, M, H / M]
    return torch.einsum("bqmp,bpmh->bqmh", alpha.unflatten(1, (-1, heads)), head_values).flatten(2)
