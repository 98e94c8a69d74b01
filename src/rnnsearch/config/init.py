"""`[model.dropout]` and `[model.init]`, which models of every kind have. Imports no torch."""

from __future__ import annotations

from typing import Literal

from rnnsearch.config.choice import Options, by_name
from rnnsearch.config.table import Positive, Share, Table


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
    layer_outputs: Share = 0.0
    """Share of the units that each layer of a stack gives, anew at each position, before its residual sum (Chen et al.
    2018)."""
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
