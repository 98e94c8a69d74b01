"""`[data]` and `[text]` of a run file: the corpus, and how raw text becomes symbols. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rnnsearch.config.annotations import ANNOTATIONS, AnnotationConfig
from rnnsearch.config.choice import OneOf
from rnnsearch.config.table import MOST, Count, Language, Languages, Size, Table


class CleaningConfig(Table):
    """`[data.cleaning]`: which pairs are left out of training. How words are counted: [Data](data.md#cleaning).

    Dev and test sets that are given are not cleaned."""

    min_words: Count = 1
    """Fewest words of a side; [how they are counted](data.md#cleaning)."""
    max_words: Size = 100
    """Most words of a side."""
    max_ratio: Annotated[float, Field(ge=1.0)] = 4.0
    """The longer side may have this many times the words of the shorter, plus 5."""
    drop_duplicates: bool = True
    """Leave out a pair that occurred before (spacing aside)."""
    drop_identical: bool = True
    """Leave out a pair of at least two words whose two sides are the same."""
    language_id: bool | None = None
    """Leave out a pair with a side that is [clearly in another language](data.md#other-languages)."""


class DataConfig(Table):
    """`[data]`: the corpus. Paths are relative to the run file."""

    source: Languages = None
    """The source language, such as `en`, `pt-BR` or `grc`. A translation model needs one."""
    target: Language
    """The target language. Text files of the split carry these codes, and BLEU's tokeniser for `zh`, `ja`, `th`, `lo`,
    `km` and `my` is chosen by it."""
    corpus: str | None = None
    """A corpus of `rnnsearch data list`. Exactly one of `corpus` and `train` must be given."""
    train: list[str] | None = None
    """Files of training pairs: `source_file|target_file`, or a TSV file. See [Data](data.md). Of three languages and
    more, a file or a column each, where an empty one means that these rows lack it. Text of the target alone is
    `|target_file` (see `target_only`)."""
    target_only: Literal["copied", "null"] | None = None
    """What stands for the source of text of the target alone: a copy of it (`"copied"`, Currey et al. 2017), or nothing
    (`"null"`, Sennrich et al. 2016). See [Data](data.md#text-of-one-language)."""
    weights: list[Annotated[float, Field(gt=0.0, le=1000.0)]] | None = None
    """How often an epoch has the pairs of each of `train`: 2 is twice, 0.5 a half of them, drawn anew each epoch. Whole
    numbers with `training.batch.shuffle = "once"`. See [Data](data.md#text-of-one-language). Without it: each pair
    once."""
    documents: bool = False
    """A line that is empty in all languages ends a document; documents are split off, and left out, as wholes."""
    dev: str | None = None
    """Files of the dev set, written like one entry of `train`. Not with `corpus`."""
    test: str | None = None
    """Files of the test set, likewise. Not with `corpus`."""
    dev_size: Count = 1000
    """Pairs split off for dev where neither `dev` nor `corpus` is given. 0: no dev set. Without this option a small
    corpus gives fewer: one pair in twenty."""
    test_size: Count = 1000
    """Pairs split off for test where neither `test` nor `corpus` is given. 0: no test set. Without this option as few
    as for dev."""
    alignments: list[str] | Literal["aligner"] | None = None
    """Word alignments of the training text, which `[objective.supervision]` learns from: files in the Pharaoh format,
    one for each of `train`, line by line; or `"aligner"`, for the links that the aligner (below) finds. A listed corpus
    may bring its own."""
    dev_alignments: str | None = None
    """Word alignments of `dev`, for `training.metric = "aer"`."""
    test_alignments: str | None = None
    """Word alignments of `test`."""
    aligner: bool = True
    """Learn a word aligner from the training text, which the model folder keeps: alignments then come from it, and not
    from attention (except with `[objective.supervision]`). It has no part in training. See
    [Alignment](alignment.md)."""
    prepared: str | None = None
    """Where the prepared ids go, relative to the run file. Without it: `data` in the run's folder. Several runs with
    the same `[data]` and `[text]` can share one."""
    cleaning: CleaningConfig = CleaningConfig()

    @model_validator(mode="after")
    def _one_corpus(self) -> DataConfig:
        if (self.corpus is None) == (self.train is None):
            raise ValueError("must name exactly one of `corpus` (see `rnnsearch data list`) and `train` (files)")
        if self.corpus is not None and (self.dev is not None or self.test is not None):
            raise ValueError("`dev` and `test` have no effect with `corpus`: a listed corpus brings its own split")
        files = self.alignment_files
        if self.corpus is not None and (files or self.dev_alignments or self.test_alignments):
            raise ValueError("`alignments` have no effect with `corpus`: a listed corpus brings its own, if it has any")
        if files is not None and len(files) != len(self.train or []):
            got = f"{len(files)} for {len(self.train or [])}"
            raise ValueError(f"`alignments` must be one file for each file of `train`; got {got}")
        if self.weights is not None and len(self.weights) != len(self.train or [""]):
            raise ValueError(f"`weights` must be one for each file of `train`; got {len(self.weights)}")
        if self.alignments == "aligner" and not self.aligner:
            raise ValueError('`alignments = "aligner"` needs `aligner = true`')
        for part, text, links in (("dev", self.dev, self.dev_alignments), ("test", self.test, self.test_alignments)):
            if links is not None and text is None:
                raise ValueError(f"`{part}_alignments` have no effect without `{part}`")
        if self.corpus is not None and self.documents:
            raise ValueError("`documents` has no effect with `corpus`: a listed corpus does not say where they end")
        self._target_only()
        for number, side in enumerate(self.sides):
            if side in self.sides[:number]:
                raise ValueError(f"source and target must be two languages; got {side} twice")
        return self

    def _target_only(self) -> None:
        if self.target_only is not None and not self.files_without_source:
            raise ValueError(
                "`target_only` has no effect without text of the target alone (an entry |target_file of `train`)"
            )
        if self.target_only is None and self.files_without_source:
            spec = (self.train or [])[self.files_without_source[0]]
            raise ValueError(f'`target_only` must be "copied" or "null" for "{spec}", which has no source')
        for name, given in (("alignments", self.alignments is not None), ("documents", self.documents)):
            if self.target_only is not None and given:
                raise ValueError(f"`target_only` does not go with `{name}`; remove one")

    @property
    def files_without_source(self) -> list[int]:
        """Which entries of `train` are text of the target alone, where there is one source."""
        alone = len(self.sources) == 1
        return [n for n, spec in enumerate(self.train or []) if alone and spec.lstrip().startswith("|")]

    @property
    def alignment_files(self) -> list[str] | None:
        """The files of `alignments`, where these are files."""
        return None if self.alignments == "aligner" else self.alignments

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


TextType = Literal["words", "bpe", "unigram", "characters"]


class InlineTermsConfig(Table):
    """`[text.inline_terms]`: training sentences that say what some of their words are to be (after Dinu et al. 2019),
    so that the terms of a glossary are written in the form that a sentence asks for. See
    [Terms](translating.md#terms).

    Drawn anew whenever a batch is made. Not for a source of `words`, which has no symbols for the marks."""

    dictionary: str
    """A TSV file of source words or phrases and their translations, as `rnnsearch dictionary` learns it from the
    corpus. Relative to the run file; only training reads it."""
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """Of the training sentences, those that have terms inline where any stand in both languages; the others are as they
    are."""


class TextConfig(Table):
    """`[text]`: how raw text becomes symbols. See [Data](data.md#words-or-subwords)."""

    type: TextType = "bpe"
    """Whole words (the papers), subwords by byte-pair encoding or by a unigram model, or characters."""
    target_type: TextType | None = None
    """That of the target side, where it is another. Not with `joint`."""
    tokenizers: str | None = None
    """A model folder, relative to the run file, whose tokenizers these languages get in place of learning any: models
    that are to work together need the same symbols. `type` must be theirs."""
    vocabulary: Annotated[int, Field(ge=8, le=MOST)] | None = None
    """Symbols a side, the four special ones included; with `joint`, of both sides together. Subwords need 249 or more
    (a symbol a byte, and room to merge). Fewer are used where the text has fewer. Without it 8,000, or fewer subwords
    [for a small corpus](data.md#words-or-subwords). Of `characters` it is the most there may be: rarer ones are spelled
    in bytes, as with subwords."""
    target_vocabulary: Annotated[int, Field(ge=8, le=MOST)] | None = None
    """Symbols of the target side, where it has another number of them. Not with `joint`."""
    joint: bool | None = None
    """One vocabulary for both languages. Not with `words`."""
    side_min_count: Size | None = None
    """Of a `joint` vocabulary: a symbol that occurs less often on one side of the training text is taken apart again on
    that side, into those it was merged from (Sennrich et al. 2017: 50), or never used there with `unigram`. Only with
    subwords."""
    min_count: Size = 1
    """A rarer word, character or merge stays out of the vocabulary."""
    bpe_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """BPE-dropout (Provilkov et al. 2020): the training text is segmented anew whenever a batch is made, and each merge
    left out with this probability (the paper: 0.1). Dev and test sets, and what is translated, are segmented whole.
    Only with `bpe`."""
    unigram_sampling: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Subword regularisation (Kudo 2018): the training text is segmented anew whenever a batch is made, by each
    segmentation with its probability to the power of this alpha (the paper: 0.1 for small corpora, 0.2 to 0.5 for
    others). Dev and test sets, and what is translated, have the most probable one. Only with `unigram`."""
    inline_terms: InlineTermsConfig | None = None
    annotation: Annotated[AnnotationConfig, OneOf("annotation", ANNOTATIONS)] | None = None

    @model_validator(mode="after")
    def _one_vocabulary(self) -> TextConfig:
        if self.joint and self.target_vocabulary is not None:
            raise ValueError("`target_vocabulary` has no effect with `joint`: both languages have one vocabulary")
        if self.joint and self.types[0] != self.types[1]:
            got = " and ".join(self.types)
            raise ValueError(f"`joint` needs one `type` for both languages; got {got} (`target_type`)")
        if self.tokenizers is not None:
            learned = {"vocabulary", "target_vocabulary", "joint", "side_min_count", "annotation"}
            given = [name for name in learned if getattr(self, name)] + ["min_count"] * (self.min_count > 1)
            if given:
                raise ValueError(f'`{min(given)}` has no effect with `tokenizers`; remove it (or say "unset")')
        if self.annotation is not None and set(self.types) != {"words"}:
            raise ValueError(f'`annotation` needs `type = "words"` on both sides; got {" and ".join(self.types)}')
        return self

    def drawn_by(self, type: TextType) -> str | None:
        """The option by which text of this type is segmented anew for each batch, where one is."""
        drawn = {"bpe": ("bpe_dropout", self.bpe_dropout), "unigram": ("unigram_sampling", self.unigram_sampling)}
        name, amount = drawn.get(type, ("", None))
        return f"text.{name}" if amount else None

    @property
    def types(self) -> tuple[TextType, TextType]:
        """Of the sources, and of the target."""
        return self.type, self.target_type or self.type
