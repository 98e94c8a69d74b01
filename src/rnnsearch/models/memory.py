"""Records that encoders, cells and decoders exchange: cell states, encoder outputs, and the decoder's memory.

A `Memory` is computed once per source sentence and has one row per sentence. States have one row per hypothesis.

They are trees (`utils/tensors.py`), so every tensor in them must be batch-first. Tests: tests/test_tensors.py.

Axes: B sentences, N = B * K hypotheses, J source positions, J' annotations (J unless an encoder merges positions), D
state, H annotation, E embedding, I target positions, S summary or, in `SourceMemories`, sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from rnnsearch.utils.tensors import repeat_rows


class Hidden(NamedTuple):
    """The state of a cell with one vector: h [N, D]."""

    h: Tensor


class HiddenAndCell(NamedTuple):
    """The state of a cell with a memory: its output h and its memory c, [N, D] each."""

    h: Tensor
    c: Tensor


class CellOnly(HiddenAndCell):
    """The state of a cell whose next state depends only on c; h is computed from c (SSRU)."""

    __slots__ = ()


CellState = Hidden | HiddenAndCell


class StateShape(NamedTuple):
    """The shape of one layer's state: its type, and the size D of each of its vectors."""

    state_type: type[Hidden] | type[HiddenAndCell]
    size: int

    @property
    def total_size(self) -> int:
        """Size of all vectors of the state together."""
        return len(self.state_type._fields) * self.size


class Origin(NamedTuple):
    """The source positions behind each annotation, for an encoder that merges or selects source positions.

    A pyramid, for example, reads J source positions and returns J' < J annotations.

    position: [B, J], index of the annotation that each source position belongs to.
    fraction: [B, J], weight of the source position within its annotation: 1 / (number of its real source positions),
        0 on padding; always in fp64.
    """

    position: Tensor
    fraction: Tensor

    def mean_per_annotation(self, words: Tensor, num_annotations: int) -> Tensor:
        """Return the mean of `words` [B, J, E] over the source positions of each annotation, [B, J', E]."""
        means = words.new_zeros(words.shape[0], num_annotations, words.shape[2])
        # The fractions of an annotation's positions sum to 1, so that the sum below is a mean; padding adds 0.
        weighted = words * self.fraction[:, :, None].to(words.dtype)
        return means.scatter_add(1, self.position[:, :, None].expand_as(weighted), weighted)

    def to_source(self, alpha: Tensor) -> Tensor:
        """Return weights over source positions: the weight of each annotation is divided among its positions.

        Args:
            alpha: Weights over annotations, [N, J'] with N = B * K rows, or [B, I, J'].
        """
        rows = alpha.reshape(self.position.shape[0], -1, alpha.shape[-1])  # [B, rows per sentence, J']
        # [B, rows per sentence, J]: each source position gets its annotation's weight, times its fraction.
        spread = rows.gather(2, self.position[:, None].expand(-1, rows.shape[1], -1))
        spread = spread * self.fraction[:, None].to(spread.dtype)
        return spread.reshape(*alpha.shape[:-1], -1)


class WordSelection(NamedTuple):
    """The source words that a selecting encoder read; EOS is always read and not counted.

    candidates: [B, J], True on words that can be selected.
    selected: [B, J], True on words that were selected.
    log_prob: [B], log p(selected | x).
    """

    candidates: Tensor
    selected: Tensor
    log_prob: Tensor


class Encoded(NamedTuple):
    """Outputs of an encoder.

    annotations: [B, J, H], h_j of each source position, in the original source order.
    mask: [B, J], True on real positions.
    summary: [B, S], the vector that the decoder starts from: the last state of a unidirectional encoder,
        the backward first state of a bidirectional one (Bahdanau et al., appendix A.2.2).
    finals: the last state of each layer, bottom first, for a bridge; a bidirectional layer concatenates both
        directions.
    origin: the source positions of each annotation; None if there is one annotation per position.
    words: [B, J, E], the embedded source words; only if something after the encoder reads them.
    selection: the words that a selecting encoder read.
    """

    annotations: Tensor
    mask: Tensor
    summary: Tensor
    finals: tuple[CellState, ...]
    origin: Origin | None = None
    words: Tensor | None = None
    selection: WordSelection | None = None


NO_WORD = -1
"""In `Memory.target_ids`, the value at source positions that hold no word: EOS and padding."""


class CopyMemory(NamedTuple):
    """Values that a copying decoder computes once per source position.

    keys: [B, J, D], for the score of copying from the position.
    values: [B, J, H], the vectors that the decoder reads from positions that it copied from.
    """

    keys: Tensor
    values: Tensor


class Memory(NamedTuple):
    """`Encoded` with the values that a decoder computes from it once per sentence; beam search never reorders it.

    keys: [B, J, K], the annotations as the score reads them; None without attention.
    features: what each feature of the attention computes once per sentence.
    values: [B, J, H], the vectors that contexts are sums of; None for the annotations themselves.
    copy_memory: only for a copying decoder.
    target_ids: [B, J], only for a copying decoder: the id in the target vocabulary of the word at each source position,
        UNK if it is not in that vocabulary, `NO_WORD` if the position holds no word.
    present: [B], only for one of several sources: True for sentences that have this source.
    sources: the memories of several sources, if this one combines them: it has their combined summary and last states,
        and everything else is that of the first source.
    """

    annotations: Tensor
    mask: Tensor
    summary: Tensor
    finals: tuple[CellState, ...]
    origin: Origin | None = None
    words: Tensor | None = None
    selection: WordSelection | None = None
    keys: Tensor | None = None
    features: tuple[Tensor | None, ...] = ()
    values: Tensor | None = None
    copy_memory: CopyMemory | None = None
    target_ids: Tensor | None = None
    present: Tensor | None = None
    sources: SourceMemories | None = None

    @property
    def context_values(self) -> Tensor:
        """The vectors that contexts are sums of, [B, J, H]."""
        return self.annotations if self.values is None else self.values

    def to_source(self, alpha: Tensor) -> Tensor:
        """Return weights over source positions, given weights over annotations (see `Origin.to_source`)."""
        return alpha if self.origin is None else self.origin.to_source(alpha)


class SourceMemories(NamedTuple):
    """The memories of several sources, for a decoder that reads them all.

    memories: that of each source.
    present: [B, S], True for the sources that a sentence has.
    averages: True if contexts are averaged, False if they are concatenated.
    """

    memories: tuple[Memory, ...]
    present: Tensor
    averages: bool

    def combine(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the mean or the concatenation of one vector per source, [N, ..., H] each, of N = B * K rows.

        Those of missing sources do not count.
        """
        present = repeat_rows(self.present, len(vectors[0]))
        return weighted_mean(vectors, mean_weights(present)) if self.averages else concatenation(vectors, present)


def mean_weights(present: Tensor) -> Tensor:
    """Return the weights [N, S] of sources in a mean over those that are present; 0 for all if none is."""
    # In fp64, which every type of vectors is rounded from.
    return present.double() / present.sum(1, keepdim=True).clamp_min(1)


def weighted_mean(vectors: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return the sum of one vector [N, ..., H] per source times its weight [N, S]."""
    terms = [vector * _like_rows(weight, vector) for vector, weight in zip(vectors, weights.unbind(1), strict=True)]
    return reduce(torch.add, terms)


def concatenation(vectors: Sequence[Tensor], present: Tensor) -> Tensor:
    """Return the concatenation of one vector [N, ..., H] per source, zeros where it is not present [N, S]."""
    return torch.cat(without_missing(vectors, present), dim=-1)


def without_missing(vectors: Sequence[Tensor], present: Tensor) -> list[Tensor]:
    """Return one vector [N, ..., H] per source, zeros where the source is not present [N, S]."""
    rows = zip(vectors, present.unbind(1), strict=True)
    return [vector * _like_rows(is_present, vector) for vector, is_present in rows]


def _like_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Return one value [N] per row in the shape and type of `rows` [N, ...], to multiply them with."""
    return values.view(-1, *[1] * (rows.dim() - 1)).to(rows.dtype)
