"""Recurrent cells and bridges: components that a run file selects by name and that have no options.

Implemented in `models/cells.py` and `models/bridges.py`; `model_rules.py` and `rules.py` read the traits. The names are
stored in model folders: never rename them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

from rnnsearch.config.options import Family, NameIn, Options


class CellOptions(Options):
    """Declaration of a recurrent cell."""

    type: str
    carries: ClassVar[tuple[str, ...]] = ("h",)
    """Vectors that the cell carries to the next position: its output h, a memory cell c, or both."""
    has_recurrent_product: ClassVar[bool] = True
    """True if the output is multiplied by a matrix in the next step, so that state dropout applies."""


CELLS = Family[CellOptions]("cell")


@CELLS.register
class GRUOptions(CellOptions):
    """The GRU of Bahdanau et al.: 1 - z weights the old state, the reset gate is applied before U."""

    type: Literal["gru"] = "gru"


@CELLS.register
class ChoGRUOptions(CellOptions):
    """The GRU of Cho et al.: z weights the old state, the reset gate is applied before U."""

    type: Literal["cho-gru"] = "cho-gru"


@CELLS.register
class TorchGRUOptions(CellOptions):
    """PyTorch's GRU, fused over a whole source sentence: z weights the old state, the reset gate is applied after U."""

    type: Literal["torch-gru"] = "torch-gru"


@CELLS.register
class LSTMOptions(CellOptions):
    """Long short-term memory, without peepholes."""

    type: Literal["lstm"] = "lstm"
    carries = ("h", "c")


@CELLS.register
class TanhOptions(CellOptions):
    """The simple recurrent cell."""

    type: Literal["tanh"] = "tanh"


@CELLS.register
class LayerNormGRUOptions(CellOptions):
    """The GRU with layer normalisation of W x and U h (Ba et al. 2016)."""

    type: Literal["layer-norm-gru"] = "layer-norm-gru"


@CELLS.register
class LayerNormLSTMOptions(CellOptions):
    """The LSTM with layer normalisation of W x, U h and the memory cell (Ba et al. 2016)."""

    type: Literal["layer-norm-lstm"] = "layer-norm-lstm"
    carries = ("h", "c")


@CELLS.register
class GateNormLSTMOptions(CellOptions):
    """The LSTM with layer normalisation of each gate's input (after Chen et al. 2018)."""

    type: Literal["gate-norm-lstm"] = "gate-norm-lstm"
    carries = ("h", "c")


@CELLS.register
class RNMTLSTMOptions(CellOptions):
    """`gate-norm-lstm` without a tanh on its output, h' = o * c' (RNMT+: Chen et al. 2018)."""

    type: Literal["rnmt-lstm"] = "rnmt-lstm"
    carries = ("h", "c")


@CELLS.register
class SSRUOptions(CellOptions):
    """The simpler simple recurrent unit (Kim et al. 2019): one gate and no product with the state.
    For decoders of small, fast models.
    """

    type: Literal["ssru"] = "ssru"
    carries = ("c",)
    has_recurrent_product = False


CellName = Annotated[str, NameIn(CELLS)]


class LayerState(NamedTuple):
    """State that one recurrent layer carries from position to position."""

    carries: tuple[str, ...]
    """Vectors of the state, as in `CellOptions`."""
    size: int
    """Number of units of each vector."""


class BridgeOptions(Options):
    """Declaration of a bridge: how the decoder's first states are computed from the encoder's last states."""

    type: str
    passes_source: ClassVar[bool] = True
    """True if the first states depend on the source sentence."""
    reads_annotations: ClassVar[bool] = False
    """True if the first states depend on annotations instead of the encoder's last states."""

    @classmethod
    def unsupported_reason(cls, encoder: Sequence[LayerState], decoder: Sequence[LayerState]) -> str | None:
        """Return why the bridge cannot connect these layers (bottom first), or None if it can."""
        return None


BRIDGES = Family[BridgeOptions]("bridge")


@BRIDGES.register
class ZeroOptions(BridgeOptions):
    """Zeros."""

    type: Literal["zero"] = "zero"
    passes_source = False


@BRIDGES.register
class CopyOptions(BridgeOptions):
    """The encoder's last states, layer by layer; sizes and types of state must match."""

    type: Literal["copy"] = "copy"

    @classmethod
    def unsupported_reason(cls, encoder: Sequence[LayerState], decoder: Sequence[LayerState]) -> str | None:
        if len(encoder) != len(decoder):
            return (
                f'"copy" needs as many encoder layers as decoder layers; got {len(encoder)} and {len(decoder)}: '
                'set model.encoder.layers, or use "learned"'
            )
        for layer, (source, target) in enumerate(zip(encoder, decoder, strict=True), start=1):
            if source.size != target.size:
                return (
                    f'"copy" needs states of equal size; layer {layer} has {source.size} units in the encoder and '
                    f'{target.size} in the decoder: use "learned"'
                )
            if source.carries != target.carries:
                return (
                    '"copy" needs an encoder and a decoder whose cells carry the same vectors (an output, a memory '
                    'cell, or both): use matching cells, or "learned"'
                )
        return None


@BRIDGES.register
class LearnedOptions(BridgeOptions):
    """A tanh layer over the encoder's last states, for any sizes."""

    type: Literal["learned"] = "learned"


@BRIDGES.register
class LearnedTopOptions(BridgeOptions):
    """A tanh layer over the encoder's top state for each layer of the decoder (JoeyNMT's `bridge`)."""

    type: Literal["learned-top"] = "learned-top"


@BRIDGES.register
class RectifiedOptions(BridgeOptions):
    """A ReLU layer over the last states of all encoder layers together, one for h and one for
    memory cells, for any sizes (OpenNMT-py's `bridge`).
    """

    type: Literal["rectified"] = "rectified"


@BRIDGES.register
class AnnotationOptions(BridgeOptions):
    """The annotation of the last source position (with an end token, that of the end token), and memory cells of zero
    (Neubig's tutorial, eq. 72). The decoder needs attention and the size of an annotation.

    A bidirectional annotation differs from the last states of `copy` in its backward half, which has read only this
    position.
    """

    type: Literal["annotation"] = "annotation"
    reads_annotations = True

    @classmethod
    def unsupported_reason(cls, encoder: Sequence[LayerState], decoder: Sequence[LayerState]) -> str | None:
        if any("h" not in layer.carries for layer in decoder):
            return '"annotation" needs decoder cells that carry an output: use other cells, or "learned"'
        size = encoder[-1].size
        if any(layer.size != size for layer in decoder):
            return f'"annotation" needs a decoder of the size of an annotation, {size}; got {decoder[0].size}'
        return None


BridgeName = Annotated[str, NameIn(BRIDGES)]
