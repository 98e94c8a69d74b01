"""The stacked encoder: any depth, its layers reading one way or both ways, with residual connections."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.config import DropoutConfig
from rnnsearch.config.encoders import StackedOptions
from rnnsearch.models.cells import CELLS
from rnnsearch.models.draws import Draws, dropout
from rnnsearch.models.encoder import Encoder, turned
from rnnsearch.models.memory import CellState, Encoded
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
    def make(cls, options: StackedOptions, embedding: int, dropout: DropoutConfig | None = None) -> Stacked:
        layers: list[Unidirectional | Bidirectional] = []
        below = embedding
        for both in options.both_ways:
            cell = CELLS[options.cell]
            if both:
                layers.append(Bidirectional(cell, below, options.size, dropout))
            else:
                layers.append(Unidirectional(cell, below, options.size, dropout=dropout))
            below = layers[-1].annotation_size
        share = 0.0 if dropout is None else dropout.layers
        return cls(layers, options.residual_from, options.reverse, share)

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
