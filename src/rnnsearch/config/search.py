"""`[search]` of a run file: default search options.

`search/options.py` combines it with the options of a request; `run_file.override_search` changes the options of a
stored model. Names and options are stored in model folders: never rename them. docs/configuration.md is generated from
the docstrings. Tests: tests/test_config.py, tests/search/test_penalties.py, tests/models/test_model_checks.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rnnsearch.config.options import (
    Count,
    NameIn,
    Positive,
    Size,
    Table,
    problem,
    raise_problems,
)

# Not a family of options classes: the functions are in `search.ranking`, which the runtime imports without pydantic.
LENGTH_NORMS = {
    "power": "The length.",
    "gnmt": "(5 + length) / 6 (Wu et al. 2016).",
    "power-with-bos": "The length including the BOS token (OpenNMT-py's `avg`).",
}
"""Functions of the translation's length that `length_penalty` is applied to, with their descriptions."""
STOPS = {
    "bound": "Stop when `beam` hypotheses have finished, or when no unfinished one can still become better. A finished "
    "hypothesis is replaced by the next best one; one cut off at the maximum length ranks below all finished ones.",
    "top": "Stop when the best continuation of a step ends its sentence (OpenNMT-py). The slot of a finished "
    "hypothesis stays empty until the next step; one cut off at the maximum length counts as finished.",
}
"""Stopping criteria of beam search by name, with their descriptions."""

SearchPrecision = Literal["auto", "fp32", "bf16", "int8"]


class EnsembleConfig(Table):
    """`[search.ensemble]`: further models that translate together with the model of the folder. Not
    in a run file; `rnnsearch ensemble` creates such folders.
    """

    members: Annotated[list[str], Field(min_length=1)]
    """Folders of the further models, inside the model folder."""
    weights: Annotated[list[Positive], Field(min_length=2)]
    """Weights of the folder's own model and of each member."""
    mean: Literal["geometric", "arithmetic"] = "geometric"
    """Combination of the distributions: renormalised product (`geometric`, AND) or sum (`arithmetic`, OR)."""

    @model_validator(mode="after")
    def _validate_weights(self) -> EnsembleConfig:
        expected = len(self.members) + 1
        if len(self.weights) != expected:
            raise_problems(
                [problem(("weights",), f"must have one number per model ({expected}); got {len(self.weights)}")]
            )
        return self


class SearchConfig(Table):
    """`[search]`: the defaults of `translate`, stored in the model folder."""

    beam: Annotated[int, Field(ge=1, le=1000)] = 5
    """Beam size; 1 is greedy search. Larger beams are slower."""
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    """Length penalty: a hypothesis scores log-probability / length^penalty. 0 does not normalise, 1
    averages over tokens; raise it if translations are too short."""
    length_norm: Annotated[str, NameIn(LENGTH_NORMS)] = "power"
    """Length to which `length_penalty` is applied, see below."""
    stop: Annotated[str, NameIn(STOPS)] = "bound"
    """Stopping criterion of beam search, see below."""
    coverage_penalty: Annotated[float, Field(ge=0.0, le=1000.0)] = 0.0
    """Coverage penalty: beta of beta * sum over j of log(min(sum over i of the attention weights,
    1)), added to the score (Wu et al. 2016). Raise it if translations omit parts of the source."""
    max_ratio: Annotated[float, Field(gt=0.0, le=1000.0)] = 2.0
    """Maximum translation length: this many target tokens per source token ..."""
    max_extra: Annotated[int, Field(ge=0, le=1_000_000)] = 20
    """... plus this many."""
    no_repeat_ngram: Count = 0
    """Forbid repeated n-grams of this length in a translation; 0 allows them."""
    replace_unknown: Literal["none", "copy", "dictionary"] = "none"
    """Replacement of `<unk>`: not at all, by the source word with the most attention, or by that word's entry in
    `dictionary`, if any. Only for `text.type = "words"` and a decoder with attention."""
    dictionary: str | None = None
    """TSV file of source words and their translations; copied into the model folder."""
    attended_word: Literal["predicted", "read"] | None = None
    """The target word that a step's attention is reported for, in alignments, heat maps and `<unk>` replacement: the
    word predicted at the step, or the word just read (Luong et al. 2015, footnote 14), if the decoder attends after
    reading. Default: `objective.supervision.word`, otherwise `"predicted"`."""
    averaging: Literal["early", "late", "both"] = "early"
    """For a model with [several sources](multilingual.md#several-sources): the decoder reads all
    sources (`early`), the distributions of each source alone are averaged (`late`), or the mean of
    both (Firat et al. 2016, "Zero-resource translation")."""
    language_model: str | None = None
    """Folder of a language model over the same target tokens for [shallow fusion](language-models.md#shallow-fusion).
    Not in a run file; `rnnsearch tune` adds it to the model folder."""
    language_model_weight: Annotated[float, Field(ge=0.0, le=100.0)] = 0.1
    """beta of log p(y | x) + beta log p(y), the weight of the language model."""
    ensemble: EnsembleConfig | None = None
    """Further models of an ensemble."""
    batch_sentences: Size = 64
    """Number of sentences translated together. Lower it if memory runs out."""
    candidates: Annotated[int, Field(ge=0, le=100)] = 0
    """Compute the output layer only for a [candidate list](translating.md#candidate-lists): this
    many most probable translations (at most 100) of each source token of a batch, and the most
    frequent tokens. 0 uses the whole vocabulary."""
    precision: SearchPrecision = "auto"
    """Precision of matrix products; states and scores are always fp32. `auto`: on the CPU, bf16 if
    native code can be built and was faster when timed, otherwise fp32; on a GPU, TF32. `bf16` and
    `int8` are for the CPU. `int8`: [8-bit
    integers](translating.md#int8-quantisation), fastest on processors that support them, with the
    largest rounding errors. `rnnsearch inspect` shows the precision in use."""
