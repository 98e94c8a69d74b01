"""Encoders: embedded source words to annotations, and to the states that a bridge reads.

Of one layer (`Unidirectional`, `Bidirectional`), and of several: `Stacked`, of any depth, and `Pyramid` and
`Convolutional`, for long or character sources. `Rationale` reads some of the words alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.config import DropoutConfig, encoders
from rnnsearch.config.encoders import (
    BidirectionalOptions,
    ConvolutionalOptions,
    EncoderConfig,
    PyramidOptions,
    RationaleOptions,
    StackedOptions,
    UnidirectionalOptions,
)
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.models.batch_rng import BatchRng, dropout, dropout_mask
from rnnsearch.models.cells import CELLS
from rnnsearch.models.composition import Filters, highways
from rnnsearch.models.layers import Linear, set_role
from rnnsearch.models.memory import CellState, Encoded, Origin, StateShape, WordSelection
from rnnsearch.utils.tensors import at_least_fp32, without_last


class Encoder(nn.Module, ABC):
    """An encoder of its own options over embedded words of `embedding` numbers. `annotation_size` is H, `summary_size`
    that of `Encoded.summary`."""

    component: ClassVar[type[EncoderConfig]]
    """The declaration of the component, set by `@implements`."""
    merges_positions: ClassVar[bool] = False
    """Whether an annotation may be of several source positions (`Encoded.origin`)."""

    def __init__(self, options: Any, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__()
        self.shapes = final_shapes(options)
        """Of `Encoded.finals`: what a bridge reads."""
        self.annotation_size, self.summary_size = self.shapes[-1].size, options.size
        self.state_dropout = 0.0 if dropout is None else dropout.state
        self.reads_end: bool = options.reads_end

    def forward(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: BatchRng | None = None) -> Encoded:
        """The annotations of embedded source words x. With `draws` dropout applies, as in training."""
        return self.encode(x, mask if self.reads_end else without_eos(mask), draws)

    @abstractmethod
    def encode(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: BatchRng | None = None) -> Encoded:
        """The annotations of the positions that the mask has."""


@implements(UnidirectionalOptions)
class Unidirectional(Encoder):
    """h_j = f(x_j, h_{j-1}), left to right; the summary is h_Tx (Cho et al. 2014, section 2).

    With `reverse` the words are read from last to first (Sutskever et al. 2014), and the annotations put back in order.
    """

    def __init__(self, options: UnidirectionalOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout)
        self.forward_cell = CELLS[options.cell](embedding, options.size)
        self.reverse = options.reverse

    def read(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: BatchRng | None = None) -> Encoded:
        read = reverse_words(x, mask) if self.reverse else x
        keep = dropout_mask(draws, self.state_dropout, x, self.forward_cell.size)
        annotations, last = self.forward_cell.sequence(read, mask, keep=keep)
        return Encoded(reverse_words(annotations, mask) if self.reverse else annotations, mask, last.h, (last,))


@implements(BidirectionalOptions)
class Bidirectional(Encoder):
    """h_j = [forward h_j; backward h_j] (Bahdanau et al., eq. 7); the summary is the backward h_1."""

    def __init__(self, options: BidirectionalOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout)
        self.forward_cell = CELLS[options.cell](embedding, options.size)
        self.backward_cell = CELLS[options.cell](embedding, options.size)

    def read(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: BatchRng | None = None) -> Encoded:
        keep = dropout_mask(draws, self.state_dropout, x, self.forward_cell.size)
        rightward, last = self.forward_cell.sequence(x, mask, keep=keep)
        keep = dropout_mask(draws, self.state_dropout, x, self.backward_cell.size)
        leftward, first = self.backward_cell.sequence(x, mask, backward=True, keep=keep)
        both = type(last)(*(torch.cat(pair, dim=-1) for pair in zip(last, first, strict=True)))
        return Encoded(torch.cat([rightward, leftward], dim=-1), mask, first.h, (both,))


class LayeredEncoder(Encoder):
    """One-layer encoders, each over what the one below gives; the summary is the top layer's own last state."""

    def __init__(
        self,
        options: StackedOptions | PyramidOptions,
        embedding: int,
        dropout: DropoutConfig | None,
        full: int,
        residual_from: int | None = None,
    ) -> None:
        """full: layers over all positions; those above read pairs of them. residual_from: the first layer, from 1,
        whose output has what it read added."""
        super().__init__(options, embedding, dropout)
        self.full = full
        self.first_residual = residual_from or options.layers + 1
        layers: list[Unidirectional | Bidirectional] = []
        below = embedding
        for l, both in enumerate(options.bidirectional_layers):
            width = below if l < full else 2 * below
            if both:
                both_ways = BidirectionalOptions(cell=options.cell, size=options.size)
                layers.append(Bidirectional(both_ways, width, dropout))
            else:
                one_way = UnidirectionalOptions(cell=options.cell, size=options.size)
                layers.append(Unidirectional(one_way, width, dropout))
            below = layers[-1].annotation_size
        self.layers = nn.ModuleList(layers)
        shares = dropout or DropoutConfig()
        self.layers_dropout, self.outputs_dropout = shares.layers, shares.layer_outputs

    def read(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: BatchRng | None = None) -> Encoded:
        finals: list[CellState] = []
        below, real, summary = x, mask, x
        for number, layer in enumerate(self.layers, start=1):
            read = below if number == 1 else dropout(below, self.layers_dropout, draws)
            if number > self.full:
                read, real = concat_pairs(read, real)
            encoded: Encoded = layer(read, real, draws)
            finals += encoded.finals
            summary = encoded.summary
            given = dropout(encoded.annotations, self.outputs_dropout, draws)
            below = given + below if number >= self.first_residual else given
        return Encoded(below, real, summary, tuple(finals))


@implements(StackedOptions)
class Stacked(LayeredEncoder):
    """Layer l reads what layer l - 1 gives (Sutskever et al. 2014; Luong et al. 2015: `forward`).

    direction: `forward`; `bottom`, the bottom layer bidirectional and its [forward; backward] read by layer 2
    (Wu et al. 2016, section 3.2); `both`, every layer bidirectional (Chen et al. 2018, section 4.1). A layer from
    `residual_from` (from 1) gives its output plus what it read, before dropout on that (Wu et al. 2016, eq. 6). With
    `reverse` the words are read from last to first, and the annotations put back in order.
    """

    def __init__(self, options: StackedOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout, options.layers, options.residual_from)
        self.reverse = options.reverse

    def read(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: BatchRng | None = None) -> Encoded:
        if not self.reverse:
            return super().read(x, mask, draws)
        encoded = super().read(reverse_words(x, mask), mask, draws)
        return encoded._replace(annotations=reverse_words(encoded.annotations, mask))


@implements(PyramidOptions)
class Pyramid(LayeredEncoder):
    """h^l_j = pBLSTM(h^l_{j-1}, [h^{l-1}_{2j}; h^{l-1}_{2j+1}]) in the `reduce` upper layers (Chan et al. 2016, eq. 5),
    plain bidirectional layers below them; in any cell.

    A sentence's odd last position is read with zeros beside it. Of J source positions ceil(J / 2^reduce) annotations
    remain; `Encoded.origin` says which source positions each was made of.
    """

    merges = True

    def __init__(self, options: PyramidOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout, options.layers - options.reduce)

    def read(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: BatchRng | None = None) -> Encoded:
        return super().read(x, mask, draws)._replace(origin=segment_origin(mask, 2 ** (len(self.layers) - self.full)))


@implements(ConvolutionalOptions)
class ConvolutionalEncoder(Encoder):
    """Lee et al. 2017, "Fully character-level neural machine translation without explicit segmentation", section 4.1:

    y_j = ReLU(<X[j - w/2 : j + w/2], H_f> + b_f) of every width w and filter f, the most of it in each segment of
    `stride` positions, highway layers, and a bidirectional recurrent layer over the segments.
    """

    merges = True

    def __init__(self, options: ConvolutionalOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout)
        self.stride = options.stride
        self.filters = Filters(embedding, dict.fromkeys(range(1, options.widths + 1), options.filters), centred=True)
        self.highway = highways(self.filters.size, options.highway)
        both_ways = BidirectionalOptions(cell=options.cell, size=options.size)
        self.reader = Bidirectional(both_ways, self.filters.size, dropout)

    def read(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: BatchRng | None = None) -> Encoded:
        beyond, rest = (~mask).unsqueeze(-1), -x.shape[1] % self.stride
        y = torch.relu(self.filters(x.masked_fill(beyond, 0.0))).masked_fill(beyond, 0.0)
        segments = nn.functional.pad(y, (0, 0, 0, rest)).unflatten(1, (-1, self.stride)).amax(2)
        real = nn.functional.pad(mask, (0, rest)).unflatten(1, (-1, self.stride)).any(-1)
        encoded: Encoded = self.reader(self.highway(segments), real, draws)
        return encoded._replace(origin=segment_origin(mask, self.stride))


@implements(RationaleOptions)
class Rationale(Encoder):
    """Lei, Barzilay & Jaakkola 2016, "Rationalizing neural predictions", section 3: the words that a translation may
    rest on are chosen first, each by itself, by a network that reads the whole source,

    p(z_j = 1 | x) = sigma(w^T [forward h_j; backward h_j] + b),

    and the annotations are those of a bidirectional layer over the chosen words, side by side, which sees no other. In
    training z is drawn; else a word is chosen where p > 1/2. The end symbol is always read. Here b begins at 2, so that
    most words are read at first. `Encoded.origin` says where the chosen words stood.
    """

    merges = True

    def __init__(self, options: RationaleOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout)
        chooser = BidirectionalOptions(cell=options.cell, size=options.chooser)
        self.chooser = Bidirectional(chooser, embedding, dropout)
        self.choice = Linear(2 * options.chooser, 1)
        """w and b."""
        set_role(self.choice.bias, 2.0)
        self.reader = Bidirectional(BidirectionalOptions(cell=options.cell, size=options.size), embedding, dropout)

    def read(self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: BatchRng | None = None) -> Encoded:
        chosen = self.select_words(x, mask, draws)
        kept = chosen.selected | (mask & ~chosen.candidates)
        order = (~kept).to(torch.uint8).argsort(stable=True, dim=1)
        beside = torch.arange(x.shape[1], device=x.device) < kept.sum(1, keepdim=True)
        encoded: Encoded = self.reader(x.gather(1, order[:, :, None].expand_as(x)), beside, draws)
        origin = Origin((kept.cumsum(1) - 1).clamp_min(0), kept.double())
        return encoded._replace(origin=origin, chosen=chosen)

    def select_words(
        self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], draws: BatchRng | None
    ) -> WordSelection:
        """z, drawn or the likelier choice of each word, and its probability."""
        logit = at_least_fp32(self.choice(self.chooser(x, mask, draws).annotations)).squeeze(-1)
        level = logit.new_full((), 0.5) if draws is None else draws.uniform(tuple(logit.shape), logit)
        words = without_last(mask)
        read = (torch.sigmoid(logit) > level) & words
        log_p = nn.functional.logsigmoid(torch.where(read, logit, -logit)).masked_fill(~words, 0.0).sum(1)
        return WordSelection(words, read, log_p)


def concat_pairs(
    x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"]
) -> tuple[Float[Tensor, "B half E2"], Bool[Tensor, "B half"]]:
    """Neighbours side by side, zeros where there is none, and which of the pairs hold a real position."""
    x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
    if x.shape[1] % 2:
        x, mask = nn.functional.pad(x, (0, 0, 0, 1)), nn.functional.pad(mask, (0, 1))
    return x.unflatten(1, (-1, 2)).flatten(2), mask.unflatten(1, (-1, 2)).any(-1)


def segment_origin(mask: Bool[Tensor, "B J"], stride: int) -> Origin:
    """The source positions behind each annotation, where each was made of `stride` neighbours."""
    B, J = mask.shape
    position = (torch.arange(J, device=mask.device) // stride).expand(B, J)
    count = nn.functional.pad(mask, (0, -J % stride)).unflatten(1, (-1, stride)).sum(-1)
    return Origin(position, mask.double() / count.gather(1, position).clamp_min(1))


def without_eos(mask: Bool[Tensor, "B J"]) -> Bool[Tensor, "B J"]:
    """A mask without each sentence's last position, but that a sentence that has no other position keeps it."""
    last = mask.sum(1, keepdim=True) - 1
    return mask & (torch.arange(mask.shape[1], device=mask.device) < last.clamp_min(1))


def final_shapes(options: EncoderConfig) -> tuple[StateShape, ...]:
    """The shapes of `Encoded.finals`, bottom layer first, of an encoder of these options."""
    return tuple(StateShape(CELLS[options.cell].state, size) for size in options.layer_sizes)


def reverse_words(x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"]) -> Float[Tensor, "B J E"]:
    """Each sentence's words from last to first, its end symbol last all the same, padding where it is
    (Sutskever et al. 2014, section 3.3). Done twice it is undone."""
    last = mask.sum(1, keepdim=True) - 1
    positions = torch.arange(x.shape[1], device=x.device)[None, :]
    order = torch.where(positions < last, last - 1 - positions, positions)
    return x.gather(1, order[:, :, None].expand_as(x))


ENCODERS: Implementations[type[Encoder]] = Implementations(encoders.ENCODERS)
