"""`[objective]` of a run file. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rnnsearch.config.table import Positive, Share, Size, Table


class FertilityConfig(Table):
    """`[objective.fertility]`: the global fertility penalty (Cohn et al. 2016)."""

    size: Size
    """Units of the hidden layer that mean and variance of a source symbol's fertility are read from."""
    weight: Positive = 1.0


class SupervisionConfig(Table):
    """`[objective.supervision]`: attention learns given word alignments (Liu et al. 2016)."""

    type: str
    weight: Positive = 1.0
    unaligned: Literal["skip", "end"] = "skip"
    """Target symbols without a link: left out of the loss, or sent to the source's end symbol."""
    word: Literal["predicted", "read"] = "predicted"
    """Whose links the weights of a position learn: those of the word it predicts, or of the word it has just read.
    A model of read words aligns better and translates worse; its alignments are taken from the position after."""


class ReinforceConfig(Table):
    """`[objective.reinforce]`: how hard attention is trained (Xu et al. 2015)."""

    baseline: str
    weight: Positive = 1.0
    entropy: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of the entropy of the attention weights, which keeps them from settling too early."""
    decay: Share | None = None
    """How much the average baseline keeps of what it was, each update (0.9 in Xu et al.)."""


class ObjectiveConfig(Table):
    """`[objective]`: what training minimises besides -log p(y|x). The weights are those of sums over a sentence."""

    doubly_stochastic: Positive | None = None
    """lambda of lambda * sum_j (1 - sum_i alpha_ij)^2 (Xu et al. 2015)."""
    fertility: FertilityConfig | None = None
    supervision: SupervisionConfig | None = None
    reinforce: ReinforceConfig | None = None
    symmetry: Positive | None = None
    """Weight of the agreement of two models, one a direction, that are trained together (Cohn et al. 2016)."""

    @property
    def aligns_read_words(self) -> bool:
        """Whether the alignment of a target symbol is in the weights of the position after it."""
        return self.supervision is not None and self.supervision.word == "read"
