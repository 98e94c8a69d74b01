"""The decoders by name."""

from rnnsearch.models.decoders.bahdanau import Bahdanau
from rnnsearch.models.decoders.cho import Cho
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.decoders.rnnencdec import RNNencdec

DECODERS: dict[str, type[Decoder]] = {c.name: c for c in (Bahdanau, RNNencdec, Cho)}
