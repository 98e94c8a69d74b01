"""What the decoder remembers of a source sentence, made once a sentence."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Hidden(NamedTuple):
    """The state of a cell with one vector: h [N, D]."""

    h: Tensor


class HiddenAndCell(NamedTuple):
    """The state of an LSTM: its output h and its memory c, [N, D] each."""

    h: Tensor
    c: Tensor


CellState = Hidden | HiddenAndCell


class Encoded(NamedTuple):
    """What an encoder gives.

    annotations: [B, J, H], h_j of each source position, in the original source order.
    mask: [B, J], True on real positions.
    summary: [B, S], the state the decoder starts from: the last state of a unidirectional encoder,
        the backward first state of a bidirectional one (Bahdanau et al., appendix A.2.2).
    finals: the last state of each layer, bottom first (both directions side by side in a bidirectional layer):
        what a bridge makes a stacked decoder's first states from.
    """

    annotations: Tensor
    mask: Tensor
    summary: Tensor
    finals: tuple[CellState, ...]


class Memory(NamedTuple):
    """`Encoded`, with what attention computes from it once.

    keys: the score's own shape, [B, J, K]; None without attention. features: what each feature of the attention
    computes once. One row a sentence; a memory never moves with the beam.
    """

    annotations: Tensor
    mask: Tensor
    summary: Tensor
    finals: tuple[CellState, ...]
    keys: Tensor | None = None
    features: tuple[Tensor | None, ...] = ()
