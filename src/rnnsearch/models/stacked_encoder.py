"""The stacked encoder: any depth, its layers reading one way or both ways, with residual connections."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.config import DropoutConfig, EncoderConfig
from rnnsearch.models.cells import CELLS
from rnnsearch.models.draws import Draws, dropout
from rnnsearch.models.encoder import Encoder, turned
from rnnsearch.models.memory import CellState, Encoded, StateShape
from rnnsearch.models.one_layer_encoders import Bidirectional, Unidirectional


class Stacked(Encoder):
    """Layer l reads what layer l - 1 gives (Sutskever et al. 2014; Luong et al. 2015: `forward`).

    direction: `forward`; `bottom`, the bottom layer bidirectional and its [forward; backward] read by layer 2
    (Wu et al. 2016, section 3.2); `both`, every layer bidirectional (Chen et al. 2018, section 4.1). A layer from
    `residual_from` (from 1) gives its output plus what it read, before dropout (Wu et al. 2016, eq. 6). With
    `reverse` the words are read from last to first, and the annotations put back in order. The summary is the top
    layer's own last state (`both`: its backward first one).
    """

    name = "stacked"
    one_vector = True
    options = frozenset({"layers", "direction"})
    optional = frozenset({"residual_from", "reverse"})

    def __init__(
        self,
        layers: list[Unidirectional | Bidirectional],
        residual_from: int | None = None,
        reverse: bool = False,
        layers_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.first_residual = len(layers) + 1 if residual_from is None else residual_from
        self.reverse = reverse
        self.layers_dropout = layers_dropout
        self.annotation_size = layers[-1].annotation_size
        self.summary_size = layers[-1].summary_size
        self.shapes = tuple(shape for layer in layers for shape in layer.shapes)

    @classmethod
    def make(cls, config: EncoderConfig, embedding: int, dropout: DropoutConfig | None = None) -> Stacked:
        layers: list[Unidirectional | Bidirectional] = []
        below = embedding
        for both in _both_ways(config):
            cell = CELLS[config.cell]
            if both:
                layers.append(Bidirectional(cell, below, config.size, dropout))
            else:
                layers.append(Unidirectional(cell, below, config.size, dropout=dropout))
            below = layers[-1].annotation_size
        share = 0.0 if dropout is None else dropout.layers
        return cls(layers, config.residual_from, bool(config.reverse), share)

    @classmethod
    def annotation_size_of(cls, config: EncoderConfig) -> int:
        return cls.shapes_of(config)[-1].size

    @classmethod
    def shapes_of(cls, config: EncoderConfig) -> tuple[StateShape, ...]:
        kind, size = CELLS[config.cell].state, config.size
        return tuple(StateShape(kind, 2 * size if both else size) for both in _both_ways(config))

    @classmethod
    def faults(cls, config: EncoderConfig) -> list[str]:
        faults, layers = [], config.layers or 1
        if config.direction == "bottom" and layers == 1:
            faults.append(
                'model.encoder.direction: "bottom" must have model.encoder.layers of at least 2; got 1 (use type = '
                '"bidirectional")'
            )
        first = 3 if config.direction == "bottom" else 2
        if config.residual_from is not None and not first <= config.residual_from <= layers:
            why = "; layer 2 reads both ways of the bottom layer, which is twice its own size" if first == 3 else ""
            faults.append(
                f"model.encoder.residual_from: must be a layer from {first} to {layers} (model.encoder.layers){why}; "
                f"got {config.residual_from}"
            )
        if config.reverse is not None and config.direction == "both":
            faults.append('model.encoder.reverse: has no effect with direction = "both"; remove it')
        return faults

    @classmethod
    def one_vector_fault(cls, config: EncoderConfig, reader: str) -> str | None:
        if config.direction != "both":
            return None
        return f'model.encoder.direction: must be forward or bottom for {reader}; got "both"'

    def forward(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: Draws | None = None) -> Encoded:
        below = turned(x, mask) if self.reverse else x
        finals: list[CellState] = []
        summary = x
        for number, layer in enumerate(self.layers, start=1):
            read = below if number == 1 else dropout(below, self.layers_dropout, draws)
            encoded: Encoded = layer(read, mask, draws)
            finals += encoded.finals
            summary = encoded.summary
            below = encoded.annotations + below if number >= self.first_residual else encoded.annotations
        return Encoded(turned(below, mask) if self.reverse else below, mask, summary, tuple(finals))


def _both_ways(config: EncoderConfig) -> list[bool]:
    """Which layers, bottom first, are bidirectional."""
    layers = range(config.layers or 1)
    return [config.direction == "both" or (config.direction == "bottom" and l == 0) for l in layers]
