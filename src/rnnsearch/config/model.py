"""`[model]` of a run file. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rnnsearch.config.table import Count, Positive, Share, Size, Table


class EncoderConfig(Table):
    """`[model.encoder]`"""

    type: str
    cell: str
    size: Size
    """Units a direction."""
    layers: Size | None = None
    direction: Literal["forward", "bottom", "both"] | None = None
    """What the layers of a stack read: all forward; the bottom one both ways (Wu et al. 2016); or all both ways."""
    residual_from: Annotated[int, Field(ge=2)] | None = None
    """The first layer, from 1, to which a residual connection is added; without it there is none."""
    reverse: bool | None = None
    """Read the source's words from last to first, its end symbol last all the same (Sutskever et al. 2014)."""
    reduce: Size | None = None
    """How many layers at the top of a pyramid halve the positions."""


class AttentionConfig(Table):
    """`[model.attention]`"""

    score: str = "additive"
    size: Size | None = None
    """Units of the alignment model's hidden layer (of all heads together)."""
    heads: Size | None = None
    max_source: Size | None = None
    """Source symbols, the end symbol among them, that a location score has weights for."""
    window: str = "global"
    width: Size | None = None
    """D of a local window [p_t - D, p_t + D] (10 in Luong et al.)."""
    normaliser: str = "softmax"
    features: list[str] = Field(default=[])
    fertility: Positive | None = None
    """N, the most target symbols that a source symbol may have, of linguistic coverage (2 in Tu et al.)."""
    coverage_size: Size | None = None
    """d, numbers a source position of neural coverage (10 in Tu et al.)."""
    neighbours: Count | None = None
    """k of the window [j - k, j + k] that the Markov and local-fertility features see (1 in Cohn et al.)."""


class DecoderConfig(Table):
    """`[model.decoder]`"""

    type: str
    cell: str | None = None
    size: Size
    maxout: Size | None = None
    """Units of the maxout layer after pairs are pooled (l in the paper)."""
    readout: Size | None = None
    """Units of the layer under the softmax where that is not a maxout layer (h~ of Luong et al., Nematus's t)."""
    layers: Size | None = None
    residual_from: Annotated[int, Field(ge=2)] | None = None
    """The first layer, from 1, to which a residual connection is added; without it there is none."""
    bridge: str | None = None
    """How the first states are made from the encoder's last ones."""
    transitions: Size | None = None
    """Transitions of one step after the one that reads the context (bideep: after each layer's first)."""
    slots: Size | None = None
    """Cells of the external memory (n in the paper)."""
    slot_size: Size | None = None
    """Numbers in each cell of the external memory (m in the paper)."""
    first: Literal["bos", "zero"] = "bos"
    """What stands before the first target word: a learned BOS embedding, or zeros (the papers)."""


class DropoutConfig(Table):
    """`[model.dropout]`: shares of units set to zero in training, drawn once a batch."""

    embedding: Share = 0.0
    annotations: Share = 0.0
    readout: Share = 0.0
    word: Share = 0.0
    """Share of whole words whose embedding is zeroed."""
    layers: Share = 0.0
    """Between the layers of stacked encoders and decoders, anew at each position (Zaremba et al. 2014)."""
    state: Share = 0.0
    """On the state that cells feed back, one mask a sequence (Gal & Ghahramani 2016)."""


class InitConfig(Table):
    """`[model.init]`"""

    type: Literal["glorot", "normal", "uniform"] = "glorot"
    scale: Positive | None = None
    """Standard deviation (normal) or bound (uniform)."""
    alignment_scale: Positive | None = None
    """Standard deviation of the alignment model's W_a and U_a, whose v_a is then zero (normal only)."""
    recurrent: Literal["orthogonal", "same"] = "orthogonal"


class ModelConfig(Table):
    """`[model]`"""

    embedding: Size
    encoder: EncoderConfig
    attention: AttentionConfig | None = None
    decoder: DecoderConfig
    dropout: DropoutConfig = DropoutConfig()
    init: InitConfig = InitConfig()
    tie: Literal["none", "target", "all"] = "none"
    """`target`: target embedding = output rows; `all`: source embedding too (needs `text.joint`)."""
    lexical: bool = False
    """The lexical model beside the decoder (Nguyen & Chiang 2018): the attended source words speak for themselves."""
