"""`[model]` of a run file, but for the options of its parts. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from rnnsearch.config.attention import AttentionConfig
from rnnsearch.config.characters import SOURCE_CHARACTERS, SourceCharactersConfig, TargetCharactersConfig
from rnnsearch.config.choice import OneOf, Options, by_name
from rnnsearch.config.decoders import DECODERS, DecoderConfig
from rnnsearch.config.encoders import ENCODERS, EncoderConfig
from rnnsearch.config.outputs import OUTPUTS, OutputConfig, SoftmaxOptions
from rnnsearch.config.table import Positive, Share, Size, Table


class DropoutConfig(Table):
    """`[model.dropout]`: shares of units set to zero in training. Masks are drawn once a batch."""

    embedding: Share = 0.0
    """Share of the embedded words' units set to zero."""
    annotations: Share = 0.0
    """Share of the annotations' units. Only for a decoder with attention."""
    attention: Share = 0.0
    """Share of the attention weights, as the context sees them. Only for a decoder with soft attention."""
    readout: Share = 0.0
    """Share of the readout's units, before the output layer."""
    word: Share = 0.0
    """Share of whole words whose vector is zeroed."""
    layers: Share = 0.0
    """Share of the units between the layers of a stack, anew at each position (Zaremba et al. 2014)."""
    state: Share = 0.0
    """Share of the state's units where cells feed it back, one mask a sequence (Gal & Ghahramani 2016)."""


class InitConfig(Options):
    """`[model.init]`: how parameters are drawn."""

    type: str
    """How parameters are drawn: see below."""
    recurrent: Literal["orthogonal", "same"] = "orthogonal"
    """Recurrent matrices are orthogonal, or drawn like the others."""
    biases: Literal["zero", "same"] = "zero"
    """Biases begin at zero, or are drawn like the others."""


class GlorotOptions(InitConfig):
    """Uniform within the square root of 6 / (in + out); embeddings and the output layer's rows with variance
    1 / columns."""

    type: Literal["glorot"] = "glorot"


class NormalOptions(InitConfig):
    """Normal with standard deviation `scale`; the alignment model apart (Bahdanau et al., appendix B.1)."""

    type: Literal["normal"] = "normal"
    scale: Positive
    """Standard deviation (`normal`) or bound (`uniform`)."""
    alignment_scale: Positive | None = None
    """Standard deviation of W_a and U_a of the alignment model, whose v_a is then zero. Must be given for a model with
    attention, and for no other."""


class UniformOptions(InitConfig):
    """Uniform within `scale`."""

    type: Literal["uniform"] = "uniform"
    scale: Positive


INITS: dict[str, type[InitConfig]] = by_name(GlorotOptions, NormalOptions, UniformOptions)


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

    @property
    def copies(self) -> bool:
        """Whether unknown target words are copied from the source."""
        return self.pointer is not None or self.decoder.copies
