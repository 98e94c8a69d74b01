"""Encoders: from embedded source words to annotations, and to the last states that a bridge reads.

`Unidirectional` and `Bidirectional` have one layer; `Stacked` has any number; `Pyramid` and `ConvolutionalEncoder` are
for long or character-level sources; `Rationale` reads only some of the words; `Feedforward` is for image regions;
`Hierarchical` reads several sentences.

`TranslationModel` creates one, and `MultiSourceModel` one per source. `Encoded` (`memory.py`) is what decoders get;
`final_shapes` must agree with it, because bridges are built from it. `accel/program_writer.py` and `export/onnx.py`
write some classes for other engines.

Axes: B sentences, J source positions, E embedding, H annotation, F filters, J' annotations of an encoder that merges
positions.
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
    FeedforwardOptions,
    HierarchicalOptions,
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
from rnnsearch.models.memory import CellState, Encoded, Hidden, Origin, StateShape, WordSelection
from rnnsearch.utils.tensors import at_least_fp32, without_last

Embedded = Float[Tensor, "B J E"]
Mask = Bool[Tensor, "B J"]


class EncoderSizes(nn.Module):
    """A module with the sizes that decoders are built from: an `Encoder`, or those of several sources."""

    shapes: tuple[StateShape, ...]
    """Shapes of `Encoded.finals`, for a bridge."""
    annotation_size: int
    """H, the size of an annotation."""
    summary_size: int
    """S, the size of `Encoded.summary`."""


class Encoder(EncoderSizes, ABC):
    """An encoder over embedded words of size `embedding`, created from its options."""

    component: ClassVar[type[EncoderConfig]]
    """The declaration of the component, set by `@implements`."""
    merges_positions: ClassVar[bool] = False
    """True if an annotation can belong to several source positions (see `Encoded.origin`)."""

    def __init__(self, options: Any, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__()
        self.shapes = final_shapes(options)
        self.annotation_size = self.shapes[-1].size
        self.summary_size = options.size
        self.state_dropout = 0.0 if dropout is None else dropout.state
        self.reads_end: bool = options.reads_end
        """False to mask EOS."""

    def forward(self, x: Embedded, mask: Mask, rng: BatchRng | None = None) -> Encoded:
        """Encode embedded source words x; dropout applies only with an rng."""
        return self.encode(x, mask if self.reads_end else without_eos(mask), rng)

    @abstractmethod
    def encode(self, x: Embedded, mask: Mask, rng: BatchRng | None = None) -> Encoded:
        """Encode the positions where the mask is true."""


@implements(UnidirectionalOptions)
class Unidirectional(Encoder):
    """h_j = f(x_j, h_{j-1}), left to right; the summary is h_Tx (Cho et al. 2014, section 2).

    With `reverse`, the words are read from last to first (Sutskever et al. 2014), and the annotations returned in the
    original order.
    """

    def __init__(self, options: UnidirectionalOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout)
        self.forward_cell = CELLS[options.cell](embedding, options.size)
        self.reverse = options.reverse

    def encode(self, x: Embedded, mask: Mask, rng: BatchRng | None = None) -> Encoded:
        x = reverse_words(x, mask, self.reads_end) if self.reverse else x
        recurrent_mask = dropout_mask(rng, self.state_dropout, x, self.forward_cell.size)
        annotations, last = self.forward_cell.sequence(x, mask, recurrent_mask=recurrent_mask)  # [B, J, H]
        if self.reverse:
            annotations = reverse_words(annotations, mask, self.reads_end)
        return Encoded(annotations, mask, last.h, (last,))


@implements(BidirectionalOptions)
class Bidirectional(Encoder):
    """h_j = [forward h_j; backward h_j] (Bahdanau et al., eq. 7); the summary is the backward h_1."""

    def __init__(self, options: BidirectionalOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout)
        self.forward_cell = CELLS[options.cell](embedding, options.size)
        self.backward_cell = CELLS[options.cell](embedding, options.size)

    def encode(self, x: Embedded, mask: Mask, rng: BatchRng | None = None) -> Encoded:
        # Each direction has its own mask. The order of the calls fixes the random numbers (see `BatchRng`).
        recurrent_mask = dropout_mask(rng, self.state_dropout, x, self.forward_cell.size)
        forward, last = self.forward_cell.sequence(x, mask, recurrent_mask=recurrent_mask)  # [B, J, H / 2]
        recurrent_mask = dropout_mask(rng, self.state_dropout, x, self.backward_cell.size)
        backward, first = self.backward_cell.sequence(x, mask, backward=True, recurrent_mask=recurrent_mask)
        # [forward h_Tx; backward h_1], and likewise the memories: [B, H] each.
        finals = type(last)(*(torch.cat(pair, dim=-1) for pair in zip(last, first, strict=True)))
        return Encoded(torch.cat([forward, backward], dim=-1), mask, first.h, (finals,))


class LayeredEncoder(Encoder):
    """A stack of one-layer encoders; the summary is that of the top layer."""

    def __init__(
        self,
        options: StackedOptions | PyramidOptions,
        embedding: int,
        dropout: DropoutConfig | None,
        full_layers: int,
        residual_from: int | None = None,
    ) -> None:
        """Create the layers.

        Args:
            full_layers: Number of layers that read all positions; those above read pairs of positions.
            residual_from: First layer, counted from 1, whose input is added to its output.
        """
        super().__init__(options, embedding, dropout)
        self.full_layers = full_layers
        self.first_residual = residual_from or options.layers + 1
        layers: list[Unidirectional | Bidirectional] = []
        below = embedding
        for l, is_bidirectional in enumerate(options.bidirectional_layers):
            width = below if l < full_layers else 2 * below  # upper layers read pairs of positions
            if is_bidirectional:
                bidirectional = BidirectionalOptions(cell=options.cell, size=options.size)
                layers.append(Bidirectional(bidirectional, width, dropout))
            else:
                unidirectional = UnidirectionalOptions(cell=options.cell, size=options.size)
                layers.append(Unidirectional(unidirectional, width, dropout))
            below = layers[-1].annotation_size
        self.layers = nn.ModuleList(layers)
        rates = dropout or DropoutConfig()
        self.layers_dropout = rates.layers
        self.outputs_dropout = rates.layer_outputs

    def encode(self, x: Embedded, mask: Mask, rng: BatchRng | None = None) -> Encoded:
        finals: list[CellState] = []
        below, summary = x, x
        for l, layer in enumerate(self.layers, start=1):
            # The input of the bottom layer has had the dropout of embeddings.
            inputs = below if l == 1 else dropout(below, self.layers_dropout, rng)
            if l > self.full_layers:
                inputs, mask = concat_pairs(inputs, mask)  # [B, ceil(J / 2), 2 E]
            encoded: Encoded = layer(inputs, mask, rng)
            finals += encoded.finals
            summary = encoded.summary
            outputs = dropout(encoded.annotations, self.outputs_dropout, rng)
            below = outputs + below if l >= self.first_residual else outputs
        return Encoded(below, mask, summary, tuple(finals))


@implements(StackedOptions)
class Stacked(LayeredEncoder):
    """A stack in which layer l reads the output of layer l - 1 (Sutskever et al. 2014; Luong et al. 2015).

    The option `direction` is "forward"; "bottom", with a bidirectional bottom layer whose [forward; backward] is read
    by layer 2 (Wu et al. 2016, section 3.2); or "both", with only bidirectional layers (Chen et al. 2018, section 4.1).
    A layer from `residual_from` on, counted from 1, adds its input before dropout to its output (Wu et al. 2016,
    eq. 6). With `reverse`, the words are read from last to first, and the annotations returned in the original order.
    """

    def __init__(self, options: StackedOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout, options.layers, options.residual_from)
        self.reverse = options.reverse

    def encode(self, x: Embedded, mask: Mask, rng: BatchRng | None = None) -> Encoded:
        if not self.reverse:
            return super().encode(x, mask, rng)
        encoded = super().encode(reverse_words(x, mask, self.reads_end), mask, rng)
        return encoded._replace(annotations=reverse_words(encoded.annotations, mask, self.reads_end))


@implements(PyramidOptions)
class Pyramid(LayeredEncoder):
    """h^l_j = pBLSTM(h^l_{j-1}, [h^{l-1}_{2j}; h^{l-1}_{2j+1}]) in the upper `reduce` layers (Chan et al. 2016, eq. 5).

    The layers below them are ordinary bidirectional layers; all have any cell. If the number of positions is odd, the
    last one is paired with zeros. J source positions give ceil(J / 2^reduce) annotations.
    """

    merges_positions = True

    def __init__(self, options: PyramidOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout, options.layers - options.reduce)

    def encode(self, x: Embedded, mask: Mask, rng: BatchRng | None = None) -> Encoded:
        # Every upper layer halves the number of positions.
        stride = 2 ** (len(self.layers) - self.full_layers)
        return super().encode(x, mask, rng)._replace(origin=segment_origin(mask, stride))


@implements(ConvolutionalOptions)
class ConvolutionalEncoder(Encoder):
    """The encoder of Lee et al. 2017, "Fully character-level neural machine translation without explicit segmentation".

    Section 4.1: y_j = ReLU(<X[j - w/2 : j + w/2], H_f> + b_f) for every width w and filter f, max pooling over segments
    of `stride` positions, highway layers, and a bidirectional recurrent layer over the segments.
    """

    merges_positions = True

    def __init__(self, options: ConvolutionalOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout)
        self.stride = options.stride
        self.filters = Filters(embedding, dict.fromkeys(range(1, options.widths + 1), options.filters), centred=True)
        self.highway = highways(self.filters.size, options.highway)
        bidirectional = BidirectionalOptions(cell=options.cell, size=options.size)
        self.reader = Bidirectional(bidirectional, self.filters.size, dropout)

    def encode(self, x: Embedded, mask: Mask, rng: BatchRng | None = None) -> Encoded:
        is_padding = (~mask).unsqueeze(-1)
        # Zeros on padding before the filters, so that windows see none of it, and after them: 0 is the minimum of
        # ReLU, so that no maximum comes from padding.
        y = torch.relu(self.filters(x.masked_fill(is_padding, 0.0))).masked_fill(is_padding, 0.0)  # [B, J, F]
        fill = -x.shape[1] % self.stride  # positions that the last segment has too few
        segments = nn.functional.pad(y, (0, 0, 0, fill)).unflatten(1, (-1, self.stride)).amax(2)  # [B, J', F]
        segment_mask = nn.functional.pad(mask, (0, fill)).unflatten(1, (-1, self.stride)).any(-1)
        encoded: Encoded = self.reader(self.highway(segments), segment_mask, rng)
        return encoded._replace(origin=segment_origin(mask, self.stride))


@implements(RationaleOptions)
class Rationale(Encoder):
    """An encoder that selects the words to read (Lei, Barzilay & Jaakkola 2016, "Rationalizing neural predictions").

    Section 3: a network that reads the whole source selects each word independently, with

    p(z_j = 1 | x) = sigma(w^T [forward h_j; backward h_j] + b);

    the annotations are those of a bidirectional layer over the selected words, which sees no other word. In training z
    is sampled; otherwise a word is selected if p > 1/2. EOS is always read. b is initialised to 2, so that most words
    are read at first. `Encoded.origin` holds the positions of the selected words.
    """

    merges_positions = True

    def __init__(self, options: RationaleOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout)
        chooser = BidirectionalOptions(cell=options.cell, size=options.chooser)
        self.chooser = Bidirectional(chooser, embedding, dropout)
        self.choice = Linear(2 * options.chooser, 1)  # w and b
        set_role(self.choice.bias, 2.0)
        self.reader = Bidirectional(BidirectionalOptions(cell=options.cell, size=options.size), embedding, dropout)

    def encode(self, x: Embedded, mask: Mask, rng: BatchRng | None = None) -> Encoded:
        selection = self.select_words(x, mask, rng)
        # EOS is real and no candidate: it is always read, so that no sentence is empty.
        is_read = selection.selected | (mask & ~selection.candidates)  # [B, J]
        # Move the words that are read to the front, in their order.
        order = (~is_read).to(torch.uint8).argsort(stable=True, dim=1)
        packed_mask = torch.arange(x.shape[1], device=x.device) < is_read.sum(1, keepdim=True)
        encoded: Encoded = self.reader(x.gather(1, order[:, :, None].expand_as(x)), packed_mask, rng)
        # The annotation of a word that is read has its rank among these words; other words have the fraction 0, so
        # that their index does not matter.
        origin = Origin((is_read.cumsum(1) - 1).clamp_min(0), is_read.double())
        return encoded._replace(origin=origin, selection=selection)

    def select_words(self, x: Embedded, mask: Mask, rng: BatchRng | None) -> WordSelection:
        """Sample z with an rng, otherwise take the more likely choice per word; return it with its log-probability."""
        logit = at_least_fp32(self.choice(self.chooser(x, mask, rng).annotations)).squeeze(-1)  # [B, J]
        threshold = logit.new_full((), 0.5) if rng is None else rng.uniform(tuple(logit.shape), logit)
        candidates = without_last(mask)  # words, not EOS
        selected = (torch.sigmoid(logit) > threshold) & candidates
        # log p(z_j = 1) = logsigmoid(logit) and log p(z_j = 0) = logsigmoid(-logit); [B].
        log_prob = nn.functional.logsigmoid(torch.where(selected, logit, -logit)).masked_fill(~candidates, 0.0).sum(1)
        return WordSelection(candidates, selected, log_prob)


@implements(FeedforwardOptions)
class Feedforward(Encoder):
    """h_j = tanh(W_L ... tanh(W_1 x_j + b_1) ... + b_L); the summary is the mean of the annotations.

    Decoders compute their first state from it, as in Xu et al. 2015, section 3.1.2: h_0 = f_init(1/L sum_i a_i).
    """

    def __init__(self, options: FeedforwardOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout)
        inputs = [embedding, *[options.size] * (options.layers - 1)]
        self.layers = nn.ModuleList(Linear(size, options.size) for size in inputs)

    def encode(self, x: Embedded, mask: Mask, rng: BatchRng | None = None) -> Encoded:
        annotations = x
        for layer in self.layers:
            annotations = torch.tanh(layer(annotations))  # [B, J, H]
        weights = mask.to(annotations.dtype) / mask.sum(1, keepdim=True).clamp_min(1)  # [B, J]
        mean = torch.einsum("bj,bjh->bh", weights, annotations)
        return Encoded(annotations, mask, mean, (Hidden(mean),))


@implements(HierarchicalOptions)
class Hierarchical(Encoder):
    """An encoder of several sentences with a layer of words and one of sentences (Sordoni et al. 2015).

    Within sentence k, h_j = f(x_j, h_{j-1}) from a zero state, and its last state v_k is the input of the upper layer,
    s_k = g(v_k, s_{k-1}). The annotations are the states s_k, one per sentence; `Encoded.origin` assigns each to the
    last position of its sentence. The summary is the last s_k.
    """

    merges_positions = True

    def __init__(self, options: HierarchicalOptions, embedding: int, dropout: DropoutConfig | None = None) -> None:
        super().__init__(options, embedding, dropout)
        self.word_cell = CELLS[options.cell](embedding, options.size)
        self.sentence_cell = CELLS[options.cell](options.size, options.size)

    def encode(self, x: Embedded, mask: Mask, rng: BatchRng | None = None) -> Encoded:
        """Encode sources of a single sentence each."""
        return self.encode_sentences(x, mask, torch.zeros_like(mask), rng)

    def encode_sentences(self, x: Embedded, mask: Mask, separators: Mask, rng: BatchRng | None = None) -> Encoded:
        """Encode sentences; each ends with a separator, or at the last real position."""
        is_last = mask & ~nn.functional.pad(mask[:, 1:], (0, 1))
        is_end = is_last | (mask & separators)
        is_start = nn.functional.pad(is_end[:, :-1], (1, 0), value=True)
        # The order of the calls fixes the random numbers (see `BatchRng`).
        word_mask = dropout_mask(rng, self.state_dropout, x, self.word_cell.size)
        sentence_mask = dropout_mask(rng, self.state_dropout, x, self.sentence_cell.size)
        words = self._read_words(x, is_start, word_mask)  # [B, J, D]
        vectors, is_sentence = sentence_vectors(words, is_end)  # [B, K, D]
        states, last = self.sentence_cell.sequence(vectors, is_sentence, recurrent_mask=sentence_mask)
        # Positions after the last sentence have the fraction 0, so that their index does not matter.
        position = (is_start.cumsum(1) - 1).clamp(max=vectors.shape[1] - 1)
        return Encoded(states, is_sentence, last.h, (last,), Origin(position, is_end.double()))

    def _read_words(
        self, x: Embedded, is_start: Mask, recurrent_mask: Float[Tensor, "B D"] | None
    ) -> Float[Tensor, "B J D"]:
        """Return the states of the lower layer, which starts again where a sentence starts."""
        cell = self.word_cell
        gates = cell.inputs(x)
        initial = cell.start(gates.new_zeros(len(x), cell.size))
        state = initial
        outputs = []
        for gates_j, starts in zip(gates.unbind(1), is_start.unsqueeze(-1).unbind(1), strict=True):
            pairs = zip(initial, state, strict=True)
            state = type(state)(*(torch.where(starts, first.to(old.dtype), old) for first, old in pairs))
            state = cell.step(gates_j, state, recurrent_mask)
            outputs.append(state.h)
        return torch.stack(outputs, dim=1)


def sentence_vectors(words: Float[Tensor, "B J D"], is_end: Mask) -> tuple[Float[Tensor, "B K D"], Bool[Tensor, "B K"]]:
    """Return the states at the ends of sentences, in their order, and a mask that is True on real ones."""
    K = max_sentences(is_end)
    # Move the ends to the front, in their order.
    order = (~is_end).to(torch.uint8).argsort(stable=True, dim=1)[:, :K]
    vectors = words.gather(1, order[:, :, None].expand(-1, -1, words.shape[2]))
    return vectors, torch.arange(K, device=words.device) < is_end.sum(1, keepdim=True)


def max_sentences(is_end: Mask) -> int:
    """Return the largest number of sentences of a row, at least 1.

    On a GPU it is that of positions, because the host would have to wait for the number, which recorded kernels cannot
    do.
    """
    return max(1, int(is_end.sum(1).max())) if is_end.device.type == "cpu" else is_end.shape[1]


def concat_pairs(x: Embedded, mask: Mask) -> tuple[Float[Tensor, "B half E2"], Bool[Tensor, "B half"]]:
    """Concatenate neighbouring positions, zeros in place of padding; the mask is true if either position is real."""
    # A real position may be paired with padding, where cells repeat their last state.
    x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
    if x.shape[1] % 2:
        x = nn.functional.pad(x, (0, 0, 0, 1))
        mask = nn.functional.pad(mask, (0, 1))
    return x.unflatten(1, (-1, 2)).flatten(2), mask.unflatten(1, (-1, 2)).any(-1)


def segment_origin(mask: Mask, stride: int) -> Origin:
    """Return the source positions behind each annotation, if each belongs to a segment of `stride` positions."""
    B, J = mask.shape
    position = (torch.arange(J, device=mask.device) // stride).expand(B, J)
    segment_length = nn.functional.pad(mask, (0, -J % stride)).unflatten(1, (-1, stride)).sum(-1)  # [B, J']
    # A segment of padding has length 0; the clamp makes its fractions 0 / 1.
    return Origin(position, mask.double() / segment_length.gather(1, position).clamp_min(1))


def without_eos(mask: Mask) -> Mask:
    """Return the mask without each sentence's last position, unless it is the only one."""
    last = mask.sum(1, keepdim=True) - 1
    # An empty sentence consists of EOS only; attention needs at least one position.
    return mask & (torch.arange(mask.shape[1], device=mask.device) < last.clamp_min(1))


def final_shapes(options: EncoderConfig) -> tuple[StateShape, ...]:
    """Return the shapes of `Encoded.finals`, bottom layer first, for an encoder with these options."""
    return tuple(StateShape(CELLS[options.cell].state, size) for size in options.layer_sizes)


def reverse_words(x: Embedded, mask: Mask, has_end: bool = True) -> Embedded:
    """Reverse the words of each sentence; padding stays in place (Sutskever et al. 2014, section 3.3).

    The function is its own inverse.

    Args:
        x: Words, or their annotations.
        mask: True on real positions.
        has_end: True if the last real position is EOS, which then stays there.
    """
    words = mask.sum(1, keepdim=True) - int(has_end)
    positions = torch.arange(x.shape[1], device=x.device)[None, :]
    order = torch.where(positions < words, words - 1 - positions, positions)
    return x.gather(1, order[:, :, None].expand_as(x))


ENCODERS: Implementations[type[Encoder]] = Implementations(encoders.ENCODERS)
"""Class by `type` of `[model.encoder]`; names are stored in model folders."""
