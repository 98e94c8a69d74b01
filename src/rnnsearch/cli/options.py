"""Arguments and option groups that several commands share.

A group is a dataclass and one panel of `--help`; a command takes it as one parameter and passes it on as an object
(see `panels.expand_groups`). `rnnsearch --help` reads this module, so it must not import numpy or torch.

Help texts and defaults appear in docs/commands.md, which a test compares. `check` of a group rejects options without
effect. Tests: tests/commands/test_usage.py, tests/test_docs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from rnnsearch.cli.panels import OptionGroup
from rnnsearch.text.alignment_types import AlignedBy, Unit
from rnnsearch.utils.stdio import path_unless_dash

if TYPE_CHECKING:
    from rnnsearch.search.sampling import Variant
    from rnnsearch.text.markup.protected import ProtectedType
    from rnnsearch.translator.translator import Translator

MAX_BEAM = 1000  # memory grows with the beam

EngineName = Literal["local", "ray"]
Precision = Literal["auto", "fp32", "bf16", "int8"]
OutputFormat = Literal["text", "json", "nbest"]
MODEL_DEFAULT = "the model's setting"

# Arguments and single options.

Model = Annotated[Path, Argument(help="Model folder, as written by `rnnsearch train`.", show_default=False)]
Models = Annotated[
    list[Path],
    Argument(help="Model folder; give several for an ensemble.", metavar="MODEL", show_default=False),
]
SourceFile = Annotated[
    Path,
    Argument(
        help="Source text, one sentence per line, or arrays (.npy) for a model that reads them; for a model with "
        "several sources, a file of each: A|B.",
        show_default=False,
    ),
]
TargetFile = Annotated[
    Path, Argument(help="Target text, one sentence per line, parallel to the source.", show_default=False)
]
OutputFile = Annotated[
    Path | None, Option("-o", "--output", callback=path_unless_dash, help="Output file instead of standard output.")
]
RequiredOutputFile = Annotated[
    Path, Option("-o", "--output", help="Output file, one line per input line.", show_default=False)
]
OutputFolder = Annotated[Path, Option("-o", "--output", help="Folder to create.", show_default=False)]
Beam = Annotated[
    int | None, Option(min=1, max=MAX_BEAM, help="Beam width; 1 is greedy search.", show_default=MODEL_DEFAULT)
]
NoRepeatNgram = Annotated[
    int | None, Option(min=0, help="Forbid repeated n-grams of this length.", show_default=MODEL_DEFAULT)
]
AlignBy = Annotated[
    AlignedBy | None,
    Option(
        help="Source of the alignments. aligner: the model's aligner; attention: attention when the word is predicted; "
        "read: attention at the next decoder step, after the word has been read; posterior: attention given the "
        "target word (slow).",
        show_default="aligner, if the model has one",
    ),
]
AlignmentUnit = Annotated[Unit, Option(help="Unit of the indices: words, or tokens (symbols).")]
MaxSource = Annotated[
    int, Option(min=1, max=100_000, help="Maximum number of tokens per sentence; the output of a longer line is empty.")
]
MaxPairTokens = Annotated[
    int,
    Option(
        "--max-symbols",  # the option keeps its published name; symbols are tokens
        min=1,
        max=100_000,
        help="Maximum number of tokens per sentence, or rows per array; the output of a pair with a longer one is "
        "empty.",
    ),
]
PairDocuments = Annotated[
    bool,
    Option(
        "--documents",
        help="Empty lines separate documents: a model with data.context reads the previous sentences of the same "
        "document.",
    ),
]
TranslationPrecision = Annotated[
    Precision | None,
    Option(
        help="Precision of matrix products on a CPU; int8 is the least accurate.",
        show_default=MODEL_DEFAULT,
        rich_help_panel="Hardware",
    ),
]
Device = Annotated[str, Option(help="Device: cpu, cuda or cuda:N.", rich_help_panel="Hardware")]


# Groups.


@dataclass(frozen=True)
class DirectionGroup(OptionGroup):
    """The direction of a multi-way model."""

    panel = "Languages"

    source_language: Annotated[
        str | None,
        Option("--from", help="Source language, for a model with several directions.", show_default="the only one"),
    ] = None
    target_language: Annotated[
        str | None,
        Option("--to", help="Target language, for a model with several directions.", show_default="the only one"),
    ] = None

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """The source and the target language, or None."""
        return self.source_language, self.target_language

    def select(self, translator: Translator) -> Translator:
        """Return the translator of the direction."""
        return translator.select(*self.languages)


@dataclass(frozen=True)
class ZeroShotGroup(DirectionGroup):
    """The direction of a multi-way model, which may be one without training text."""

    zero_shot: Annotated[
        bool,
        Option("--zero-shot", help="Accept a direction that the model was not trained on, between its languages."),
    ] = False

    def check(self) -> None:
        if self.zero_shot and None in self.languages:
            raise BadParameter("--zero-shot needs --from and --to")

    def select(self, translator: Translator) -> Translator:
        return translator.select(*self.languages, zero_shot=self.zero_shot)


@dataclass(frozen=True)
class HardwareGroup(OptionGroup):
    """The device and the number of CPU threads."""

    panel = "Hardware"

    device: Device = "cpu"
    threads: Annotated[int | None, Option(min=1, max=1024, help="Number of CPU threads.", show_default="all cores")] = (
        None
    )

    def set_threads(self) -> None:
        """Set the number of PyTorch's threads, if the option is given."""
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)


@dataclass(frozen=True)
class TranslationHardwareGroup(HardwareGroup):
    """Hardware options of commands that translate text."""

    precision: TranslationPrecision = None
    batch: Annotated[int | None, Option(min=1, help="Sentences per batch.", show_default=MODEL_DEFAULT)] = None


@dataclass(frozen=True)
class BulkGroup(OptionGroup):
    """Processing in shards, so that an interrupted run can be resumed, in this process or on a Ray cluster."""

    panel = "Bulk"

    engine: Annotated[
        EngineName | None,
        Option(
            help="Process the input in shards, so that an interrupted run can be resumed: in this process (local) or "
            "on a cluster (ray)."
        ),
    ] = None
    store: Annotated[
        str | None,
        Option(help="Folder or URL (s3://...) in which shards are stored.", show_default="OUTPUT.partial"),
    ] = None
    rows: Annotated[int | None, Option(min=1, help="Minimum number of lines per shard.", show_default="16 batches")] = (
        None
    )
    actors: Annotated[
        int | None,
        Option(min=1, help="Maximum number of processes of --engine ray.", show_default="as many as fit"),
    ] = None

    def check(self) -> None:
        for name, value in {"store": self.store, "rows": self.rows}.items():
            if value is not None and self.engine is None:
                raise BadParameter(f"--{name} has no effect without --engine")
        if self.actors is not None and self.engine != "ray":
            raise BadParameter("--actors has no effect without --engine ray")


@dataclass(frozen=True)
class AlwaysBulkGroup(BulkGroup):
    """Bulk options of commands that always work in shards."""

    engine: Annotated[EngineName, Option(help="Translate in this process (local) or on a cluster (ray).")] = "local"


@dataclass(frozen=True)
class PrepareBulkGroup(BulkGroup):
    """Bulk options of `prepare`."""

    store: Annotated[
        str | None,
        Option(help="Folder or URL (s3://...) in which shards are stored.", show_default="DATA.partial"),
    ] = None
    rows: Annotated[int | None, Option(min=1, help="Minimum number of pairs per shard.", show_default="20000")] = None


@dataclass(frozen=True)
class FileGroup(OptionGroup):
    """The files of `translate`."""

    panel = "Input and output"

    input: Annotated[
        Path | None,
        Option(
            "-i",
            "--input",
            callback=path_unless_dash,
            help="Input file instead of standard input; for a model with several sources, a file of each, A|B, or one "
            "with a column per source.",
        ),
    ] = None
    output: OutputFile = None
    alignments: Annotated[Path | None, Option(help="Write word alignments (Pharaoh format) to this file.")] = None


@dataclass(frozen=True)
class LineGroup(OptionGroup):
    """Input and output of the lines, and how each translation is written."""

    panel = "Input and output"

    format: Annotated[
        OutputFormat,
        Option(help="text; json, one object per sentence with all fields; or nbest, one line per translation."),
    ] = "text"
    n_best: Annotated[
        int, Option(min=1, max=MAX_BEAM, help="Translations per sentence, for --format json and nbest.")
    ] = 1
    unit: AlignmentUnit = "words"
    by: Annotated[
        Literal["aligner", "attention", "read"] | None,
        Option(
            help="Source of the alignments; read: attention at the next decoder step, after the word has been read.",
            show_default="aligner, if the model has one",
        ),
    ] = None
    split: Annotated[
        Literal["sentences", "lines"],
        Option(
            help="sentences: translate each sentence of a line separately, and join them again; lines: one sentence "
            "per line."
        ),
    ] = "sentences"
    documents: Annotated[
        bool,
        Option(
            "--documents",
            help="Empty lines separate documents: a model with data.context reads the previous sentences of the same "
            "document, not only those of the same line.",
        ),
    ] = False
    stream: Annotated[
        bool,
        Option(
            "--stream",
            help="Translate words while the rest of the line has not arrived (simultaneous translation); needs a model "
            "with the window wait-k, monotonic attention or an agent.",
        ),
    ] = False
    max_source: MaxSource = 2000
    normalize: Annotated[
        Literal["none", "standard", "punctuation"] | None,
        Option(
            help="Normalisation of the input (spaces, accents, invisible characters, capital letters; see "
            "text.normalize), for example for a model that was trained without.",
            show_default=MODEL_DEFAULT,
        ),
    ] = None
    min_confidence: Annotated[
        float | None,
        Option(min=0.0, max=1.0, help="Minimum confidence of a translation (see --unsure); needs a calibrated model."),
    ] = None
    unsure: Annotated[
        Literal["empty", "mark"] | None,
        Option(
            help='Output for a translation below --min-confidence: an empty line, or the text prefixed with "[?]".',
            show_default="empty",
        ),
    ] = None

    def check(self) -> None:
        if self.n_best > 1 and self.format == "text":
            raise BadParameter("--n-best needs --format json or nbest; text has one line per sentence")
        if self.unsure is not None and self.min_confidence is None:
            raise BadParameter("--unsure has no effect without --min-confidence")
        if self.min_confidence is not None and self.format != "text":
            raise BadParameter("--min-confidence needs --format text; json has the confidence of each line")


@dataclass(frozen=True)
class SearchGroup(OptionGroup):
    """Beam search, and the choice among the translations that it finds."""

    panel = "Search"

    beam: Beam = None
    length_penalty: Annotated[
        float | None,
        Option(min=0.0, max=10.0, help="Rank by log-probability / length ** this.", show_default=MODEL_DEFAULT),
    ] = None
    max_length: Annotated[
        int | None,
        Option(
            min=1,
            max=100_000,
            help="Maximum number of tokens per translation.",
            show_default="depends on the source length",
        ),
    ] = None
    no_repeat_ngram: NoRepeatNgram = None
    candidates: Annotated[
        int | None,
        Option(
            min=0,
            max=100,
            help="Restrict output to this many candidate translations per source token; 0: the whole vocabulary.",
            show_default=MODEL_DEFAULT,
        ),
    ] = None
    mbr: Annotated[
        Literal["chrf", "bleu"] | None,
        Option(help="Minimum Bayes risk decoding: choose the translation most similar to all others by this metric."),
    ] = None
    reranker: Annotated[
        Path | None,
        Option(help="Rerank with this model (a folder written by `rnnsearch reranker`).", show_default=False),
    ] = None

    def check(self) -> None:
        if self.mbr is not None and self.reranker is not None:
            raise BadParameter("--mbr and --reranker cannot be combined; choose one")


METHODS_OF_OPTION = {
    "temperature": ("--sample", "--stochastic"),
    "top_k": ("--sample",),
    "top_p": ("--sample",),
    "seed": ("--sample", "--stochastic", "--noisy"),
    "diversity": ("--groups",),
    "sigma": ("--noisy",),
}
"""Option -> the search methods that read it; for others it is an error."""


@dataclass(frozen=True)
class SampleSwitch(OptionGroup):
    """The option that turns on sampling."""

    panel = "Sampling"

    sample: Annotated[
        bool, Option("--sample", help="Sample each token; --beam is the number of samples (1 by default).")
    ] = False


@dataclass(frozen=True)
class SamplingSettings(OptionGroup):
    """Settings of sampling."""

    panel = "Sampling"

    temperature: Annotated[
        float | None,
        Option(min=1e-3, max=1e3, help="Sampling temperature; below 1 favours likely tokens.", show_default="1"),
    ] = None
    top_k: Annotated[int | None, Option(min=1, help="Sample from the K most probable tokens.", show_default="all")] = (
        None
    )
    top_p: Annotated[
        float | None,
        Option(
            min=1e-9,
            max=1.0,
            help="Nucleus sampling: sample from the smallest set of tokens with this total probability.",
            show_default="1",
        ),
    ] = None
    seed: Annotated[int | None, Option(min=0, help="Random seed for sampling.", show_default="1")] = None

    def sampling(self) -> Variant:
        """Return the sampling search of these options."""
        from rnnsearch.search.sampling import Sampling

        return Sampling(**_set_options(self, "temperature", "top_k", "top_p", "seed"))


# Dataclasses take fields from the last base class first, so that --sample precedes its settings.
@dataclass(frozen=True)
class SamplingGroup(SamplingSettings, SampleSwitch):
    """Sampling instead of beam search, if `--sample` is given."""

    def methods(self) -> dict[str, bool]:
        """Return the options that select a search method other than beam search, and whether each is given."""
        return {"--sample": self.sample}

    def check(self) -> None:
        methods = self.methods()
        selected = [method for method, is_given in methods.items() if is_given]
        if len(selected) > 1:
            raise BadParameter(f"{selected[0]} and {selected[1]} are different search methods; choose one")
        for option, users in METHODS_OF_OPTION.items():
            known_users = [method for method in users if method in methods]
            if getattr(self, option, None) is not None and not set(selected) & set(known_users):
                raise BadParameter(f"--{option.replace('_', '-')} has no effect without {' or '.join(known_users)}")

    def variant(self) -> Variant | None:
        """Return the selected search method, or None for beam search."""
        return self.sampling() if self.sample else None


@dataclass(frozen=True)
class SearchMethodGroup(SamplingGroup):
    """Search methods of `translate` other than beam search."""

    stochastic: Annotated[
        bool, Option("--stochastic", help="Stochastic beam search: draw --beam distinct samples without replacement.")
    ] = False
    groups: Annotated[int | None, Option(min=2, help="Diverse beam search: split the beam into this many groups.")] = (
        None
    )
    diversity: Annotated[
        float | None,
        Option(
            min=0.0,
            help="Penalty for a token that an earlier group chose at the same step.",
            show_default="0.5",
        ),
    ] = None
    noisy: Annotated[
        int | None,
        Option(
            min=2,
            help="Noisy parallel decoding with this many chains (Cho 2016); the most probable translation is returned.",
        ),
    ] = None
    sigma: Annotated[
        float | None,
        Option(
            min=0.0,
            max=1e3,
            help="Standard deviation of the noise added by --noisy at the first token.",
            show_default="0.3",
        ),
    ] = None

    def methods(self) -> dict[str, bool]:
        return {
            "--sample": self.sample,
            "--stochastic": self.stochastic,
            "--groups": self.groups is not None,
            "--noisy": self.noisy is not None,
        }

    def variant(self) -> Variant | None:
        from rnnsearch.search.noisy import Noisy
        from rnnsearch.search.sampling import Diverse
        from rnnsearch.search.stochastic import Stochastic

        if self.stochastic:
            return Stochastic(**_set_options(self, "temperature", "seed"))
        if self.groups is not None:
            return Diverse(self.groups) if self.diversity is None else Diverse(self.groups, strength=self.diversity)
        if self.noisy is not None:
            return Noisy(self.noisy, **_set_options(self, "sigma", "seed"))
        return super().variant()


def _set_options(group: OptionGroup, *names: str) -> dict[str, Any]:
    """Return the options of these names that are given."""
    return {name: getattr(group, name) for name in names if getattr(group, name) is not None}


@dataclass(frozen=True)
class EnsembleGroup(OptionGroup):
    """Combination of several models."""

    panel = "Ensembles"

    weights: Annotated[
        str | None, Option(help="Ensemble weights, comma-separated: 0.5,0.3,0.2.", show_default="equal")
    ] = None
    mean: Annotated[
        Literal["geometric", "arithmetic"] | None,
        Option(help="Mean that combines the probabilities of several models.", show_default="geometric"),
    ] = None

    def check(self) -> None:
        self.parsed_weights()

    def parsed_weights(self) -> list[float] | None:
        """Return the weights as numbers; raise BadParameter if they are not numbers."""
        return parse_weights(self.weights)


@dataclass(frozen=True)
class FusionGroup(EnsembleGroup):
    """Combination of several models, sources and a language model."""

    averaging: Annotated[
        Literal["early", "late", "both"] | None,
        Option(
            help="For a model with several sources: the decoder reads all of them, or the distributions of each are "
            "averaged.",
            show_default="the model's setting",
        ),
    ] = None
    lm: Annotated[
        Path | None,
        Option(help="Language model folder whose scores are added (shallow fusion).", show_default=False),
    ] = None
    lm_weight: Annotated[
        float | None,
        Option(
            min=0.0,
            max=100.0,
            help="Weight of the language model's scores.",
            show_default="the model's setting, or 0.1",
        ),
    ] = None


@dataclass(frozen=True)
class PivotGroup(OptionGroup):
    """Translation through a third language."""

    panel = "Third language"

    pivot: Annotated[
        Path | None,
        Option(
            help="Model that translates further: from the language into which MODEL translates.", show_default=False
        ),
    ] = None
    pivot_n_best: Annotated[
        int,
        Option(
            min=1,
            max=100,
            help="Number of translations into the third language to translate further; their probabilities are summed.",
        ),
    ] = 1

    pivot_language: Annotated[
        str | None,
        Option(
            help="The third language, for models with several directions. Without --pivot, MODEL itself translates "
            "further.",
            show_default="the only one",
        ),
    ] = None

    @property
    def is_used(self) -> bool:
        """True if text is translated through a third language."""
        return self.pivot is not None or self.pivot_language is not None

    def check(self) -> None:
        if not self.is_used and self.pivot_n_best != 1:
            raise BadParameter("--pivot-n-best has no effect without --pivot or --pivot-language")


def parse_weights(text: str | None) -> list[float] | None:
    """Return the numbers of `--weights`; raise BadParameter if they are not numbers."""
    if text is None:
        return None
    try:
        return [float(weight) for weight in text.split(",")]
    except ValueError:
        raise BadParameter(f"--weights must be comma-separated numbers; got {text}") from None


@dataclass(frozen=True)
class UnknownWordsGroup(OptionGroup):
    """Treatment of `<unk>` in translations."""

    panel = "Unknown words"

    replace_unknown: Annotated[
        Literal["none", "copy", "dictionary"] | None,
        Option(
            help="Replace <unk> by the most attended source word (copy), or by that word's entry in the dictionary.",
            show_default=MODEL_DEFAULT,
        ),
    ] = None
    dictionary: Annotated[
        Path | None, Option(help="Dictionary for --replace-unknown: source word, tab, translation.")
    ] = None
    ban_unknown: Annotated[bool, Option("--ban-unknown", help="Never produce <unk>.")] = False

    def check(self) -> None:
        if self.ban_unknown and (self.replace_unknown or self.dictionary):
            raise BadParameter("--replace-unknown and --dictionary have no effect with --ban-unknown")


@dataclass(frozen=True)
class TermsGroup(OptionGroup):
    """Terminology, banned phrases and markup."""

    panel = "Terms and tags"

    glossary: Annotated[
        Path | None,
        Option(help="Terms that translations must contain: source term, tab, target term (or several forms: a|b)."),
    ] = None
    force_terms: Annotated[
        bool, Option("--force-terms", help="Place the exact terms, even if the model can inflect terms.")
    ] = False
    ban: Annotated[
        Path | None,
        Option(help="Words and phrases that no translation may contain, one per line.", show_default=False),
    ] = None
    tags: Annotated[
        bool,
        Option(
            "--tags", help="Input has inline tags (<b>...</b>, <x/>); they are placed around the aligned target words."
        ),
    ] = False
    protect: Annotated[
        list[str] | None,
        Option(
            help="Copy text of these types unchanged: urls, emails, placeholders, codes, numbers (comma-separated), "
            "all, or none. [default: urls,emails,placeholders]"
        ),
    ] = None

    def check(self) -> None:
        self.protected_types()

    def protected_types(self) -> tuple[ProtectedType, ...]:
        """Return the names in `--protect`, which can be given several times, or else the default.

        With `--tags`, codes of XLIFF are placeholders, so these are always protected.

        Raises:
            BadParameter: A name is unknown.
        """
        from rnnsearch.errors import RnnsearchError
        from rnnsearch.text.markup.protected import DEFAULT_PROTECTED, parse_protected

        if self.protect is None:
            return DEFAULT_PROTECTED
        names = [name for argument in self.protect for name in argument.split(",")]
        try:
            return parse_protected([*names, "placeholders"] if self.tags else names)
        except RnnsearchError as error:
            raise BadParameter(str(error)) from None

    def banned_phrases(self) -> tuple[str, ...]:
        """Return the phrases in the file of `--ban`, without empty lines.

        Raises:
            DataError: The file cannot be read or contains no phrase.
        """
        from rnnsearch.data.corpus import read_lines
        from rnnsearch.errors import DataError

        if self.ban is None:
            return ()
        phrases = tuple(line.strip() for line in read_lines(self.ban) if line.strip())
        if not phrases:
            raise DataError(f"{self.ban}: must contain phrases, one per line; got none")
        return phrases
