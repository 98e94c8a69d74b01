"""`[model.output]`, `[model.dropout]` and `[model.init]` of a run file.

Output layers are implemented in `models/outputs.py` (`softmax`) and `models/class_outputs.py`, initialisation in
`models/layers.py`; each module of `models` applies the dropout rates that are for it. `CONFLICTS` in `config/rules.py`
lists the options that no output with `predicts_class` supports. `type` names and options are stored in model folders:
never rename them. docs/configuration.md is generated from the docstrings. Tests: tests/models/test_outputs.py,
tests/models/test_class_outputs.py, tests/models/test_initialise.py.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rnnsearch.config.options import Family, Fraction, Options, Positive, Size, Table, raise_problem


class OutputConfig(Options):
    """`[model.output]`: a softmax over the target vocabulary, or a cheaper output layer for large vocabularies.

    All types except `softmax` need `model.tie = "none"` and `training.label_smoothing = 0.0`.
    """

    type: str
    """Output layer, see below."""
    predicts_class: ClassVar[bool] = False
    """True if classes of tokens are predicted before the token, so that no single product computes all scores."""


OUTPUTS = Family[OutputConfig]("output")


@OUTPUTS.register
class SoftmaxOutputOptions(OutputConfig):
    """One softmax over the vocabulary."""

    type: Literal["softmax"] = "softmax"


@OUTPUTS.register
class HierarchicalOptions(OutputConfig):
    """Class-based softmax, p(class of y) p(y given its class): training computes two small softmaxes (Goodman 2001)."""

    type: Literal["hierarchical"] = "hierarchical"
    predicts_class = True
    classes: Size | None = None
    """Number of classes. Default: the square root of the vocabulary size."""
    by: Literal["frequency", "neighbours"] = "frequency"
    """Assignment of tokens to classes: by `frequency`, such that every class has the same total of square roots of
    counts (Mikolov et al. 2011), or by their preceding tokens (`neighbours`), with the exchange algorithm (Kneser & Ney
    1993; Uszkoreit & Brants 2008) for the criterion of Brown et al. (1992)."""


@OUTPUTS.register
class TreeOptions(OutputConfig):
    """Binary tree over the vocabulary (Morin & Bengio 2005), the Huffman tree of the counts (Mikolov et al. 2013):
    training computes one binary decision per node on the way to a token.
    """

    type: Literal["tree"] = "tree"
    predicts_class = True


@OUTPUTS.register
class AdaptiveOptions(OutputConfig):
    """Adaptive softmax: the most frequent tokens have their own softmax, rarer tokens are grouped and read a smaller
    projection of the readout (Grave et al. 2017). The vocabulary must be sorted by frequency, as that of words is.
    """

    type: Literal["adaptive"] = "adaptive"
    predicts_class = True
    cutoffs: Annotated[list[Size], Field(min_length=1)]
    """Start of each group: [2000, 10000] means the 2,000 most frequent tokens, one group of the
    next 8,000 and one of all others."""
    factor: Annotated[float, Field(ge=1.0, le=100.0)] = 4.0
    """Group k reads a projection of the readout whose size is divided by factor^k."""

    @model_validator(mode="after")
    def _validate_cutoffs(self) -> AdaptiveOptions:
        if any(later <= earlier for earlier, later in pairwise(self.cutoffs)):
            raise_problem("cutoffs", f"must be in ascending order; got {self.cutoffs}")
        return self


# `[model.dropout]` and `[model.init]`, for translation and language models.


class DropoutConfig(Table):
    """`[model.dropout]`: dropout rates in training, from 0 (off) to less than 1. Raise them for
    small corpora. Masks are sampled once per batch.
    """

    embedding: Fraction = 0.0
    """Dropout rate of the word embeddings' units."""
    annotations: Fraction = 0.0
    """Dropout rate of the annotations (encoder outputs). Only for a decoder with attention."""
    attention: Fraction = 0.0
    """Dropout rate of the attention weights from which the context is computed. Only for a decoder
    with soft attention."""
    readout: Fraction = 0.0
    """Dropout rate of the readout, the input of the output layer."""
    word: Fraction = 0.0
    """Rate of word dropout, which zeroes whole word embeddings."""
    layers: Fraction = 0.0
    """Dropout rate between stacked layers, with a new mask at each position (Zaremba et al. 2014)."""
    layer_outputs: Fraction = 0.0
    """Dropout rate of the output of each stacked layer, before the residual sum, with a new mask at
    each position (Chen et al. 2018)."""
    feeding: Fraction = 0.0
    """Dropout rate of the vector that a decoder with feeding reads again, with a new mask at each position. Luong et
    al. (2015) apply the same rate to the input of each layer: `embedding`, `layers` and `feeding`."""
    state: Fraction = 0.0
    """Dropout rate of the recurrent state, with one mask per sequence (Gal & Ghahramani 2016)."""


class InitConfig(Options):
    """`[model.init]`: parameter initialisation."""

    type: str
    """Initialisation scheme, see below."""
    recurrent: Literal["orthogonal", "same"] = "orthogonal"
    """Initialise recurrent matrices as orthogonal matrices, or the same way as all others."""
    biases: Literal["zero", "same", "none"] = "zero"
    """Initialise biases with zeros, or the same way as all other parameters. `none` also keeps them at zero in
    training, as if the model had none (Luong et al. 2015)."""


INITS = Family[InitConfig]("init")


@INITS.register
class GlorotOptions(InitConfig):
    """Uniform between plus and minus sqrt(6 / (in + out)); embeddings and output rows have variance 1 / columns."""

    type: Literal["glorot"] = "glorot"


@INITS.register
class NormalOptions(InitConfig):
    """Normal with standard deviation `scale`, except for the alignment model (Bahdanau et al., appendix B.1)."""

    type: Literal["normal"] = "normal"
    # `uniform` has the same option: the page shows one text for both.
    scale: Positive
    """Standard deviation (`normal`), or bound of the interval (`uniform`)."""
    alignment_scale: Positive | None = None
    """Standard deviation of the alignment model's W_a and U_a; v_a is initialised with zeros.
    Required for a model with attention, and an error for any other."""


@INITS.register
class UniformOptions(InitConfig):
    """Uniform between -`scale` and `scale`."""

    type: Literal["uniform"] = "uniform"
    scale: Positive  # documented at `NormalOptions.scale`
