"""`[search]` of a run file. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rnnsearch.config.table import Count, Positive, Size, Table

SearchPrecision = Literal["auto", "fp32", "bf16", "int8"]


class SearchConfig(Table):
    """`[search]`: the defaults of `translate`, kept in the model folder."""

    beam: Size = 5
    length_penalty: Annotated[float, Field(ge=0.0)] = 1.0
    """Score = log-probability / length ** this (0: the plain sum; 1: the mean a symbol)."""
    length_norm: str = "power"
    """What `length_penalty` is the exponent of: the length (`power`) or (5 + length) / 6 (`gnmt`)."""
    coverage_penalty: Annotated[float, Field(ge=0.0)] = 0.0
    """beta of beta * sum_j log(min(sum_i alpha_ij, 1)), added to the score (Wu et al. 2016)."""
    max_ratio: Positive = 2.0
    """A translation has at most this many symbols a source symbol, plus `max_extra`."""
    max_extra: Count = 20
    replace_unknown: Literal["none", "copy", "dictionary"] = "none"
    """What becomes of `<unk>`: it stays, or the source word that it attends to most takes its place."""
    dictionary: str | None = None
    """A TSV file of source words and translations, relative to the run file."""
    batch_sentences: Size = 64
    candidates: Count = 0
    """Likeliest translations (at most 100) of each source symbol in a batch's candidate list; 0: all symbols."""
    precision: SearchPrecision = "auto"
    """Of matrix products on the CPU; `auto`: bf16 where there is native code and the processor multiplies it."""
