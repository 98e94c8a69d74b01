"""`[model.encoder]`, and the character-level options of source and target words.

Implemented in `models/encoders.py`, `models/composition.py` and `models/speller.py`; `model_rules.py` and `rules.py`
read the traits. `type` names and options are stored in model folders: never rename them. docs/configuration.md is
generated from the docstrings. Tests: tests/models/test_encoders.py, tests/models/test_composition.py,
tests/models/test_speller.py, tests/models/test_model_checks.py.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rnnsearch.config.cells import CELLS, CellName, LayerState
from rnnsearch.config.options import Family, Options, Size, SmallSize, Table, problem, raise_problem, raise_problems


class EncoderConfig(Options):
    """`[model.encoder]`: the network that reads the source and computes an annotation per position."""

    type: str
    """Encoder type, see below."""
    cell: CellName
    """Recurrent cell, see below."""
    size: Size
    """Hidden size per direction. Annotations of a bidirectional top layer have twice this size."""
    reads_end: bool = True
    """Read the end token of each source sentence, so that attention can use it. If `false`, only
    words have annotations, as in OpenNMT-py and in the code of Luong et al. (2015)."""
    one_vector: ClassVar[bool] = False
    """True if the last states can summarise the sentence in one vector, as decoders without attention need."""
    reads_sentences: ClassVar[bool] = False
    """True if the source is the previous sentences of a document, which the encoder reads one by one."""
    selects_words: ClassVar[bool] = False
    """True if annotations and decoder see only some of the source words, which the encoder selects."""

    @property
    def reads_forward(self) -> bool:
        """True if no annotation depends on later source tokens."""
        return False

    @property
    @abstractmethod
    def layer_sizes(self) -> tuple[int, ...]:
        """The size of each layer's last state, bottom first; the last one is the annotation size."""

    @property
    def annotation_size(self) -> int:
        """The size of an annotation (H)."""
        return self.layer_sizes[-1]

    @property
    def last_states(self) -> tuple[LayerState, ...]:
        """The last state of each layer, bottom first."""
        return tuple(LayerState(CELLS[self.cell].carries, size) for size in self.layer_sizes)


ENCODERS = Family[EncoderConfig]("encoder")


@ENCODERS.register
class BidirectionalOptions(EncoderConfig):
    """A forward and a backward recurrent layer; annotation = [forward; backward] (Bahdanau et al., eq. 7)."""

    type: Literal["bidirectional"] = "bidirectional"

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return (2 * self.size,)


@ENCODERS.register
class UnidirectionalOptions(EncoderConfig):
    """One recurrent layer, left to right (Cho et al., section 2)."""

    type: Literal["unidirectional"] = "unidirectional"
    reverse: bool = False
    """Read the words from last to first, followed by the end token (Sutskever et al.). Annotations
    keep the order of the text."""
    one_vector = True

    @property
    def reads_forward(self) -> bool:
        return not self.reverse

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return (self.size,)


class _LayeredEncoder(EncoderConfig):
    layers: SmallSize
    """Number of layers."""

    @property
    def bidirectional_layers(self) -> tuple[bool, ...]:
        """True for each bidirectional layer, bottom first."""
        return (True,) * self.layers

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return tuple(self.size * (1 + bidirectional) for bidirectional in self.bidirectional_layers)


@ENCODERS.register
class StackedOptions(_LayeredEncoder):
    """Stacked recurrent layers, unidirectional or bidirectional, with optional residual connections
    (Sutskever et al.; Luong et al.; GNMT; RNMT+).
    """

    type: Literal["stacked"] = "stacked"
    direction: Literal["forward", "bottom", "both"]
    """Reading direction: all layers forward, only the bottom layer bidirectional (GNMT), or all
    bidirectional (RNMT+)."""
    residual_from: Annotated[int, Field(ge=2)] | None = None
    """First layer, counted from 1, with a residual connection (its input is added to its output).
   """
    reverse: bool = False
    """Read the words from last to first, followed by the end token (Sutskever et al.). Annotations
    keep the order of the text."""
    one_vector = True

    @property
    def reads_forward(self) -> bool:
        return self.direction == "forward" and not self.reverse

    @property
    def bidirectional_layers(self) -> tuple[bool, ...]:
        if self.direction == "bottom":
            return (True,) + (False,) * (self.layers - 1)
        return (self.direction == "both",) * self.layers

    @model_validator(mode="after")
    def _validate(self) -> StackedOptions:
        problems = []
        if self.direction == "bottom" and self.layers == 1:
            must = '"bottom" needs at least 2 layers (model.encoder.layers); got 1 (use type = "bidirectional")'
            problems.append(problem(("direction",), must))
        # A bidirectional bottom layer is twice as wide as layer 2, so that layer 2 cannot add its input to its output.
        first = 3 if self.direction == "bottom" else 2
        if self.residual_from is not None and not first <= self.residual_from <= self.layers:
            why = ", because the bidirectional bottom layer is twice as wide as layer 2" if first == 3 else ""
            must = f"must be a layer from {first} to {self.layers} (model.encoder.layers){why}"
            problems.append(problem(("residual_from",), f"{must}; got {self.residual_from}"))
        if self.reverse and self.direction == "both":
            problems.append(problem(("reverse",), 'has no effect with direction = "both"; remove it'))
        raise_problems(problems)
        return self


@ENCODERS.register
class PyramidOptions(_LayeredEncoder):
    """Bidirectional layers; the upper ones halve the number of positions (Chan et al. 2016). For long sources."""

    type: Literal["pyramid"] = "pyramid"
    reduce: SmallSize
    """Number of layers, from the top, that halve the number of positions."""

    @model_validator(mode="after")
    def _validate(self) -> PyramidOptions:
        if self.reduce > self.layers:
            must = f"must be at most model.encoder.layers ({self.layers}); got {self.reduce}"
            raise_problem("reduce", must)
        return self


@ENCODERS.register
class ConvolutionalOptions(EncoderConfig):
    """Convolutions over the tokens, max-pooling over segments, highway layers, and a bidirectional
    recurrent layer over the segments (Lee et al. 2017). For characters.
    """

    type: Literal["convolutional"] = "convolutional"
    widths: Annotated[int, Field(ge=1, le=20)] = 8
    """Largest filter width in tokens; all widths from 1 to this are used."""
    filters: Size
    """Number of filters per width."""
    stride: Annotated[int, Field(ge=1, le=20)]
    """Segment length in tokens (5 in Lee et al.)."""
    highway: Annotated[int, Field(ge=0, le=100)] = 4
    """Number of highway layers."""

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return (2 * self.size,)


@ENCODERS.register
class RationaleOptions(EncoderConfig):
    """A forward and a backward recurrent layer over a subset of the words, selected by a second network (Lei et al.
    2016). The decoder sees nothing else of the source. Trained by `[objective.rationale]`.
    """

    type: Literal["rationale"] = "rationale"
    selects_words = True
    chooser: Size
    """Hidden size per direction of the network that reads the whole source and selects words."""

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return (2 * self.size,)

    @model_validator(mode="after")
    def _validate_end(self) -> RationaleOptions:
        if not self.reads_end:
            must = "must be true for the rationale encoder, which may select nothing but the end token"
            raise_problem("reads_end", must)
        return self


@ENCODERS.register
class FeedforwardOptions(EncoderConfig):
    """Feed-forward layers at each position, which see no other position; the decoder starts from the mean of the
    annotations (Xu et al. 2015). For image regions.
    """

    type: Literal["feedforward"] = "feedforward"
    # Not an option: the last state, the mean, is one vector like that of this cell.
    cell: ClassVar[CellName] = "tanh"  # type: ignore[misc]
    layers: SmallSize = 1
    """Number of layers."""

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return (self.size,)


@ENCODERS.register
class HierarchicalOptions(EncoderConfig):
    """A recurrent layer over the words of each sentence, and one over the last states of the sentences; annotations are
    the states of the upper layer, one per sentence (Sordoni et al. 2015; Serban et al. 2016). Only for streams of
    previous sentences, in `[model.sources.encoders]`.
    """

    type: Literal["hierarchical"] = "hierarchical"
    one_vector = True
    reads_sentences = True

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        return (self.size,)

    @model_validator(mode="after")
    def _validate_end(self) -> HierarchicalOptions:
        if not self.reads_end:
            must = "must be true for the hierarchical encoder, which reads the last sentence up to its end token"
            raise_problem("reads_end", must)
        return self


# `[model.source_characters]`, `[model.characters]` of a language model, and `[model.target_characters]`: words encoded
# and decoded by their characters.


class SourceCharactersConfig(Options):
    """Word embeddings composed from characters, so that words outside the vocabulary can be read: those of source words
    (`[model.source_characters]`), or of the words that a language model reads (`[model.characters]`). Only for
    `text.type = "words"`.
    """

    type: str
    """Composition function, see below."""
    words: Literal["all", "unknown"] = "all"
    """Compose all words, or only those outside the vocabulary and look up the others (Luong & Manning 2016)."""

    def size_problem(self, size: int) -> str | None:
        """Return the problem with vectors of this size, starting with an option, or None if there is none."""
        return None


SOURCE_CHARACTERS = Family[SourceCharactersConfig]("composition")


class _CharacterEmbeddingOptions(SourceCharactersConfig):
    embedding: Size = 64
    """Size of the character embeddings."""


@SOURCE_CHARACTERS.register
class LSTMCompositionOptions(_CharacterEmbeddingOptions):
    """The last state of an LSTM over the characters, with `model.embedding` units (Luong & Manning 2016)."""

    type: Literal["lstm"] = "lstm"
    layers: SmallSize = 1
    """Number of layers."""


@SOURCE_CHARACTERS.register
class BiLSTMOptions(_CharacterEmbeddingOptions):
    """A linear layer over the last states of a forward and a backward LSTM (Ling et al. 2015)."""

    type: Literal["bilstm"] = "bilstm"
    size: Size = 128
    """Hidden size per direction."""


@SOURCE_CHARACTERS.register
class CNNOptions(_CharacterEmbeddingOptions):
    """Convolutions over characters, max-pooling and highway layers (Kim et al. 2016; Costa-jussa & Fonollosa 2016)."""

    type: Literal["cnn"] = "cnn"
    widths: Annotated[int, Field(ge=1, le=20)] = 6
    """Largest filter width in characters; all widths from 1 to this are used."""
    filters: Size = 25
    """Number of filters of width w, divided by w."""
    max_filters: Size | None = None
    """Maximum number of filters of one width."""
    highway: Annotated[int, Field(ge=0, le=100)] = 1
    """Number of highway layers."""
    projection: bool = True
    """Apply a linear layer to the highway output. If false, `model.embedding` must be the number of all filters (Kim et
    al. 2016)."""

    @property
    def filters_by_width(self) -> dict[int, int]:
        """Number of filters by width."""
        widths = range(1, self.widths + 1)
        return {width: min(width * self.filters, self.max_filters or width * self.filters) for width in widths}

    def size_problem(self, size: int) -> str | None:
        total = sum(self.filters_by_width.values())
        if self.projection or size == total:
            return None
        return f"projection: must be true, or model.embedding must be the number of all filters ({total}); got {size}"


@SOURCE_CHARACTERS.register
class NGramsOptions(SourceCharactersConfig):
    """The sum of the embeddings of the word's character n-grams (after Ataman & Federico 2018;
    hashed as in Bojanowski et al. 2017).
    """

    type: Literal["ngrams"] = "ngrams"
    shortest: Annotated[int, Field(ge=1, le=20)] = 3
    """Length of the shortest n-grams in characters."""
    longest: Annotated[int, Field(ge=1, le=20)] = 5
    """Length of the longest n-grams in characters."""
    buckets: Size = 20000
    """Number of embeddings that n-grams are hashed to; more buckets mean fewer collisions."""

    @model_validator(mode="after")
    def _validate_lengths(self) -> NGramsOptions:
        if self.shortest > self.longest:
            must = f"must be at least shortest ({self.shortest}); got {self.longest}"
            raise_problem("longest", must)
        return self


class TargetCharactersConfig(Table):
    """`[model.target_characters]`: a character-level decoder that spells unknown target words (the hybrid model of
    Luong & Manning 2016). Only for `text.type = "words"` and a decoder with attention.
    """

    cell: CellName = "lstm"
    """Recurrent cell, see below."""
    size: Size = 256
    """Hidden size."""
    layers: SmallSize = 1
    """Number of layers; the first starts from the word decoder's context and state at the unknown word."""
    embedding: Size = 64
    """Size of the character embeddings."""
    reads_hidden: bool = False
    """Start from the context and h_t with input feeding, as in the paper; by default from the
    context and h~_t, which is fed back. Only for `luong-input-feeding`."""
