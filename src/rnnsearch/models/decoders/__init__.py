"""Decoders: one class per formulation, and `DECODERS`, all of them by name."""

from rnnsearch.config import decoders
from rnnsearch.config.registry import Implementations
from rnnsearch.models.decoders import (  # noqa: F401 (their classes are registered)
    bahdanau,
    bi_scale,
    cho,
    conditional,
    copynet,
    memdec,
    stack_decoders,
)
from rnnsearch.models.decoders.decoder import Decoder

DECODERS: Implementations[type[Decoder]] = Implementations(decoders.DECODERS)
