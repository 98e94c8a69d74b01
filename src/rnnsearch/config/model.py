"""`[model]` of a translation model.

`models/translation_model.py` builds the model from it, and `accel/verification.py` makes tiny models from it. Options
are stored in model folders: never rename them. docs/configuration.md is generated from the docstrings. Tests:
tests/models/test_model_checks.py, tests/models/test_translation_model.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from rnnsearch.config.attention import AttentionConfig
from rnnsearch.config.decoders import DECODERS, DecoderConfig
from rnnsearch.config.encoders import (
    ENCODERS,
    SOURCE_CHARACTERS,
    EncoderConfig,
    SourceCharactersConfig,
    TargetCharactersConfig,
)
from rnnsearch.config.language_model import FUSIONS, FusionConfig
from rnnsearch.config.options import OneOf, Size, SmallSize, Table
from rnnsearch.config.outputs import (
    INITS,
    OUTPUTS,
    DropoutConfig,
    GlorotOptions,
    InitConfig,
    OutputConfig,
    SoftmaxOutputOptions,
)
from rnnsearch.config.sources import SOURCES, SourcesConfig


class PointerConfig(Table):
    """`[model.pointer]`: a pointer network for target words outside the vocabulary, which can be
    copied from the source (Gulcehre et al. 2016).

    Copied words keep their original spelling. Only for `text.type = "words"` and a decoder with
    soft attention.
    """

    size: Size = 256
    """Hidden size of the switch between generating and copying a word."""
    layers: SmallSize = 1
    """Number of hidden layers of the switch; 2 in the paper."""


class ModelConfig(Table):
    """`[model]`"""

    kind: Literal["translation"] = "translation"
    """Type of model."""
    embedding: Size
    """Size of the word embeddings (E)."""
    encoder: Annotated[EncoderConfig, OneOf(ENCODERS)]
    attention: AttentionConfig | None = None
    decoder: Annotated[DecoderConfig, OneOf(DECODERS)]
    dropout: DropoutConfig = DropoutConfig()
    init: Annotated[InitConfig, OneOf(INITS, default="glorot")] = GlorotOptions()
    tie: Literal["none", "target", "all"] = "none"
    """`target`: share the target embedding matrix with the output layer. `all`: also share the
    source embedding, which needs `text.joint`. Both need a readout (`decoder.maxout` or
    `decoder.readout`; `decoder.size` with `sutskever`) of size `embedding`."""
    output: Annotated[OutputConfig, OneOf(OUTPUTS, default="softmax")] = SoftmaxOutputOptions()
    lexical: bool = False
    """Add the lexical model, which predicts target words directly from the attended source words (Nguyen & Chiang
    2018). Helps with rare words and small corpora. Only for a decoder with attention."""
    source_characters: Annotated[SourceCharactersConfig, OneOf(SOURCE_CHARACTERS)] | None = None
    target_characters: TargetCharactersConfig | None = None
    pointer: PointerConfig | None = None
    language_model: Annotated[FusionConfig, OneOf(FUSIONS)] | None = None
    sources: Annotated[SourcesConfig, OneOf(SOURCES)] | None = None

    @property
    def encoders(self) -> dict[str, EncoderConfig]:
        """The encoder of all sources, and those of single sources, by their paths."""
        encoders: dict[str, EncoderConfig] = {"model.encoder": self.encoder}
        if self.sources is not None:
            encoders |= {f"model.sources.encoders.{name}": encoder for name, encoder in self.sources.encoders.items()}
        return encoders

    @property
    def copies(self) -> bool:
        """True if unknown target words can be copied from the source."""
        return self.pointer is not None or self.decoder.copies


class SharingConfig(Table):
    """`[model.sharing]`: components that languages of a multi-way model share, in addition to the attention. See
    [Several languages](multilingual.md#share-encoders-and-decoders).
    """

    encoders: Literal["language", "all"] = "language"
    """`language`: one encoder per source language. `all`: one encoder for all source languages and,
    with `text.joint`, one source embedding."""
    decoders: Literal["language", "all"] = "language"
    """`language`: one decoder per target language. `all`: one decoder, target embedding and output
    layer, which need `text.joint`; a tag before each source sentence tells the language to write
    (Johnson et al. 2017)."""


class MultiwayConfig(ModelConfig):
    """A multi-way model: one encoder and one decoder per language, and one attention that all directions of
    `data.directions` share (Firat et al. 2016). See [Several languages](multilingual.md).

    The other tables of `[model]` are those of a translation model, and each of its directions is one.
    """

    kind: Literal["multiway"] = "multiway"  # type: ignore[assignment]
    """Type of model."""
    sharing: SharingConfig = SharingConfig()

    def bilingual(self) -> ModelConfig:
        """Return the `[model]` of one direction."""
        return ModelConfig(**{name: getattr(self, name) for name in ModelConfig.model_fields if name != "kind"})
