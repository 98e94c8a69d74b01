"""Decoders: one class per formulation, and `DECODERS`, all of them by name.

`TranslationModel` creates the decoder of `[model.decoder] type`. Each decoder is tested against a NumPy loop of its
paper's equations (tests/models/decoder_equations.py) and in all combinations (tests/properties/test_combinations.py).
"""

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
"""Class by `type` of `[model.decoder]`; names are stored in model folders."""
