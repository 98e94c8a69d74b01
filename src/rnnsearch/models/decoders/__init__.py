"""Decoders, one class a formulation: what is computed once, what feeds back, and what is read out."""

from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauTanh, Cohn, RNNencdec
from rnnsearch.models.decoders.bi_scale import BiScale
from rnnsearch.models.decoders.cho import Cho
from rnnsearch.models.decoders.conditional import BiDeep, ConditionalGRU, DeepTransition
from rnnsearch.models.decoders.copynet import CopyNet
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.decoders.memdec import MemDec, OwnHeads
from rnnsearch.models.decoders.stack_decoders import Luong, LuongInputFeeding, Neubig, RNMTPlus, Sutskever

# The decoders by name.

DECODERS: dict[str, type[Decoder]] = {
    c.name: c
    for c in (
        *(Bahdanau, BahdanauTanh, Cohn, CopyNet, RNNencdec, Cho, Sutskever),
        *(Luong, LuongInputFeeding, Neubig),
        *(ConditionalGRU, DeepTransition, BiDeep, BiScale, MemDec, OwnHeads, RNMTPlus),
    )
}
