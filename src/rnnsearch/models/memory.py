"""What the decoder remembers of a source sentence, made once a sentence."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Encoded(NamedTuple):
    """What an encoder gives.

    annotations: [B, J, H], h_j of each source position.
    mask: [B, J], True on real positions.
    summary: [B, S], the state the decoder starts from: the last state of a unidirectional encoder,
        the backward first state of a bidirectional one (Bahdanau et al., appendix A.2.2).
    """

    annotations: Tensor
    mask: Tensor
    summary: Tensor


class Memory(NamedTuple):
    """`Encoded`, with what attention computes from it once: keys, the score's own shape (None without attention).

    One row a sentence; it never moves with the beam.
    """

    annotations: Tensor
    mask: Tensor
    summary: Tensor
    keys: Tensor | None
