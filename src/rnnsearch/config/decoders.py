"""`[model.decoder]`: the options of the decoders.

Implemented in `models/decoders`, one class per `type`; `model_rules.py`, `rules.py` and `models/translation_model.py`
read the traits. `model.py` uses the family. `type` names and options are stored in model folders: never rename them.
docs/configuration.md is generated from the docstrings. Tests: tests/models/test_decoders.py,
tests/models/test_model_checks.py, tests/properties/test_combinations.py.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rnnsearch.config.cells import BRIDGES, CELLS, BridgeName, CellName, LayerState
from rnnsearch.config.options import Family, Options, Size, SmallSize, raise_problem


class DecoderConfig(Options):
    """`[model.decoder]`: the recurrent network that writes the translation."""

    type: str
    """Decoder type, see below."""
    size: Size
    """Hidden size of each layer (D)."""
    first: Literal["bos", "zero"] = "bos"
    """Input of the first step: a learned BOS embedding, or zeros (as in the papers)."""
    readout_option: ClassVar[str | None] = None
    """Name of the option that sets the input size of the output layer; None if no single option does."""
    attends: ClassVar[bool] = True
    """True if the decoder needs `[model.attention]`; without attention, it needs an encoder with a sentence vector."""
    query_precedes_word: ClassVar[bool] = False
    """True if attention at a target position is computed before the previous word is read."""
    supports_fusion: ClassVar[bool] = False
    """True if a layer between state and output can also read a language model."""
    feeds_back: ClassVar[bool] = False
    """True if each step reads a vector of the previous step besides the states of the cells."""
    feeds_attentional_state: ClassVar[bool] = False
    """True if this vector is h~, which is also the state that outputs read."""
    supports_actor: ClassVar[bool] = False
    """True if an actor can change the state before each step (`models/actor.py`)."""
    copies: ClassVar[bool] = False
    """True if the decoder can also copy source positions, in addition to generating words of the vocabulary."""
    reads_several_sources: ClassVar[bool] = True
    """True if the decoder reads annotations only by attention, which can then be that of several sources."""

    @property
    def readout_size(self) -> int:
        """The value of `readout_option`, or of `size` if there is none."""
        size: int = getattr(self, self.readout_option or "size")
        return size

    @property
    def depth(self) -> int:
        """Number of recurrent layers."""
        return 1

    @property
    def reads_last_states(self) -> bool:
        """True if the first states depend on the encoder's last states, through a bridge."""
        return False

    @property
    def starts_at_zero(self) -> bool:
        """True if the first states do not depend on the source."""
        return False

    def attended_size(self, annotation_size: int) -> int:
        """Return the size of `Memory.annotations` for an encoder's annotation size."""
        return annotation_size


DECODERS = Family[DecoderConfig]("decoder")


class _Maxout(DecoderConfig):
    maxout: Size
    """Size of the maxout layer, after pooling over pairs (l in the papers)."""
    readout_option = "maxout"


class _Tanh(DecoderConfig):
    readout: Size
    """Size of the tanh layer below the softmax (Luong's h~, Nematus's t)."""
    readout_option = "readout"


class _LayeredDecoder(DecoderConfig):
    cell: CellName
    """Recurrent cell, see below. `cho` and `bi-scale` have a fixed cell."""
    layers: SmallSize
    """Number of layers."""
    residual_from: Annotated[int, Field(ge=2)] | None = None
    """First layer, counted from 1, with a residual connection (its input is added to its output).
   """

    @property
    def depth(self) -> int:
        return self.layers

    @model_validator(mode="after")
    def _validate_residual(self) -> _LayeredDecoder:
        if self.residual_from is not None and self.residual_from > self.layers:
            must = f"must be at most model.decoder.layers ({self.layers}); got {self.residual_from}"
            raise_problem("residual_from", must)
        return self


class StackOptions(_LayeredDecoder):
    """A stack of cells whose first states come from a bridge."""

    bridge: BridgeName
    """Bridge by which the first states are computed from the encoder's last states, see below."""

    @property
    def reads_last_states(self) -> bool:
        bridge = BRIDGES[self.bridge]
        return bridge.passes_source and not bridge.reads_annotations

    @property
    def starts_at_zero(self) -> bool:
        return not BRIDGES[self.bridge].passes_source

    @property
    def first_states(self) -> tuple[LayerState, ...]:
        """The first state of each layer, bottom first."""
        return (LayerState(CELLS[self.cell].carries, self.size),) * self.layers


@DECODERS.register
class BahdanauOptions(_Maxout):
    """RNNsearch: attention with the state before the update, deep output with maxout (Bahdanau et al. 2015)."""

    type: Literal["bahdanau"] = "bahdanau"
    query_precedes_word = True
    supports_fusion = True
    supports_actor = True
    cell: CellName


@DECODERS.register
class BahdanauTanhOptions(_Tanh):
    """`bahdanau` with a single tanh layer instead of maxout, as in Nematus."""

    type: Literal["bahdanau-tanh"] = "bahdanau-tanh"
    query_precedes_word = True
    supports_fusion = True
    supports_actor = True
    cell: CellName


@DECODERS.register
class CohnOptions(DecoderConfig):
    """The recurrence of `bahdanau` from a zero state, with a tanh layer over the new state, the
    context and the previous word (Cohn et al. 2016).
    """

    type: Literal["cohn"] = "cohn"
    query_precedes_word = True
    supports_fusion = True
    supports_actor = True
    cell: CellName
    readout_option = "size"

    @property
    def starts_at_zero(self) -> bool:
        return True


@DECODERS.register
class CopyNetOptions(DecoderConfig):
    """CopyNet: the recurrence of `bahdanau`, which also reads the source positions that the
    previous word was copied from. One softmax decides between generating a word and copying one (Gu
    et al. 2016). With `text.type = "words"` words are copied with their original spelling.
    """

    type: Literal["copynet"] = "copynet"
    cell: CellName
    readout_option = "size"
    copies = True
    reads_several_sources = False


@DECODERS.register
class RNNencdecOptions(_Maxout):
    """RNNencdec, the baseline of RNNsearch: the context is the encoder's last state at every step."""

    type: Literal["rnnencdec"] = "rnnencdec"
    attends = False
    supports_fusion = True
    cell: CellName


@DECODERS.register
class ChoOptions(_Maxout):
    """The decoder of Cho et al. (appendix A), whose reset gate also applies to the context."""

    type: Literal["cho"] = "cho"
    attends = False
    supports_fusion = True


@DECODERS.register
class SutskeverOptions(StackOptions):
    """A stack of cells without attention, initialised from the encoder's last states (Sutskever et al. 2014)."""

    type: Literal["sutskever"] = "sutskever"
    attends = False
    readout_option = "size"


class _Attentional(StackOptions, _Tanh):
    attentional: Literal["tanh", "tanh-bias", "linear"] = "tanh"
    """Attentional state h~: tanh(W [c; h]), tanh(W [c; h] + b) (as in JoeyNMT), or W [c; h] + b (as
    in OpenNMT-py with `mlp` attention)."""


@DECODERS.register
class LuongOptions(_Attentional):
    """Attention with the new state of the top layer, not fed back into the recurrence (Luong et al. 2015)."""

    type: Literal["luong"] = "luong"
    supports_fusion = True


@DECODERS.register
class LuongInputFeedingOptions(_Attentional):
    """`luong` with input feeding: each step also reads the previous attentional state."""

    type: Literal["luong-input-feeding"] = "luong-input-feeding"
    feeds_back = True
    feeds_attentional_state = True


@DECODERS.register
class NeubigOptions(StackOptions):
    """The decoder of Neubig's tutorial (eq. 72-75): each step reads the previous context and the previous word."""

    type: Literal["neubig"] = "neubig"
    feeds_back = True


@DECODERS.register
class ConditionalGRUOptions(_Tanh):
    """The conditional GRU of Nematus: attention between two transitions."""

    type: Literal["cgru"] = "cgru"
    supports_fusion = True
    cell: CellName
    transitions: ClassVar[int] = 0


@DECODERS.register
class DeepTransitionOptions(_Tanh):
    """`cgru` with further transitions after the second (Miceli Barone et al. 2017)."""

    type: Literal["deep-transition"] = "deep-transition"
    supports_fusion = True
    cell: CellName
    transitions: SmallSize
    """Number of further transitions per step, which read only the state, after the one that reads
    the context (`bideep`: after the first one of each layer)."""


@DECODERS.register
class BiDeepOptions(_LayeredDecoder, _Tanh):
    """`deep-transition` with stacked layers on top, each with several transitions (Miceli Barone et al. 2017)."""

    type: Literal["bideep"] = "bideep"
    supports_fusion = True
    transitions: SmallSize


class _MemoryOptions(_Maxout):
    cell: CellName
    slots: SmallSize
    """Number of cells of the external memory (n in the paper)."""
    slot_size: Size
    """Size of each memory cell (m in the paper)."""


@DECODERS.register
class BiScaleOptions(_Tanh):
    """Bi-scale decoder: a fast layer that may change at every token, and a slow layer that changes only where the fast
    one's gate allows it. Designed for character-level output (Chung et al. 2016).
    """

    type: Literal["bi-scale"] = "bi-scale"
    query_precedes_word = True
    supports_fusion = True


@DECODERS.register
class MemDecOptions(_MemoryOptions):
    """MEMDEC: an external memory that is read and written at each step (Wang et al. 2016)."""

    type: Literal["memdec"] = "memdec"
    supports_fusion = True


@DECODERS.register
class SeparateHeadsOptions(_MemoryOptions):
    """A variant of `memdec` with separate heads for reading and writing, each with a tanh, and
    learned initial memory cells.
    """

    type: Literal["memory"] = "memory"
    supports_fusion = True


@DECODERS.register
class RNMTPlusOptions(StackOptions):
    """RNMT+: attention with the bottom layer; all layers and the output read the context (Chen et al. 2018)."""

    type: Literal["rnmt-plus"] = "rnmt-plus"
    query_precedes_word = True
    reads_several_sources = False

    def attended_size(self, annotation_size: int) -> int:
        return self.size
