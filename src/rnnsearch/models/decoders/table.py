"""The decoders by name."""

from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauTanh
from rnnsearch.models.decoders.bideep import BiDeep
from rnnsearch.models.decoders.cgru import ConditionalGRU
from rnnsearch.models.decoders.cho import Cho
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.decoders.deep_transition import DeepTransition
from rnnsearch.models.decoders.luong import Luong
from rnnsearch.models.decoders.luong_input_feeding import LuongInputFeeding
from rnnsearch.models.decoders.memdec import MemDec
from rnnsearch.models.decoders.neubig import Neubig
from rnnsearch.models.decoders.rnmt_plus import RNMTPlus
from rnnsearch.models.decoders.rnnencdec import RNNencdec
from rnnsearch.models.decoders.sutskever import Sutskever

DECODERS: dict[str, type[Decoder]] = {
    c.name: c
    for c in (
        *(Bahdanau, BahdanauTanh, RNNencdec, Cho, Sutskever),
        *(Luong, LuongInputFeeding, Neubig),
        *(ConditionalGRU, DeepTransition, BiDeep, MemDec, RNMTPlus),
    )
}
