"""`[text.annotation]` of a run file: unknown words that say which source words they stand for. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rnnsearch.config.choice import Options, by_name

Window = Annotated[int, Field(ge=0, le=1000)]


class AnnotationConfig(Options):
    """`[text.annotation]`: unknown target words that say which source words they stand for (Luong et al. 2015,
    "Addressing the Rare Word Problem"): the training text is annotated by its word alignments, and what is translated
    is copied, or looked up in a dictionary, from where the translation says. See
    [Unknown words](translating.md#unknown-words-that-say-where-they-come-from).

    Only for `type = "words"` on both sides, and not beside what copies or spells words by itself."""

    type: str
    """An annotation: see below."""


class CopyableOptions(AnnotationConfig):
    """The copyable model: unknown words of a source are numbered, the same word alike, and an unknown target word has
    the number of that which it is aligned to."""

    type: Literal["copyable"] = "copyable"
    numbers: Annotated[int, Field(ge=1, le=1000)] = 10
    """Different unknown words of a source that have a number; further ones have none."""


class PosAllOptions(AnnotationConfig):
    """The positional all model: after every target word stands how far from its place its source word is."""

    type: Literal["posall"] = "posall"
    window: Window = 7
    """The farthest that it can say; words that are aligned to nothing, or farther, say so."""


class PosUnkOptions(AnnotationConfig):
    """The positional unknown model: an unknown target word says how far from its place its source word is."""

    type: Literal["posunk"] = "posunk"
    window: Window = 7
    """The farthest that it can say; words that are aligned to nothing, or farther, say so."""


ANNOTATIONS: dict[str, type[AnnotationConfig]] = by_name(CopyableOptions, PosAllOptions, PosUnkOptions)
