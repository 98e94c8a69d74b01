"""`[model.encoder]`: an encoder's options. Imports no torch."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rnnsearch.config.choice import Options, by_name, raise_faults
from rnnsearch.config.faults import fault
from rnnsearch.config.names import Cell
from rnnsearch.config.table import Few, Size


class EncoderConfig(Options):
    """`[model.encoder]`: the source, word by word, in context."""

    type: str
    """An encoder: see below."""
    cell: Cell
    """A cell: see below."""
    size: Size
    """Units a direction. Annotations that are read both ways have twice as many."""
    reads_end: bool = True
    """Read the end symbol of each source, which attention may then use. `false`: annotations are of its words alone
    (OpenNMT-py). Not with `reverse`."""
    one_vector: ClassVar[bool] = False
    """Whether it can give one vector that has read the whole sentence and in which every layer has its part, as a
    decoder without attention needs."""

    @model_validator(mode="after")
    def _ends(self) -> EncoderConfig:
        if not self.reads_end and getattr(self, "reverse", False):
            raise_faults([fault(("reverse",), "has no meaning with reads_end = false; remove one")])
        return self

    @property
    @abstractmethod
    def layer_sizes(self) -> tuple[int, ...]:
        """The size of each layer's last state, bottom first; the top one's is that of an annotation."""

    @property
    def annotation_size(self) -> int:
        """H."""
        return self.layer_sizes[-1]


class BidirectionalOptions(EncoderConfig):
    """Two recurrent layers; annotation = [forward; backward] (Bahdanau et al., eq. 7)."""

    type: Literal["bidirectional"] = "bidirectional"

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return (2 * self.size,)


class UnidirectionalOptions(EncoderConfig):
    """One layer, left to right (Cho et al., section 2)."""

    type: Literal["unidirectional"] = "unidirectional"
    reverse: bool = False
    """Read the words from last to first, the end symbol last all the same (Sutskever et al.). Annotations stay in the
    order of the text."""
    one_vector = True

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return (self.size,)


class _Layered(EncoderConfig):
    layers: Few
    """Layers, one on top of the other."""

    @property
    def both_ways(self) -> tuple[bool, ...]:
        """Which layers, bottom first, are bidirectional."""
        return (True,) * self.layers

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return tuple(2 * self.size if both else self.size for both in self.both_ways)


class StackedOptions(_Layered):
    """Layers on top of one another, one way or both, with residual connections (Sutskever et al.; Luong et al.; GNMT;
    RNMT+)."""

    type: Literal["stacked"] = "stacked"
    direction: Literal["forward", "bottom", "both"]
    """All layers read forward; the bottom one reads both ways (GNMT); or all read both ways (RNMT+)."""
    residual_from: Annotated[int, Field(ge=2)] | None = None
    """The first layer, from 1, that adds what it reads to what it gives. Without it: none."""
    reverse: bool = False
    """Read the words from last to first, the end symbol last all the same (Sutskever et al.). Annotations stay in the
    order of the text."""
    one_vector = True

    @property
    def both_ways(self) -> tuple[bool, ...]:
        return tuple(self.direction == "both" or (self.direction == "bottom" and l == 0) for l in range(self.layers))

    @model_validator(mode="after")
    def _fits(self) -> StackedOptions:
        faults, first = [], 3 if self.direction == "bottom" else 2
        if self.direction == "bottom" and self.layers == 1:
            must = '"bottom" must have model.encoder.layers of at least 2; got 1 (use type = "bidirectional")'
            faults.append(fault(("direction",), must))
        if self.residual_from is not None and not first <= self.residual_from <= self.layers:
            why = "; layer 2 reads both ways of the bottom layer, which is twice its own size" if first == 3 else ""
            must = f"must be a layer from {first} to {self.layers} (model.encoder.layers){why}"
            faults.append(fault(("residual_from",), f"{must}; got {self.residual_from}"))
        if self.reverse and self.direction == "both":
            faults.append(fault(("reverse",), 'has no effect with direction = "both"; remove it'))
        raise_faults(faults)
        return self


class PyramidOptions(_Layered):
    """Bidirectional layers of which the upper ones halve the positions (Chan et al. 2016). For long sources."""

    type: Literal["pyramid"] = "pyramid"
    reduce: Few
    """Layers at the top that halve the positions."""

    @model_validator(mode="after")
    def _fits(self) -> PyramidOptions:
        if self.reduce > self.layers:
            must = f"must be at most model.encoder.layers ({self.layers}); got {self.reduce}"
            raise_faults([fault(("reduce",), must)])
        return self


class ConvolutionalOptions(EncoderConfig):
    """Filters over windows of symbols, the most of each in every segment, highway layers, and two recurrent layers, one
    a direction, over the segments (Lee et al. 2017). For characters."""

    type: Literal["convolutional"] = "convolutional"
    widths: Annotated[int, Field(ge=1, le=20)] = 8
    """Windows are of 1 to so many symbols."""
    filters: Size
    """Filters of each width."""
    stride: Annotated[int, Field(ge=1, le=20)]
    """Symbols of a segment (5 in Lee et al.)."""
    highway: Annotated[int, Field(ge=0, le=100)] = 4
    """Highway layers."""

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return (2 * self.size,)


class RationaleOptions(EncoderConfig):
    """Two recurrent layers over the words that a network of its own chooses, and over no others (Lei et al. 2016). What
    translates sees nothing else of the source. Trained by `[objective.rationale]`."""

    type: Literal["rationale"] = "rationale"
    chooser: Size
    """Units a direction of the network that reads the whole source and chooses."""

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return (2 * self.size,)

    @model_validator(mode="after")
    def _ends(self) -> RationaleOptions:
        if not self.reads_end:
            raise_faults([fault(("reads_end",), "must be true for rationale, which may choose nothing else")])
        return self


ENCODERS: dict[str, type[EncoderConfig]] = by_name(
    *(BidirectionalOptions, UnidirectionalOptions, StackedOptions),
    *(PyramidOptions, ConvolutionalOptions, RationaleOptions),
)
