"""`[data]` and `[text]` of a run file: the corpus, and how raw text becomes symbols. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rnnsearch.config.table import Count, Language, Languages, Size, Table


class CleaningConfig(Table):
    """`[data.cleaning]`: which sentence pairs are left out of training. Lengths count words."""

    min_words: Count = 1
    max_words: Size = 100
    max_ratio: Annotated[float, Field(ge=1.0)] = 4.0
    """The longer side may have at most this many times the words of the shorter, plus a slack of 5 words."""
    drop_duplicates: bool = True
    drop_identical: bool = True
    """Pairs whose two sides are the same text (of at least two words)."""


class DataConfig(Table):
    """`[data]`: the corpus. Paths are relative to the run file."""

    source: Languages = None
    """The language translated from; several, or none, for models that read so many."""
    target: Language
    corpus: str | None = None
    """A corpus of `rnnsearch data list`."""
    train: list[str] | None = None
    """Files of training pairs: TSV files, or pairs of text files written `source_file|target_file`. Of three languages
    and more, a file or a column each, where an empty one means that these rows lack it."""
    documents: bool = False
    """A line that is empty in all languages ends a document; documents are split off, and left out, as wholes."""
    dev: str | None = None
    test: str | None = None
    dev_size: Count = 1000
    test_size: Count = 1000
    """Sentences split off where no dev / test file is given; no source or target sentence is shared."""
    alignments: list[str] | None = None
    """Word alignments in the Pharaoh format, one file for each of `train`, line by line; a listed corpus with
    alignments brings its own. They are what `objective.supervision` learns from."""
    dev_alignments: str | None = None
    test_alignments: str | None = None
    prepared: str | None = None
    """Where the prepared ids go; without it, `<run folder>/data`."""
    cleaning: CleaningConfig = CleaningConfig()

    @model_validator(mode="after")
    def _one_corpus(self) -> DataConfig:
        if (self.corpus is None) == (self.train is None):
            raise ValueError("must name exactly one of `corpus` (see `rnnsearch data list`) and `train` (files)")
        if self.corpus is not None and (self.dev is not None or self.test is not None):
            raise ValueError("`dev` and `test` have no effect with `corpus`: a listed corpus brings its own split")
        if self.corpus is not None and (self.alignments or self.dev_alignments or self.test_alignments):
            raise ValueError("`alignments` have no effect with `corpus`: a listed corpus brings its own, if it has any")
        if self.alignments is not None and len(self.alignments) != len(self.train or []):
            got = f"{len(self.alignments)} for {len(self.train or [])}"
            raise ValueError(f"`alignments` must be one file for each file of `train`; got {got}")
        for part, text, links in (("dev", self.dev, self.dev_alignments), ("test", self.test, self.test_alignments)):
            if links is not None and text is None:
                raise ValueError(f"`{part}_alignments` have no effect without `{part}`")
        if self.corpus is not None and self.documents:
            raise ValueError("`documents` has no effect with `corpus`: a listed corpus does not say where they end")
        for number, side in enumerate(self.sides):
            if side in self.sides[:number]:
                raise ValueError(f"source and target must be two languages; got {side} twice")
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """The languages translated from."""
        return () if self.source is None else (self.source,) if isinstance(self.source, str) else tuple(self.source)

    @property
    def sides(self) -> tuple[str, ...]:
        """All languages, the target last."""
        return (*self.sources, self.target)

    @property
    def one_source(self) -> str:
        """The source, where there is one."""
        (source,) = self.sources
        return source


class TextConfig(Table):
    """`[text]`: how raw text becomes symbols."""

    type: Literal["words", "bpe"] = "bpe"
    vocabulary: Annotated[int, Field(ge=8)] = 8000
    """Symbols a side, the special ones included; with `joint`, of both sides together."""
    target_vocabulary: Annotated[int, Field(ge=8)] | None = None
    """Symbols of the target side, where it has another number of them (80,000 to 160,000 in Sutskever et al.)."""
    joint: bool | None = None
    """One segmentation and vocabulary for both languages (bpe only)."""
    min_count: Size = 1
    """A symbol rarer than this in the training text stays out of the vocabulary."""

    @model_validator(mode="after")
    def _one_vocabulary(self) -> TextConfig:
        if self.joint and self.target_vocabulary is not None:
            raise ValueError("`target_vocabulary` has no effect with `joint`: both languages have one vocabulary")
        return self
