"""What the decoder remembers of a source sentence, made once a sentence."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Hidden(NamedTuple):
    """The state of a cell with one vector: h [N, D]."""

    h: Tensor


class HiddenAndCell(NamedTuple):
    """The state of a cell with a memory: its output h and its memory c, [N, D] each."""

    h: Tensor
    c: Tensor


class CellOnly(HiddenAndCell):
    """The same of a cell whose memory alone goes on; its output is read of it (SSRU)."""

    __slots__ = ()


CellState = Hidden | HiddenAndCell


class StateShape(NamedTuple):
    """What one layer's state is: its kind, and the size D of each of its vectors."""

    state_type: type[Hidden] | type[HiddenAndCell]
    size: int

    @property
    def total_size(self) -> int:
        """All vectors' numbers together."""
        return len(self.state_type._fields) * self.size


class Origin(NamedTuple):
    """Where an encoder that merges source positions (a pyramid) read from: J source positions, J' annotations.

    position: [B, J], the annotation that each source position went into.
    share: [B, J], the part of that annotation's weight that is its own: 1 / (real source positions in it);
        0 on padding; in fp64, whatever the weights are in.
    """

    position: Tensor
    fraction: Tensor

    def mean_per_annotation(self, words: Tensor, count: int) -> Tensor:
        """What is said of source positions [B, J, E], of `count` annotations: of each the mean of its own."""
        whole = words.new_zeros(words.shape[0], count, words.shape[2])
        part = words * self.fraction[:, :, None].to(words.dtype)
        return whole.scatter_add(1, self.position[:, :, None].expand_as(part), part)

    def to_source(self, alpha: Tensor) -> Tensor:
        """Weights over annotations as weights over source positions: each annotation's is divided over its own.

        alpha: [N, J'] of N = B * K rows, or [B, I, J'].
        """
        rows = alpha.reshape(self.position.shape[0], -1, alpha.shape[-1])
        spread = rows.gather(2, self.position[:, None].expand(-1, rows.shape[1], -1))
        spread = spread * self.fraction[:, None].to(spread.dtype)
        return spread.reshape(*alpha.shape[:-1], -1)


class WordSelection(NamedTuple):
    """Which source words an encoder that chooses read, its end symbol not counted.

    words: [B, J], True where one may be chosen. read: [B, J], True where it was. log_p: [B], log p(read | x).
    """

    candidates: Tensor
    selected: Tensor
    log_prob: Tensor


class Encoded(NamedTuple):
    """What an encoder gives.

    annotations: [B, J, H], h_j of each source position, in the original source order.
    mask: [B, J], True on real positions.
    summary: [B, S], the state the decoder starts from: the last state of a unidirectional encoder,
        the backward first state of a bidirectional one (Bahdanau et al., appendix A.2.2).
    finals: the last state of each layer, bottom first (both directions side by side in a bidirectional layer):
        what a bridge makes a stacked decoder's first states from.
    origin: the source positions behind the annotations, where these are fewer; None where they are one to one.
    words: [B, J, E], the embedded source words, where something after the encoder reads them.
    chosen: of an encoder that chooses what it reads.
    """

    annotations: Tensor
    mask: Tensor
    summary: Tensor
    finals: tuple[CellState, ...]
    origin: Origin | None = None
    words: Tensor | None = None
    selection: WordSelection | None = None


NO_WORD = -1
"""In place of the target word at a source place that holds no word: its end, and padding."""


class CopyMemory(NamedTuple):
    """What a decoder that copies computes once of each source place: keys [B, J, D], for how well it copies it; values
    [B, J, H], what it reads of it."""

    keys: Tensor
    values: Tensor


class Memory(NamedTuple):
    """`Encoded`, with what attention computes from it once.

    keys: the score's own shape, [B, J, K]; None without attention. features: what each feature of the attention
    computes once. values: [B, J, H], what contexts are sums of; None: the annotations. copyable: where a decoder
    copies; places: [B, J], then, the target word at each source place, <unk> for one that the target's vocabulary
    lacks, or `NOWHERE`. One row a sentence; a memory never moves with the beam.
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

    @property
    def context_values(self) -> Tensor:
        """What contexts are sums of [B, J, H]."""
        return self.annotations if self.values is None else self.values

    def to_source(self, alpha: Tensor) -> Tensor:
        """Weights over annotations as weights over source positions, which these may be already."""
        return alpha if self.origin is None else self.origin.to_source(alpha)
