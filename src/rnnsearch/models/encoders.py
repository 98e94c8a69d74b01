"""The encoders by name."""

from rnnsearch.models.encoder import Encoder, MakeCell
from rnnsearch.models.one_layer_encoders import Bidirectional, Unidirectional
from rnnsearch.models.pyramid import Pyramid
from rnnsearch.models.stacked_encoder import Stacked

ENCODERS: dict[str, type[Encoder]] = {c.name: c for c in (Bidirectional, Unidirectional, Stacked, Pyramid)}

__all__ = ["ENCODERS", "Bidirectional", "Encoder", "MakeCell", "Pyramid", "Stacked", "Unidirectional"]
