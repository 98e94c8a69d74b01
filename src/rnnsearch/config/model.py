"""`[model]` of a run file, but for the options of its parts. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from rnnsearch.config.attention import AttentionConfig
from rnnsearch.config.characters import SOURCE_CHARACTERS, SourceCharactersConfig, TargetCharactersConfig
from rnnsearch.config.choice import OneOf
from rnnsearch.config.decoders import DECODERS, DecoderConfig
from rnnsearch.config.encoders import ENCODERS, EncoderConfig
from rnnsearch.config.fusions import FUSIONS, FusionConfig
from rnnsearch.config.init import INITS, DropoutConfig, GlorotOptions, InitConfig
from rnnsearch.config.outputs import OUTPUTS, OutputConfig, SoftmaxOptions
from rnnsearch.config.table import Size, Table


class PointerConfig(Table):
    """`[model.pointer]`: target words that the vocabulary lacks may be pointed at in the source (Gulcehre et al. 2016).

    What is copied so comes out as it stands there. Only for `text.type = "words"` and a decoder with soft attention."""

    size: Size = 256
    """Units of the switch between saying a word and pointing at one."""


class ModelConfig(Table):
    """`[model]`"""

    kind: Literal["translation"] = "translation"
    """What the model folder holds."""
    embedding: Size
    """Numbers in a word's vector (E)."""
    encoder: Annotated[EncoderConfig, OneOf("encoder", ENCODERS)]
    attention: AttentionConfig | None = None
    decoder: Annotated[DecoderConfig, OneOf("decoder", DECODERS)]
    dropout: DropoutConfig = DropoutConfig()
    init: Annotated[InitConfig, OneOf("init", INITS, default="glorot")] = GlorotOptions()
    tie: Literal["none", "target", "all"] = "none"
    """`target`: the output rows are the target embedding. `all`: the source embedding is, too; this needs `text.joint`.
    Both need a readout (`decoder.maxout` or `decoder.readout`; `decoder.size` with `sutskever`) as long as
    `embedding`."""
    output: Annotated[OutputConfig, OneOf("output", OUTPUTS, default="softmax")] = SoftmaxOptions()
    lexical: bool = False
    """The lexical model beside the decoder (Nguyen & Chiang 2018): the attended source words speak for themselves. Only
    for a decoder with attention."""
    source_characters: Annotated[SourceCharactersConfig, OneOf("composition", SOURCE_CHARACTERS)] | None = None
    target_characters: TargetCharactersConfig | None = None
    pointer: PointerConfig | None = None
    language_model: Annotated[FusionConfig, OneOf("fusion", FUSIONS)] | None = None

    @property
    def copies(self) -> bool:
        """Whether unknown target words are copied from the source."""
        return self.pointer is not None or self.decoder.copies
