"""The pyramidal encoder: for long or character sources, its upper layers halve the positions."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.config import DropoutConfig
from rnnsearch.config.encoders import PyramidOptions
from rnnsearch.models.cells import CELLS
from rnnsearch.models.draws import Draws, dropout
from rnnsearch.models.encoder import Encoder
from rnnsearch.models.memory import CellState, Encoded, Origin
from rnnsearch.models.one_layer_encoders import Bidirectional


class Pyramid(Encoder):
    """h^l_j = pBLSTM(h^l_{j-1}, [h^{l-1}_{2j}; h^{l-1}_{2j+1}]) in the `reduce` upper layers (Chan et al. 2016, eq. 5),
    plain bidirectional layers below them; in any cell.

    A sentence's odd last position is read with zeros beside it. Of J source positions ceil(J / 2^reduce) annotations
    remain; `Encoded.origin` says which source positions each was made of.
    """

    name = "pyramid"

    def __init__(self, layers: list[Bidirectional], reduce: int, layers_dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.full = len(layers) - reduce
        """Layers over all positions."""
        self.layers_dropout = layers_dropout
        self.annotation_size = layers[-1].annotation_size
        self.summary_size = layers[-1].summary_size
        self.shapes = tuple(shape for layer in layers for shape in layer.shapes)

    @classmethod
    def make(cls, options: PyramidOptions, embedding: int, dropout: DropoutConfig | None = None) -> Pyramid:
        layers: list[Bidirectional] = []
        below = embedding
        for l in range(options.layers):
            width = below if l < options.layers - options.reduce else 2 * below
            layers.append(Bidirectional(CELLS[options.cell], width, options.size, dropout))
            below = layers[-1].annotation_size
        return cls(layers, options.reduce, 0.0 if dropout is None else dropout.layers)

    def forward(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: Draws | None = None) -> Encoded:
        finals: list[CellState] = []
        below, real, summary = x, mask, x
        for l, layer in enumerate(self.layers):
            read = below if l == 0 else dropout(below, self.layers_dropout, draws)
            if l >= self.full:
                read, real = merged(read, real)
            encoded: Encoded = layer(read, real, draws)
            finals += encoded.finals
            below, summary = encoded.annotations, encoded.summary
        return Encoded(below, real, summary, tuple(finals), origin(mask, 2 ** (len(self.layers) - self.full)))


def merged(
    x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"]
) -> tuple[Float[Tensor, "B half E2"], Bool[Tensor, "B half"]]:
    """Neighbours side by side, zeros where there is none, and which of the pairs hold a real position."""
    x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
    if x.shape[1] % 2:
        x, mask = nn.functional.pad(x, (0, 0, 0, 1)), nn.functional.pad(mask, (0, 1))
    return x.unflatten(1, (-1, 2)).flatten(2), mask.unflatten(1, (-1, 2)).any(-1)


def origin(mask: Bool[Tensor, "B J"], stride: int) -> Origin:
    """The source positions behind each annotation, where each was made of `stride` neighbours."""
    B, J = mask.shape
    position = (torch.arange(J, device=mask.device) // stride).expand(B, J)
    count = nn.functional.pad(mask, (0, -J % stride)).unflatten(1, (-1, stride)).sum(-1)
    return Origin(position, mask / count.gather(1, position).clamp_min(1))
