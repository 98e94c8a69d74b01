"""`[model]` of a language model, and `[model.language_model]`: one inside a translation model.

Implemented in `models/language_model.py` and `models/fusion.py`. Names and options are stored in model folders: never
rename them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rnnsearch.config.cells import CellName
from rnnsearch.config.encoders import SOURCE_CHARACTERS, SourceCharactersConfig
from rnnsearch.config.options import Family, OneOf, Options, Size, SmallSize, Table, raise_problem
from rnnsearch.config.outputs import (
    INITS,
    OUTPUTS,
    DropoutConfig,
    GlorotOptions,
    InitConfig,
    OutputConfig,
    SoftmaxOutputOptions,
)
from rnnsearch.errors import ConfigError


class NetworkConfig(Options):
    """`[model.network]`: the network by which a language model reads the preceding tokens."""

    type: str
    """Network type, see below."""
    size: Size
    """Hidden size of each layer (D)."""


NETWORKS = Family[NetworkConfig]("network")


@NETWORKS.register
class RecurrentNetworkOptions(NetworkConfig):
    """A stack of recurrent cells over all preceding tokens (Mikolov et al. 2010; Zaremba et al. 2014)."""

    type: Literal["recurrent"] = "recurrent"
    cell: CellName
    """Recurrent cell, see below."""
    layers: SmallSize = 1
    """Number of layers."""
    residual_from: Annotated[int, Field(ge=2)] | None = None
    """First layer, counted from 1, with a residual connection (its input is added to its output)."""

    @model_validator(mode="after")
    def _validate_residual(self) -> RecurrentNetworkOptions:
        if self.residual_from is not None and self.residual_from > self.layers:
            must = f"must be at most model.network.layers ({self.layers}); got {self.residual_from}"
            raise_problem("residual_from", must)
        return self


@NETWORKS.register
class FeedForwardOptions(NetworkConfig):
    """One tanh layer over the last few tokens: a neural n-gram model (Bengio et al. 2003)."""

    type: Literal["feed-forward"] = "feed-forward"
    order: Annotated[int, Field(ge=2, le=100)]
    """n: each token is predicted from the n - 1 tokens before it."""
    direct: bool = False
    """Connect the embeddings of these tokens directly to the output (Bengio et al.'s W). Not with `tie`."""


class LanguageContextConfig(Table):
    """`[model.context]`: a bag-of-words summary of the previous sentences of `[data.context]`,
    s = tanh(W sum_j E x_j + b) over their words x_j (Wang & Cho 2016). See [Language
    models](language-models.md#larger-context).

    Requires `data.context.type = "streams"` and a recurrent network.
    """

    fusion: Literal["early", "late"] = "late"
    """`early`: s is a further input of the bottom layer. `late`: s is added through a gate to the memory that the
    output gate of the top layer reads; for `lstm` only."""
    size: Size
    """Size of s."""


class LanguageModelConfig(Table):
    """A language model, which has only a target: see [Language models](language-models.md).

    Only the `[model.dropout]` and `[model.init]` options of its components apply.
    """

    kind: Literal["language-model"] = "language-model"
    """Type of model."""
    embedding: Size
    """Size of the token embeddings (E)."""
    characters: Annotated[SourceCharactersConfig, OneOf(SOURCE_CHARACTERS)] | None = None
    network: Annotated[NetworkConfig, OneOf(NETWORKS)]
    context: LanguageContextConfig | None = None
    dropout: DropoutConfig = DropoutConfig()
    init: Annotated[InitConfig, OneOf(INITS, default="glorot")] = GlorotOptions()
    tie: Literal["none", "target"] = "none"
    """`target`: share the embedding matrix with the output layer; `network.size` must then equal `embedding`."""
    output: Annotated[OutputConfig, OneOf(OUTPUTS, default="softmax")] = SoftmaxOutputOptions()


# `[model.language_model]`: a language model inside a translation model.


class FusionConfig(Options):
    """`[model.language_model]`: a trained language model of the target language, frozen, with a learned gate that
    controls how much of it the readout uses. See [Language models](language-models.md#deep-and-cold-fusion).
    """

    type: str
    """Fusion method, see below."""
    folder: str
    """Folder of the language model, relative to the run file. It is read once, when training
    starts; its weights then belong to the translation model."""
    model: LanguageModelConfig | None = None
    """The language model's `[model]`, which training writes into the model folder."""
    trains_output_only: ClassVar[bool] = False
    """True if only the readout, the output layer and the gate are trained."""

    @property
    def trained(self) -> LanguageModelConfig:
        """The language model's `[model]`.

        Raises:
            ConfigError: If the config has only its folder, as a run file that was not resolved yet.
        """
        if self.model is None:
            raise ConfigError(["model.language_model.model: is missing: training writes it into the model folder"])
        return self.model


FUSIONS = Family[FusionConfig]("fusion")


@FUSIONS.register
class DeepFusionOptions(FusionConfig):
    """Deep fusion: one gate for the language model's state. Only the readout, the output layer and the gate are
    trained; all other weights are those of `training.begin_from` (Gulcehre et al. 2015).
    """

    type: Literal["deep"] = "deep"
    trains_output_only = True


@FUSIONS.register
class ColdFusionOptions(FusionConfig):
    """Cold fusion: one gate per unit of a layer over the language model's scores, trained from
    scratch with the rest of the model (Sriram et al. 2017).
    """

    type: Literal["cold"] = "cold"
    size: Size = 256
    """Hidden size of the layer over the language model's scores."""
