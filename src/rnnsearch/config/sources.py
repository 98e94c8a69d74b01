"""`[model.sources]`: the combination of several sources.

Implemented in `models/sources.py`; `model_rules.py` and `rules.py` read the options and traits. `type` names and
options are stored in model folders: never rename them. docs/configuration.md is generated from the docstrings. Tests:
tests/models/test_sources.py.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rnnsearch.config.encoders import ENCODERS, EncoderConfig
from rnnsearch.config.options import Family, OneOf, Options

ContextCombination = Literal["concatenation", "mean"]


class SourcesConfig(Options):
    """`[model.sources]`: a model that reads several sources, such as the same sentence in two
    languages. Each source of `data.source` has its own embeddings, encoder and attention; the last
    states of the encoders and the contexts are combined. `[model.sources.encoders.NAME]` gives the
    source NAME another encoder than `[model.encoder]`. See [Several
    sources](multilingual.md#several-sources).
    """

    type: str
    """Combination of the encoders' last states, see below."""
    encoders: dict[str, Annotated[EncoderConfig, OneOf(ENCODERS)]] = Field(default={})
    """Encoders of single sources by their names, each a table like `[model.encoder]`, which the other sources have."""
    needs_memory_cells: ClassVar[bool] = False
    """True if the last states must have memory cells and start the decoder through a bridge."""
    needs_equal_sizes: ClassVar[bool] = False
    """True if the encoders of all sources must have the same sizes."""

    @property
    def averages_contexts(self) -> bool:
        """True if the context is the mean of the sources' contexts, False if it is their concatenation."""
        return getattr(self, "contexts", "mean") == "mean"

    def encoder(self, source: str, default: EncoderConfig) -> EncoderConfig:
        """Return the encoder of a source, given the encoder of sources without their own."""
        return self.encoders.get(source, default)


SOURCES = Family[SourcesConfig]("source combination")


class _ConcatenatedContexts(SourcesConfig):
    contexts: ContextCombination = "concatenation"
    """Combination of the contexts: all of them (Zoph & Knight 2016, section 4), or their mean, which
    needs annotations of equal size."""


@SOURCES.register
class ConcatenatedSourcesOptions(_ConcatenatedContexts):
    """h = tanh(W [h_1; h_2]) and c = c_1 + c_2 (Zoph & Knight 2016, section 3.1). A decoder without a
    bridge reads [h_1; h_2] in the layer of its first state.
    """

    type: Literal["concatenation"] = "concatenation"


@SOURCES.register
class ChildSumSourcesOptions(_ConcatenatedContexts):
    """An LSTM step with one forget gate per source, as in a Child-Sum Tree-LSTM (Zoph & Knight 2016,
    section 3.2). For encoders with memory cells and decoders with a bridge.
    """

    type: Literal["child-sum"] = "child-sum"
    needs_memory_cells = True


@SOURCES.register
class MeanSourcesOptions(SourcesConfig):
    """The mean of the last states, and of the contexts (early averaging: Firat et al. 2016, "Zero-resource
    translation with multi-lingual neural machine translation"). A missing source is left out of it.
    """

    type: Literal["mean"] = "mean"
    needs_equal_sizes = True
