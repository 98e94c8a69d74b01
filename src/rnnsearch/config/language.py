"""`[model]` of a language model. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rnnsearch.config.choice import OneOf, Options, by_name, raise_faults
from rnnsearch.config.faults import fault
from rnnsearch.config.init import INITS, DropoutConfig, GlorotOptions, InitConfig
from rnnsearch.config.names import Cell
from rnnsearch.config.outputs import OUTPUTS, OutputConfig, SoftmaxOptions
from rnnsearch.config.table import Few, Size, Table


class NetworkConfig(Options):
    """`[model.network]`: how a language model reads the symbols before the next."""

    type: str
    """A network: see below."""
    size: Size
    """Units of a layer (D)."""


class RecurrentOptions(NetworkConfig):
    """A stack of recurrent cells over all symbols before (Mikolov et al. 2010; Zaremba et al. 2014)."""

    type: Literal["recurrent"] = "recurrent"
    cell: Cell
    """A cell."""
    layers: Few = 1
    """Layers, one on top of the other."""
    residual_from: Annotated[int, Field(ge=2)] | None = None
    """The first layer, from 1, that adds what it reads to what it gives. Without it: none."""

    @model_validator(mode="after")
    def _fits(self) -> RecurrentOptions:
        if self.residual_from is not None and self.residual_from > self.layers:
            must = f"must be at most model.network.layers ({self.layers}); got {self.residual_from}"
            raise_faults([fault(("residual_from",), must)])
        return self


class FeedForwardOptions(NetworkConfig):
    """One tanh layer over the few symbols before: an n-gram model (Bengio et al. 2003)."""

    type: Literal["feed-forward"] = "feed-forward"
    order: Annotated[int, Field(ge=2, le=100)]
    """n: the next symbol is predicted from the n - 1 before it."""
    direct: bool = False
    """The output also reads the vectors of these symbols themselves (Bengio et al.'s W). Not with `tie`."""


NETWORKS: dict[str, type[NetworkConfig]] = by_name(RecurrentOptions, FeedForwardOptions)


class LanguageModelConfig(Table):
    """A language model, which has one side, the target: see [Language models](language-models.md).

    Of dropout and init it takes what has a part in it."""

    kind: Literal["language-model"] = "language-model"
    """What the model folder holds."""
    embedding: Size
    """Numbers in a symbol's vector (E)."""
    network: Annotated[NetworkConfig, OneOf("network", NETWORKS)]
    dropout: DropoutConfig = DropoutConfig()
    init: Annotated[InitConfig, OneOf("init", INITS, default="glorot")] = GlorotOptions()
    tie: Literal["none", "target"] = "none"
    """`target`: the output rows are the embedding; then `network.size` is as long as `embedding`."""
    output: Annotated[OutputConfig, OneOf("output", OUTPUTS, default="softmax")] = SoftmaxOptions()
