"""`[model.output]` of a run file: how the probability of a target symbol is put together. Imports no torch."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rnnsearch.config.choice import Options, by_name, raise_faults
from rnnsearch.config.faults import fault
from rnnsearch.config.table import Size


class OutputConfig(Options):
    """`[model.output]`: the softmax over all target symbols, or what is cheaper for large vocabularies.

    All but `softmax` need `model.tie = "none"` and `training.label_smoothing = 0.0`."""

    type: str
    """An output: see below."""


class SoftmaxOptions(OutputConfig):
    """One softmax over all symbols."""

    type: Literal["softmax"] = "softmax"


class HierarchicalOptions(OutputConfig):
    """p(class of y) p(y given its class): two softmaxes of few symbols each in training (Goodman 2001)."""

    type: Literal["hierarchical"] = "hierarchical"
    classes: Size | None = None
    """How many classes. Without it the square root of the vocabulary."""
    by: Literal["frequency", "neighbours"] = "frequency"
    """Which symbols are of one class: those equally frequent, in classes of equal shares of the square roots of counts
    (Mikolov et al. 2011); or those that stand after the same symbols, found by the exchange algorithm (Kneser & Ney
    1993; Uszkoreit & Brants 2008), as Brown et al. (1992) cluster words."""


class AdaptiveOptions(OutputConfig):
    """One softmax over the frequent symbols and the groups of the others, which read fewer numbers the rarer they are
    (Grave et al. 2017). For vocabularies whose symbols are in order of frequency, as those of words are."""

    type: Literal["adaptive"] = "adaptive"
    cutoffs: Annotated[list[Size], Field(min_length=1)]
    """Where groups begin: with [2000, 10000] the first 2,000 symbols are by themselves, the next 8,000 one group, all
    others another."""
    factor: Annotated[float, Field(ge=1.0, le=100.0)] = 4.0
    """Group k reads the readout's numbers divided by factor^k."""

    @model_validator(mode="after")
    def _fits(self) -> AdaptiveOptions:
        if any(later <= one for one, later in pairwise(self.cutoffs)):
            raise_faults([fault(("cutoffs",), f"must be in ascending order; got {self.cutoffs}")])
        return self


OUTPUTS: dict[str, type[OutputConfig]] = by_name(SoftmaxOptions, HierarchicalOptions, AdaptiveOptions)
