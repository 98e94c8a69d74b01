"""`[model.source_characters]` and `[model.target_characters]`: words read and written by their characters. Imports no
torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rnnsearch.config.choice import Options, by_name, raise_faults
from rnnsearch.config.faults import fault
from rnnsearch.config.names import Cell
from rnnsearch.config.table import Few, Size, Table


class SourceCharactersConfig(Options):
    """`[model.source_characters]`: source words are made of their characters, so that a word which is not in the
    vocabulary is read, too. Only for `text.type = "words"`."""

    type: str
    """How: see below."""
    words: Literal["all", "unknown"] = "all"
    """All words; or only those that are not in the vocabulary, beside a table of the others (Luong & Manning 2016)."""


class _OfVectors(SourceCharactersConfig):
    embedding: Size = 64
    """Numbers in a character's vector."""


class LSTMOptions(_OfVectors):
    """The last state of an LSTM that reads the characters, of `model.embedding` units (Luong & Manning 2016)."""

    type: Literal["lstm"] = "lstm"
    layers: Few = 1
    """Layers, one on top of the other."""


class BiLSTMOptions(_OfVectors):
    """A linear layer over the last states of two LSTMs, one a direction (Ling et al. 2015)."""

    type: Literal["bilstm"] = "bilstm"
    size: Size = 128
    """Units a direction."""


class CNNOptions(_OfVectors):
    """Filters over windows of characters, the most of each, and highway layers (Kim et al. 2016; Costa-jussa &
    Fonollosa 2016)."""

    type: Literal["cnn"] = "cnn"
    widths: Annotated[int, Field(ge=1, le=20)] = 6
    """Windows are of 1 to so many characters."""
    filters: Size = 25
    """Filters over windows of w characters: so many times w."""
    highway: Annotated[int, Field(ge=0, le=100)] = 1
    """Highway layers."""


class NGramsOptions(SourceCharactersConfig):
    """The sum of the vectors of its character n-grams (after Ataman & Federico 2018; hashed as by Bojanowski et al.
    2017)."""

    type: Literal["ngrams"] = "ngrams"
    shortest: Annotated[int, Field(ge=1, le=20)] = 3
    """Characters of the shortest n-grams."""
    longest: Annotated[int, Field(ge=1, le=20)] = 5
    """Characters of the longest."""
    buckets: Size = 20000
    """Vectors, which n-grams are hashed to."""

    @model_validator(mode="after")
    def _fits(self) -> NGramsOptions:
        if self.shortest > self.longest:
            must = f"must be at least model.source_characters.shortest ({self.shortest}); got {self.longest}"
            raise_faults([fault(("longest",), must)])
        return self


SOURCE_CHARACTERS: dict[str, type[SourceCharactersConfig]] = by_name(
    LSTMOptions, BiLSTMOptions, CNNOptions, NGramsOptions
)


class TargetCharactersConfig(Table):
    """`[model.target_characters]`: unknown target words are spelled, character by character (the hybrid of Luong &
    Manning 2016). Only for `text.type = "words"` and a decoder with attention."""

    cell: Cell = "lstm"
    """A cell: see below."""
    size: Size = 256
    """Units."""
    layers: Few = 1
    """Layers, one on top of the other; the first begins at what the word decoder is about to say."""
    embedding: Size = 64
    """Numbers in a character's vector."""
