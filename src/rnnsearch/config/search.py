"""`[search]` of a run file. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rnnsearch.config.choice import raise_faults
from rnnsearch.config.faults import fault
from rnnsearch.config.names import LengthNorm, Stop
from rnnsearch.config.table import Count, NotNegative, Positive, Size, Table

SearchPrecision = Literal["auto", "fp32", "bf16", "int8"]


class EnsembleConfig(Table):
    """`[search.ensemble]`: models that translate together with that of the folder. Not in a run file: `rnnsearch
    ensemble` makes such a folder."""

    members: Annotated[list[str], Field(min_length=1)]
    """Their folders, in the model's own."""
    weights: Annotated[list[Positive], Field(min_length=2)]
    """Of the folder's own model, and of theirs."""
    mean: Literal["geometric", "arithmetic"] = "geometric"
    """Of their distributions: the renormalised product (AND), or the sum (OR)."""

    @model_validator(mode="after")
    def _one_weight_each(self) -> EnsembleConfig:
        if (wanted := len(self.members) + 1) != len(self.weights):
            raise_faults([fault(("weights",), f"must be one a model, {wanted}; got {len(self.weights)}")])
        return self


class SearchConfig(Table):
    """`[search]`: the defaults of `translate`, kept in the model folder."""

    beam: Annotated[int, Field(ge=1, le=1000)] = 5
    """Beam width; 1 is greedy search."""
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """Score = log-probability / length to this power. 0: the plain sum; 1: the mean a symbol."""
    length_norm: LengthNorm = "power"
    """What `length_penalty` is the exponent of: see below."""
    stop: Stop = "bound"
    """When a beam search of a sentence ends: see below."""
    coverage_penalty: NotNegative = 0.0
    """beta of beta * sum over j of log(min(sum over i of the weights, 1)), added to the score (Wu et al. 2016)."""
    max_ratio: Positive = 2.0
    """A translation has at most this many symbols a source symbol ..."""
    max_extra: Count = 20
    """... plus this many."""
    no_repeat_ngram: Count = 0
    """No sequence of so many symbols stands in a translation twice; 0: any may."""
    replace_unknown: Literal["none", "copy", "dictionary"] = "none"
    """What becomes of `<unk>`: it stays; the source word that it attends to most takes its place; or that word's entry
    in `dictionary`, if it has one. Only for `text.type = "words"` and a decoder with attention."""
    dictionary: str | None = None
    """A TSV file of source words and their translations. It is copied into the model folder."""
    attended_word: Literal["predicted", "read"] | None = None
    """Whose alignment a position's attention is said to be, in links, heat maps and where `<unk>` is replaced: that of
    the word predicted there, or of the one just read (Luong et al. 2015, footnote 14), of a decoder that attends after
    it reads. Not given: as `objective.supervision.word` has it, else the one predicted."""
    language_model: str | None = None
    """A language model's folder, beside the translation model in search ([shallow
    fusion](language-models.md#beside-a-translation-model)), over the same target symbols. Not in a run file: `rnnsearch
    tune` puts one into the model folder."""
    language_model_weight: Annotated[float, Field(ge=0.0, le=100.0)] = 0.1
    """beta of log p(y | x) + beta log p(y)."""
    ensemble: EnsembleConfig | None = None
    """More models that search at once."""
    batch_sentences: Size = 64
    """Sentences translated together."""
    candidates: Annotated[int, Field(ge=0, le=100)] = 0
    """The output layer is multiplied over a [candidate list](translating.md#candidate-lists) alone: this many likeliest
    translations (at most 100) of each source symbol of a batch, and the most frequent symbols. 0: over the whole
    vocabulary."""
    precision: SearchPrecision = "auto"
    """Of matrix products on the CPU; states and scores are fp32 in each. `auto`: bf16 where native code can be built
    and was faster so when timed, else fp32. `int8`: [products of bytes](translating.md#products-of-bytes), the fastest
    where the processor has them, and rounded most. `rnnsearch inspect` says what it is here."""
