"""`[model.decoder]`: a decoder's options. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rnnsearch.config.choice import Options, by_name, raise_faults
from rnnsearch.config.faults import fault
from rnnsearch.config.names import Bridge, Cell
from rnnsearch.config.table import Few, Size


class DecoderConfig(Options):
    """`[model.decoder]`: the translation, word by word."""

    type: str
    """A decoder: see below."""
    size: Size
    """Units of the decoder state (D), in each layer."""
    first: Literal["bos", "zero"] = "bos"
    """What stands before the first target word: a learned BOS embedding, or zeros (the papers)."""
    readout_option: ClassVar[str | None] = None
    """The option that is the size of what the output layer reads; None where no single one is."""
    copies: ClassVar[bool] = False
    """Whether it scores copying each source place, beside the words of the vocabulary."""

    @property
    def readout_size(self) -> int:
        """The value of `readout_option`, where there is one."""
        size: int = getattr(self, self.readout_option or "size")
        return size

    @property
    def depth(self) -> int:
        """Layers of cells."""
        return 1

    def attended_size(self, annotation_size: int) -> int:
        """The size of `Memory.annotations`, given that of the encoder's."""
        return annotation_size


class _Maxout(DecoderConfig):
    maxout: Size
    """Units of the maxout layer after pairs are pooled (l in the papers)."""
    readout_option = "maxout"


class _Tanh(DecoderConfig):
    readout: Size
    """Units of the tanh layer under the softmax (Luong's h~, Nematus's t)."""
    readout_option = "readout"


class _Layered(DecoderConfig):
    cell: Cell
    """A cell. `cho` and `bi-scale` have their own."""
    layers: Few
    """Layers, one on top of the other."""
    residual_from: Annotated[int, Field(ge=2)] | None = None
    """The first layer, from 1, that adds what it reads to what it gives. Without it: none."""

    @property
    def depth(self) -> int:
        return self.layers

    @model_validator(mode="after")
    def _fits(self) -> _Layered:
        if self.residual_from is not None and self.residual_from > self.layers:
            must = f"must be at most model.decoder.layers ({self.layers}); got {self.residual_from}"
            raise_faults([fault(("residual_from",), must)])
        return self


class StackOptions(_Layered):
    """A stack of cells that a bridge starts."""

    bridge: Bridge
    """How the first states are made of the encoder's last ones: see below."""


class BahdanauOptions(_Maxout):
    """RNNsearch: attends with the state before the update, deep output with maxout."""

    type: Literal["bahdanau"] = "bahdanau"
    cell: Cell


class BahdanauTanhOptions(_Tanh):
    """The same recurrence under one tanh layer, as Nematus has it, in the place of maxout."""

    type: Literal["bahdanau-tanh"] = "bahdanau-tanh"
    cell: Cell


class CohnOptions(DecoderConfig):
    """The same recurrence from a zero state; a tanh over the new state, the context and the word (Cohn et al. 2016)."""

    type: Literal["cohn"] = "cohn"
    cell: Cell
    readout_option = "size"


class CopyNetOptions(DecoderConfig):
    """CopyNet: the same recurrence, which also reads the places that the word before was copied from; each word is
    generated or copied, by one softmax (Gu et al. 2016). With `text.type = "words"` what is copied comes out as it
    stands in the source."""

    type: Literal["copynet"] = "copynet"
    cell: Cell
    readout_option = "size"
    copies = True


class RNNencdecOptions(_Maxout):
    """RNNencdec as RNNsearch is compared with: the context is the encoder's last state, in every step."""

    type: Literal["rnnencdec"] = "rnnencdec"
    cell: Cell


class ChoOptions(_Maxout):
    """The decoder of Cho et al. (appendix A), whose reset takes in the context too."""

    type: Literal["cho"] = "cho"


class SutskeverOptions(StackOptions):
    """Sutskever et al.: a stack that sees the source through its first states alone."""

    type: Literal["sutskever"] = "sutskever"
    readout_option = "size"


class _Attentional(StackOptions, _Tanh):
    attentional: Literal["tanh", "tanh-bias", "linear"] = "tanh"
    """What h~ is of the context and the state: tanh(W [c; h]); tanh(W [c; h] + b) (JoeyNMT's); or W [c; h] + b
    (OpenNMT-py's with `mlp` attention)."""


class LuongOptions(_Attentional):
    """Luong et al.: attends with the new state of the top layer; attention does not re-enter the recurrence."""

    type: Literal["luong"] = "luong"


class LuongInputFeedingOptions(_Attentional):
    """The same, with the attentional state fed in with the next word."""

    type: Literal["luong-input-feeding"] = "luong-input-feeding"


class NeubigOptions(StackOptions):
    """Neubig's tutorial, eq. 72-75: the last context is read with the word."""

    type: Literal["neubig"] = "neubig"


class ConditionalGRUOptions(_Tanh):
    """The conditional GRU of Nematus: attention between two transitions."""

    type: Literal["cgru"] = "cgru"
    cell: Cell
    transitions: ClassVar[int] = 0


class DeepTransitionOptions(_Tanh):
    """The same, with more transitions after it (Miceli Barone et al. 2017)."""

    type: Literal["deep-transition"] = "deep-transition"
    cell: Cell
    transitions: Few
    """Transitions of a step that read the state alone, after the one that reads the context (`bideep`: after each
    layer's first)."""


class BiDeepOptions(_Layered, _Tanh):
    """The same, with layers on top that have transitions too (Miceli Barone et al. 2017)."""

    type: Literal["bideep"] = "bideep"
    transitions: Few


class _MemoryOptions(_Maxout):
    cell: Cell
    slots: Few
    """Cells of the external memory (n in the paper)."""
    slot_size: Size
    """Numbers in each of its cells (m in the paper)."""


class BiScaleOptions(_Tanh):
    """Bi-scale: a layer that may change at every symbol, and one that changes where the first says so; made for
    translations into characters (Chung et al. 2016)."""

    type: Literal["bi-scale"] = "bi-scale"


class MemDecOptions(_MemoryOptions):
    """MEMDEC: an external memory that each step reads and writes (Wang et al. 2016)."""

    type: Literal["memdec"] = "memdec"


class OwnHeadsOptions(_MemoryOptions):
    """A variant of it: a head for reading and one for writing, each with a tanh; cells begin by parameters of their
    own."""

    type: Literal["memory"] = "memory"


class RNMTPlusOptions(StackOptions):
    """RNMT+: attends with the bottom layer; every layer and the output read the context (Chen et al. 2018)."""

    type: Literal["rnmt-plus"] = "rnmt-plus"

    def attended_size(self, annotation_size: int) -> int:
        return self.size


DECODERS: dict[str, type[DecoderConfig]] = by_name(
    *(BahdanauOptions, BahdanauTanhOptions, CohnOptions, CopyNetOptions),
    *(RNNencdecOptions, ChoOptions, SutskeverOptions),
    *(LuongOptions, LuongInputFeedingOptions, NeubigOptions),
    *(ConditionalGRUOptions, DeepTransitionOptions, BiDeepOptions, BiScaleOptions),
    *(MemDecOptions, OwnHeadsOptions, RNMTPlusOptions),
)
