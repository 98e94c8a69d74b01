"""`[data]` and `[text]` of a run file: the corpus, its tokenization and the annotation of unknown words.

`data/prepare.py` reads `[data]`; `text/annotation.py` implements the annotation schemes. Prepared data store these
options (`data.prepared.data_settings`), and a run with other ones is rejected. Names and options are stored in model
folders, too: never rename them. docs/configuration.md is generated from the docstrings. Tests:
tests/data/test_prepare.py, tests/text/test_annotation.py, tests/test_config.py.
"""

from __future__ import annotations

import re
from itertools import permutations
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, field_validator, model_validator

from rnnsearch.config.options import (
    LANGUAGE,
    MAX_INTEGER,
    Count,
    Family,
    Language,
    Languages,
    NameIn,
    OneOf,
    Options,
    Size,
    Table,
    problem,
    raise_problem,
    raise_problems,
    require_language,
)
from rnnsearch.errors import ConfigError, must_be_one_of

# `[text.annotation]`: unknown target words that refer to source positions.

Window = Annotated[int, Field(ge=0, le=1000)]


class AnnotationConfig(Options):
    """`[text.annotation]`: unknown target words that refer to the source words they translate (Luong et al. 2015,
    "Addressing the Rare Word Problem"). The training text is annotated with its word alignments. In a translation, each
    unknown word is replaced by the source word it refers to, or by that word's dictionary entry. See [Unknown
    words](translating.md#unknown-word-annotation).

    Requires `type = "words"` on both sides, and cannot be combined with models that copy or spell words.
    """

    type: str
    """Annotation scheme, see below."""


ANNOTATIONS = Family[AnnotationConfig]("annotation")


@ANNOTATIONS.register
class CopyableOptions(AnnotationConfig):
    """Copyable model: unknown source words are numbered (repeated words share a number), and an
    unknown target word carries the number of the source word it is aligned to.
    """

    type: Literal["copyable"] = "copyable"
    numbers: Annotated[int, Field(ge=1, le=1000)] = 10
    """Number of different unknown words per source sentence that are numbered; further ones stay `<unk>`."""


@ANNOTATIONS.register
class PosAllOptions(AnnotationConfig):
    """Positional all model: every target word is followed by its distance to the aligned source word."""

    type: Literal["posall"] = "posall"
    window: Window = 7
    """Maximum distance in words; unaligned words and words farther away share one token without a distance."""


@ANNOTATIONS.register
class PosUnkOptions(AnnotationConfig):
    """Positional unknown model: an unknown target word carries its distance to the aligned source word."""

    type: Literal["posunk"] = "posunk"
    window: Window = 7
    """Maximum distance in words; unaligned words and words farther away share one token without a distance."""


LANGUAGE_TAGS = tuple(f"<0x{byte:02X}>" for byte in (*range(0x04, 0x09), *range(0x0E, 0x20)))
"""Tokens that tell a model which language to write: control characters that are in every vocabulary of subwords or
characters, apart from the marks of terms (`text/terms.py`)."""

# `[data.context]`: previous sentences of a document.


MAX_CONTEXT_SENTENCES = 10
CONTEXT_SUFFIX = "@previous"
"""End of the names of the streams of previous sentences, after the code of their language."""


class ContextConfig(Options):
    """`[data.context]`: previous sentences of the same document that a translation model reads in addition to the
    sentence. See [Documents](context.md).

    Requires `data.documents`, which marks the ends of documents. The first sentence of a document has no context.
    """

    type: str
    """How the model reads the context, see below."""
    sentences: Annotated[int, Field(ge=1, le=MAX_CONTEXT_SENTENCES)] = 1
    """Maximum number of previous sentences."""


CONTEXTS = Family[ContextConfig]("context")


@CONTEXTS.register
class ConcatenationOptions(ContextConfig):
    """Previous source sentences, each followed by a separator, precede the source sentence (Tiedemann & Scherrer
    2017). If the whole is longer than `training.max_length`, the model reads fewer previous sentences.
    """

    type: Literal["concatenation"] = "concatenation"


@CONTEXTS.register
class StreamsOptions(ContextConfig):
    """Previous sentences are sources of their own, with a separator between them: `NAME@previous`, where NAME is the
    code of their language. Translation models read them with `[model.sources]` (Jean et al. 2017), language models with
    `[model.context]`.
    """

    type: Literal["streams"] = "streams"
    source: bool = True
    """Read previous source sentences. Only for translation models."""
    target: bool = False
    """Read previous target sentences; in translation, their translations. Only for translation models: language models
    always do."""

    @model_validator(mode="after")
    def _validate_streams(self) -> StreamsOptions:
        if not (self.source or self.target):
            raise_problem("source", "must be true without target, or there is no context")
        return self


class CleaningConfig(Table):
    """`[data.cleaning]`: filters that drop pairs from the training set. [Data](data.md#cleaning)
    defines how words are counted.

    Dev and test sets that you provide are not cleaned.
    """

    min_words: Count = 1
    """Minimum number of words on each side ([how they are counted](data.md#cleaning))."""
    max_words: Size = 100
    """Maximum number of words on each side."""
    max_ratio: Annotated[float, Field(ge=1.0)] = 4.0
    """Maximum length ratio: the longer side may have this many times the words of the shorter side, plus 5."""
    drop_duplicates: bool = True
    """Drop pairs that occurred before, ignoring whitespace."""
    drop_identical: bool = True
    """Drop pairs of at least two words whose source and target are identical."""
    language_id: bool | None = None
    """Drop pairs with a side that is [clearly in another language](data.md#other-languages). Use it
    for crawled text."""


class ArrayConfig(Table):
    """`[data.arrays.NAME]`: a source that consists of arrays instead of text, such as image regions or speech frames.
    Its files are NumPy files (.npy); see [Arrays](arrays.md). NAME is its name in `data.source`.
    """

    features: Size
    """Number of values per row of an array (per image region or frame)."""
    grid: Annotated[list[Annotated[int, Field(ge=1, le=1000)]], Field(min_length=2, max_length=2)] | None = None
    """Rows and columns of the image regions, such as `[3, 3]`; every array then has one row per cell, in reading order.
    The model learns a vector for each cell, and plots show the grid."""

    @property
    def rows(self) -> int | None:
        """Number of rows of every array; None if they may differ."""
        return None if self.grid is None else self.grid[0] * self.grid[1]


MixingRatio = Annotated[float, Field(ge=0.0, le=1000.0)]
"""Batches of a task per batch of translation; 0 for no task."""


class TasksConfig(Table):
    """`[data.tasks]`: tasks that a [multi-way model](multilingual.md#further-tasks) is trained on in addition to
    translation (Luong et al. 2016, "Multi-task Sequence to Sequence Learning"). They read the text of single languages
    in `data.train`, have an NLL on the dev set, and are not offered for translation.

    The ratio of a task is the number of its batches per batch of translation, of all directions together: 0.1 adds one
    batch to ten. 0 leaves the task out.
    """

    autoencoding: dict[str, MixingRatio] = Field(default={})
    """Ratios by language, such as `{ en = 0.1 }`, of translating sentences into themselves with the
    language's encoder and decoder. If the language had only one of the two, the other is added."""
    language_model: dict[str, MixingRatio] = Field(default={})
    """Ratios by language of predicting sentences with the language's decoder only: annotations and
    the last states of the encoder are zeros."""
    text: Literal["all", "monolingual"] = "all"
    """Sentences of a task: `all` of the language, or those without a translation (`monolingual`)."""

    @model_validator(mode="after")
    def _validate(self) -> TasksConfig:
        if not self.autoencoding and not self.language_model:
            raise ValueError("must have the ratio of some language in `autoencoding` or `language_model`; got none")
        return self

    @property
    def autoencoded(self) -> tuple[str, ...]:
        """Languages that are autoencoded."""
        return tuple(language for language, ratio in self.autoencoding.items() if ratio > 0)

    @property
    def modelled(self) -> tuple[str, ...]:
        """Languages with language modelling."""
        return tuple(language for language, ratio in self.language_model.items() if ratio > 0)


StreamName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
"""Name of a stream of arrays, which is part of the names of files."""


def _list_or_all(value: object) -> object:
    """Raise ValueError if `data.directions` is neither a list nor "all", instead of an error per possible type."""
    if not isinstance(value, list) and value not in ("all", None):
        raise ValueError('must be "all" or a list of directions such as "de-en"')
    return value


class DataConfig(Table):
    """`[data]`: the corpus. Paths are relative to the run file."""

    arrays: dict[StreamName, ArrayConfig] | None = None
    """Sources that are arrays instead of text."""
    source: Languages = None
    """Source language code, such as `en`, `pt-BR` or `grc`, or the name of a source in `[data.arrays]`. A translation
    model needs exactly one, or a list with `[model.sources]`; a multi-way model may have several."""
    target: Language
    """Target language code. Files of the data split use these codes as suffixes, and `zh`, `ja`,
    `th`, `lo`, `km` and `my` select a suitable BLEU tokenizer."""
    directions: Annotated[list[str] | Literal["all"], BeforeValidator(_list_or_all)] | None = None
    """Directions of a [multi-way model](multilingual.md) between any two of its languages, such as `["de-en",
    "en-fr"]`, or `"all"` for each direction that has training text. By default, each source language into the
    target."""
    tasks: TasksConfig | None = None
    tag: Annotated[str, NameIn(dict.fromkeys(LANGUAGE_TAGS))] | None = None
    """Token before each source sentence, for training that continues from one direction of a multi-way model with
    `model.sharing.decoders = "all"`. `rnnsearch extract` writes it into the model folder."""
    corpus: str | None = None
    """Name of a corpus listed by `rnnsearch data list`. Exactly one of `corpus` and `train` must be given."""
    train: list[str] | None = None
    """Training files, each `source_file|target_file`, a TSV file, or a TMX, XLIFF, PO, CSV or XLSX file; see
    [Data](data.md). With three or more languages, give one text file per language, or a TSV, TMX, CSV or XLSX file with
    all of them (PO and XLIFF have two), with columns in the order of `source` and `target`; an empty one marks text
    that is missing in that language. `|target_file` is text in the target language only (see `target_only`), and with
    `[data.tasks]` `source_file|` is text in the source language only."""
    target_only: Literal["copied", "null"] | None = None
    """Source side of text in the target language only: a copy of the target (`"copied"`, Currey et al. 2017) or an
    empty sentence (`"null"`, Sennrich et al. 2016). See [Data](data.md#monolingual-text)."""
    weights: list[Annotated[float, Field(gt=0.0, le=1000.0)]] | None = None
    """Uses per epoch of each entry of `train`: 2 uses it twice, 0.5 uses a half that is
    sampled again in each epoch. Must be whole numbers with `training.batch.shuffle = "once"`. See
    [Data](data.md#monolingual-text). If not given, each pair is used once."""
    documents: bool = False
    """Treat lines that are empty in all languages as document boundaries. Documents are then held
    out, or dropped, as a whole."""
    context: Annotated[ContextConfig, OneOf(CONTEXTS)] | None = None
    dev: str | None = None
    """Dev set files, in the format of one entry of `train`. Not with `corpus`."""
    test: str | None = None
    """Test set files, in the format of one entry of `train`. Not with `corpus`."""
    dev_size: Count = 1000
    """Number of pairs to hold out as dev set if neither `dev` nor `corpus` is given; 0 for no dev
    set. By default, small corpora hold out fewer: one pair in twenty."""
    test_size: Count = 1000
    """Number of pairs to hold out as test set if neither `test` nor `corpus` is given; 0 for no
    test set. By default, small corpora hold out fewer: one pair in twenty."""
    alignments: list[str] | Literal["aligner"] | None = None
    """Word alignments of the training text for `[objective.supervision]`: one Pharaoh file per
    entry of `train`, line by line, or `"aligner"` to use the links of the word aligner (see
    `aligner`). A listed corpus may include its own."""
    dev_alignments: str | None = None
    """Word alignments of `dev` (a Pharaoh file), for `training.metric = "aer"`."""
    test_alignments: str | None = None
    """Word alignments of `test` (a Pharaoh file)."""
    aligner: bool = True
    """Train a word aligner on the training text and store it in the model folder. Alignments then
    come from it instead of from attention (except with `[objective.supervision]`); it does not
    affect the model. See [Alignment](alignment.md)."""
    prepared: str | None = None
    """Folder of the prepared data, relative to the run file. The default is `data` in the run's
    folder; runs with the same `[data]` and `[text]` can share one."""
    cleaning: CleaningConfig = CleaningConfig()

    @field_validator("source")
    @classmethod
    def _validate_source(cls, source: str | list[str] | None, info: Any) -> str | list[str] | None:
        # `info` is a ValidationInfo, a protocol that cannot be checked at run time.
        arrays = info.data.get("arrays") or {}
        names = [source] if isinstance(source, str) else source or []
        for name in names:
            if name not in arrays:
                require_language(name)
        if unused := sorted(arrays.keys() - set(names)):
            raise ValueError(f'must name "{unused[0]}", which `data.arrays` describes')
        return source

    @model_validator(mode="after")
    def _validate(self) -> DataConfig:
        if (self.corpus is None) == (self.train is None):
            raise ValueError("must have exactly one of `corpus` (see `rnnsearch data list`) and `train` (files)")
        if self.corpus is not None and (self.dev is not None or self.test is not None):
            raise ValueError("`dev` and `test` have no effect with `corpus`: a listed corpus has its own split")
        files = self.alignment_files
        if self.corpus is not None and (files or self.dev_alignments or self.test_alignments):
            raise_problem("alignments", "has no effect with `corpus`: a listed corpus has its own, if any")
        if files is not None and len(files) != len(self.train or []):
            got = f"{len(files)} for {len(self.train or [])}"
            raise_problem("alignments", f"must have one file per file of `train`; got {got}")
        if self.weights is not None and len(self.weights) != len(self.train or [""]):
            raise_problem("weights", f"must have one number per file of `train`; got {len(self.weights)}")
        if self.alignments == "aligner" and not self.aligner:
            raise ValueError('`alignments = "aligner"` needs `aligner = true`')
        for split, text, links in (("dev", self.dev, self.dev_alignments), ("test", self.test, self.test_alignments)):
            if links is not None and text is None:
                raise_problem(f"{split}_alignments", f"has no effect without `{split}`")
        if self.corpus is not None and self.documents:
            raise_problem("documents", "has no effect with `corpus`: a listed corpus has no document boundaries")
        if self.context is not None and not self.documents:
            raise_problem("context", "needs `documents = true`, which marks the ends of documents")
        self._validate_monolingual_files()
        for index, language in enumerate(self.languages):
            if language in self.languages[:index]:
                raise ValueError(f"source and target must be two languages; got {language} twice")
        self._validate_directions()
        self._validate_tasks()
        return self

    def _validate_directions(self) -> None:
        if self.directions is None or self.directions == "all":
            return
        possible = list(self._possible_directions)
        if not self.directions:
            raise_problem("directions", "must have at least one direction; got none")
        for index, name in enumerate(self.directions):
            if name not in possible:
                raise_problem("directions", must_be_one_of(possible, name))
            if name in self.directions[:index]:
                raise_problem("directions", f"must be different from each other; got {name} twice")

    def _validate_tasks(self) -> None:
        if self.tasks is None:
            return
        for name in ("autoencoding", "language_model"):
            for language in getattr(self.tasks, name):
                if language not in self.languages:
                    must = must_be_one_of(list(self.languages), language)
                    raise_problems([problem(("tasks", name, language), must)])
        # The names of "all" directions depend on the corpus (see `training/run_folder.py`).
        if self.directions != "all" and (reason := self.task_problem) is not None:
            raise_problem(*reason)

    @property
    def task_problem(self) -> tuple[str, str] | None:
        """Return the option of a task that would not share its modules with any direction, and why, or None."""
        if self.tasks is None:
            return None
        used = {language for pair in self.pairs for language in pair}
        for language in self.tasks.autoencoded:
            if language not in used:
                return "tasks.autoencoding", f"must have languages of `directions`; got {language}"
        for language in self.tasks.modelled:
            if language not in self.written_languages:
                wanted = (
                    "target languages of `directions`, or languages of `tasks.autoencoding`, whose decoder it trains"
                )
                return "tasks.language_model", f"must have {wanted}; got {language}"
        return None

    @property
    def _possible_directions(self) -> dict[str, tuple[str, str]]:
        """Source and target of each direction between two languages, by name."""
        pairs = permutations(self.languages, 2)
        return {f"{source}-{target}": (source, target) for source, target in pairs}

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Source and target language of each direction of a multi-way model."""
        if self.directions is None:
            return tuple((source, self.target) for source in self.sources)
        possible = self._possible_directions
        names = possible if self.directions == "all" else self.directions
        return tuple(possible[name] for name in names)

    @property
    def written_languages(self) -> tuple[str, ...]:
        """Languages that a multi-way model writes, in the order of their tags: targets, then autoencoded ones."""
        autoencoded = () if self.tasks is None else self.tasks.autoencoded
        return tuple(dict.fromkeys([*(target for _, target in self.pairs), *autoencoded]))

    def _validate_monolingual_files(self) -> None:
        """Raise ValueError if entries of `train` in one of two languages have no use."""
        if self.target_only is not None and not self.files_without_source:
            raise_problem(
                "target_only", "has no effect without text in the target language only (`train` entry |target_file)"
            )
        if self.tasks is None:
            if self.target_only is None and self.files_without_source:
                spec = (self.train or [])[self.files_without_source[0]]
                raise_problem("target_only", f'must be "copied" or "null" for "{spec}", which has no source')
            if len(self.sources) == 1 and self.monolingual_files != self.files_without_source:
                spec = next(spec for spec in self.train or [] if spec.rstrip().endswith("|"))
                raise_problem("train", f'must have pairs of text files, source_file|target_file; got "{spec}"')
        for name, used in (("alignments", self.alignments is not None), ("documents", self.documents)):
            if self.target_only is not None and used:
                raise_problem("target_only", f"cannot be combined with `{name}`; remove one")

    @property
    def files_without_source(self) -> list[int]:
        """Indices of the entries of `train` that have target text only, if there is exactly one source."""
        if len(self.sources) != 1:
            return []
        return [n for n, spec in enumerate(self.train or []) if spec.lstrip().startswith("|")]

    @property
    def monolingual_files(self) -> list[int]:
        """Indices of the entries of `train` that have text in one of several languages only."""
        indices = []
        for index, spec in enumerate(self.train or []):
            names = spec.split("|")
            if len(names) > 1 and sum(bool(name.strip()) for name in names) == 1:
                indices.append(index)
        return indices

    @property
    def alignment_files(self) -> list[str] | None:
        """The alignment files, or None if `alignments` does not name files."""
        return None if self.alignments == "aligner" else self.alignments

    @property
    def sources(self) -> tuple[str, ...]:
        """All source languages."""
        if self.source is None:
            return ()
        return (self.source,) if isinstance(self.source, str) else tuple(self.source)

    @property
    def languages(self) -> tuple[str, ...]:
        """All languages, the target last."""
        return (*self.sources, self.target)

    @property
    def text_languages(self) -> tuple[str, ...]:
        """The languages without the sources that are arrays."""
        return tuple(language for language in self.languages if language not in (self.arrays or {}))

    @property
    def is_bilingual(self) -> bool:
        """True if there is text in one source language and in the target language, and nothing else."""
        return len(self.languages) == len(self.text_languages) == 2

    @property
    def context_streams(self) -> tuple[str, ...]:
        """Names of the streams of previous sentences."""
        if not isinstance(self.context, StreamsOptions):
            return ()
        languages: list[str] = []
        if self.context.source:
            languages += self.sources
        if self.context.target or not self.sources:
            languages.append(self.target)
        return tuple(f"{language}{CONTEXT_SUFFIX}" for language in languages)

    @property
    def source_streams(self) -> tuple[str, ...]:
        """Names of all streams that a model reads: the source languages and the streams of previous sentences."""
        return (*self.sources, *self.context_streams)

    @property
    def reads_translations(self) -> bool:
        """True if a translation model reads the translations of previous sentences."""
        return bool(self.sources) and f"{self.target}{CONTEXT_SUFFIX}" in self.context_streams

    @property
    def single_source(self) -> str:
        """The source language of a corpus with exactly one.

        Raises:
            ConfigError: There are several, or none.
        """
        if len(self.sources) != 1:
            sources = " and ".join(self.sources) or "none"
            raise ConfigError([f"data.source: must be one language for this; got {sources}"])
        return self.sources[0]


TextType = Literal["words", "bpe", "unigram", "characters"]
TextNormalization = Literal["none", "standard", "punctuation"]


class InlineTermsConfig(Table):
    """`[text.inline_terms]`: in training, marks some source words and replaces them by their
    translations (after Dinu et al. 2019), so that the model learns to write glossary terms with the
    right inflection. See [Terms](translating.md#terminology-constraints).

    Terms are sampled again for every batch. Not for a source of `words`, which has no tokens for
    the term markers.
    """

    dictionary: str
    """TSV file of source words or phrases and their translations, such as `rnnsearch dictionary`
    extracts from the corpus. Relative to the run file; only training reads it."""
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """Fraction of the training sentences that get inline terms, if the dictionary has any that
    occur on both sides; the others stay unchanged."""


def _tokenizer_folders(value: object) -> object:
    if isinstance(value, str | None):
        return value
    if not isinstance(value, dict) or not value or not all(isinstance(folder, str) for folder in value.values()):
        raise ValueError("must be a model folder, or a table of model folders by language")
    for language in value:
        if not isinstance(language, str) or not re.fullmatch(LANGUAGE, language):
            raise ValueError(f"must have language codes such as en, de or pt-BR as names; got {language!r}")
    return dict(value)


# Validated by hand: pydantic's union would add its branch to the path of the error.
TokenizerFolders = Annotated[
    str | dict[str, str] | None,
    PlainValidator(_tokenizer_folders, json_schema_input_type=str | dict[str, str] | None),
]


class TextConfig(Table):
    """`[text]`: tokenization and vocabulary. See [Data](data.md#words-or-subwords)."""

    type: TextType = "bpe"
    """Type of token: whole words (as in the papers), subwords by byte-pair encoding (`bpe`) or by a
    unigram model, or characters."""
    target_type: TextType | None = None
    """Type of token on the target side, if different. Not with `joint`."""
    tokenizers: TokenizerFolders = None
    """Model folder, relative to the run file, whose tokenizers are used instead of training new
    ones. Use it for models that must share a vocabulary; `type` must match. A table such as
    `{ en = "runs/de-en" }` has a folder for some of the languages; the tokenizers of the others are trained."""
    vocabulary: Annotated[int, Field(ge=8, le=MAX_INTEGER)] | None = None
    """Vocabulary size per side, including the four special tokens; with `joint`, the size of the common vocabulary.
    Subwords need at least 249 (one token per byte, plus merges). The default is 8,000, or fewer subwords [for a small
    corpus](data.md#words-or-subwords); a text with fewer different tokens gets a smaller vocabulary. For `characters`
    it is an upper limit: rarer characters are encoded as bytes, as with subwords."""
    target_vocabulary: Annotated[int, Field(ge=8, le=MAX_INTEGER)] | None = None
    """Vocabulary size of the target side, if different. Not with `joint`."""
    joint: bool | None = None
    """Use one vocabulary for both languages. Not with `words`."""
    side_min_count: Size | None = None
    """Minimum count of a subword of a `joint` vocabulary on one side of the training text. On that
    side, rarer ones are split again into the subwords they were merged from (Sennrich et al. 2017:
    50), or never used if `type` is `unigram`. Only for subwords."""
    normalize: TextNormalization = "none"
    """Normalisation of text before it is segmented, in training and in translation: `"standard"`
    makes all white space one space, composes accents (NFC) and removes invisible characters;
    `"punctuation"` also makes typographic quotation marks and dashes ASCII. The tokenizers store
    it; with `tokenizers`, theirs is used. See [Data](data.md#normalisation)."""
    min_count: Size = 1
    """Minimum count of a word, character or merge in the training text; rarer ones are left out of the vocabulary."""
    bpe_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """BPE-dropout rate (Provilkov et al. 2020; they use 0.1): probability to skip a merge when the
    training text is segmented, again for every batch. Dev and test sets and input to translate are
    segmented without dropout. Only for `bpe`."""
    unigram_sampling: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Subword regularisation (Kudo 2018): segmentations of the training text are sampled again for every batch, with
    their probability to the power of this alpha (Kudo: 0.1 for small corpora, otherwise 0.2 to 0.5). Dev and test sets
    and input to translate get the most probable segmentation. Only for `unigram`."""
    inline_terms: InlineTermsConfig | None = None
    annotation: Annotated[AnnotationConfig, OneOf(ANNOTATIONS)] | None = None

    @model_validator(mode="after")
    def _validate(self) -> TextConfig:
        if self.joint and self.target_vocabulary is not None:
            raise_problem("target_vocabulary", "has no effect with `joint`: both languages share one vocabulary")
        if self.joint and self.types[0] != self.types[1]:
            got = " and ".join(self.types)
            raise_problem("joint", f"needs one `type` for both languages; got {got} (`target_type`)")
        if self.tokenizers is not None:
            learned = {"vocabulary", "target_vocabulary", "joint", "side_min_count", "annotation"}
            unused = [name for name in learned if getattr(self, name)] + ["min_count"] * (self.min_count > 1)
            if isinstance(self.tokenizers, dict):
                # The tokenizers of other languages are learned, but not together.
                unused = [name for name in ("annotation", "joint", "side_min_count") if getattr(self, name)]
            if unused:
                if len(unused) == 1:
                    raise_problem(unused[0], 'has no effect with `tokenizers`; remove it (or set it to "unset")')
                names = ", ".join(f"`{name}`" for name in sorted(unused))
                raise ValueError(f'{names} have no effect with `tokenizers`; remove them (or set them to "unset")')
        if self.annotation is not None and set(self.types) != {"words"}:
            raise_problem("annotation", f'needs `type = "words"` on both sides; got {" and ".join(self.types)}')
        return self

    def sampling_option(self, type: TextType) -> str | None:
        """Return the option by which text of this type is segmented again for every batch, or None if it is not."""
        options = {"bpe": ("bpe_dropout", self.bpe_dropout), "unigram": ("unigram_sampling", self.unigram_sampling)}
        name, rate = options.get(type, ("", None))
        return f"text.{name}" if rate else None

    def tokenizer_folder(self, language: str) -> str | None:
        """Return the folder that a language's tokenizer is taken from, or None if it is learned."""
        return self.tokenizers.get(language) if isinstance(self.tokenizers, dict) else self.tokenizers

    @property
    def types(self) -> tuple[TextType, TextType]:
        """The types of the sources and of the target."""
        return self.type, self.target_type or self.type
