"""The work of `translate`, `backtranslate` and `distil`: lines of text to lines of output.

`TranslateOptions` says how; it can be pickled, so that workers on other machines build the same `LineTranslator`. That
translates one chunk of lines per call and returns the text for each output file. `translate_documents.py` translates
the lines of documents with it; the prompt (`prompt.py`) takes only its translator and search options.

Fields of `TranslateOptions` are part of the fingerprint of stored shards, and the keys of `translation_row` are those
of `--format json` (docs/translating.md). Tests: tests/commands/test_translate.py, tests/commands/test_bulk.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from rnnsearch.bulk import Counts, Done, digest
from rnnsearch.cli.io import chunked
from rnnsearch.cli.options import (
    DirectionGroup,
    FusionGroup,
    LineGroup,
    PivotGroup,
    SamplingGroup,
    SearchGroup,
    TermsGroup,
    TranslationHardwareGroup,
    UnknownWordsGroup,
    ZeroShotGroup,
)
from rnnsearch.cli.pairs import (
    BATCHES_PER_CHUNK,
    EMPTY_OUTPUT,
    LinkWriter,
    fits_byte_limit,
    report_missing_aligner,
    source_columns,
    too_long_message,
    too_many_rows_message,
    warn_of_uniform_attention,
)
from rnnsearch.cli.translate_steps import (
    REPLACED_PREFIX,
    ConfidenceFilter,
    GlossaryTranslator,
    build_search,
    choose_reranking,
    models_of,
    report_confidence,
    report_replaced_words,
    report_terms,
    require_several,
)
from rnnsearch.data.arrays import NamedArray
from rnnsearch.text.markup.marks import MarkedText
from rnnsearch.translator.texts import MAX_LINE_SENTENCES, assign_sentences, line_spans

if TYPE_CHECKING:
    from rnnsearch.search.options import SearchOptions
    from rnnsearch.text.alignment_types import AlignedBy
    from rnnsearch.text.alignments import Link
    from rnnsearch.text.tokenizer import Segmented
    from rnnsearch.translator.pivot import PivotTranslator
    from rnnsearch.translator.translation import Translation
    from rnnsearch.translator.translator import Translator

# Names of outputs.
OUTPUT = "output"
ALIGNMENTS = "alignments"

EMPTY_LINES = "empty"  # name of a count
TOO_LONG = "too long"  # warning of --format json about a line with too many tokens


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """The models, and how they translate lines and write the results."""

    models: tuple[Path, ...]
    """Model folders or engine files; several make an ensemble."""
    input_name: str
    """Name of the input in messages."""
    direction: DirectionGroup = field(default_factory=DirectionGroup)
    """Direction of a multi-way model."""
    lines: LineGroup = field(default_factory=LineGroup)
    """Options of input and output lines."""
    search: SearchGroup = field(default_factory=SearchGroup)
    sampling: SamplingGroup = field(default_factory=SamplingGroup)
    ensemble: FusionGroup = field(default_factory=FusionGroup)
    """Options of ensembles and language models."""
    pivot: PivotGroup = field(default_factory=PivotGroup)
    """The model that translates further, from a third language."""
    unknown_words: UnknownWordsGroup = field(default_factory=UnknownWordsGroup)
    terms: TermsGroup = field(default_factory=TermsGroup)
    """Options of terms and markup."""
    hardware: TranslationHardwareGroup = field(default_factory=TranslationHardwareGroup)
    alignments: bool = False
    """True if word alignments are written, too."""
    banned_phrases: tuple[str, ...] = ()
    """Contents of the file of `--ban`."""
    closest_to: Path | None = None
    """References: choose the translation in the beam that is closest to the reference.

    Each line is then the text and its reference, joined by a line feed.
    """
    tag: str | None = None
    """Word before each translation."""
    second_column: Path | None = None
    """Lines that are written after each translation and a tab.

    Each line is then the text and its second column, joined by a line feed.
    """

    @property
    def has_markup(self) -> bool:
        """True if lines may contain tags or protected text."""
        return self.terms.tags or bool(self.terms.protect)

    @property
    def parallel(self) -> Path | None:
        """The file whose lines are joined to the lines of the text, or None."""
        return self.closest_to or self.second_column

    @property
    def supports_prompt(self) -> bool:
        """True if the prompt at a terminal supports all options that are given."""
        unsupported = (
            self.terms.glossary,
            self.pivot.is_used or None,
            self.search.mbr,
            self.search.reranker,
            self.lines.min_confidence,
            self.hardware.batch,
        )
        return (
            not self.has_markup
            and self.lines.format == "text"
            and self.lines.max_source == LineGroup.max_source
            and all(option is None for option in unsupported)
        )

    def __call__(self) -> LineTranslator:
        """Load the models. This makes the options a factory of `bulk.Work`."""
        return LineTranslator(self)

    def with_absolute_paths(self) -> TranslateOptions:
        """Return the same options for a process with another working directory."""
        absolute: TranslateOptions = _map_paths(self, Path.absolute)
        return absolute

    def fingerprint(self) -> dict[str, str]:
        """Return everything that the results depend on by option; paths are replaced by digests of their contents."""
        options = _flat_options(self)
        del options["input name"], options["threads"], options["stream"]
        options["device"] = self.hardware.device.partition(":")[0]
        for name in ("source language", "target language"):
            # Shards of earlier versions were stored without these options.
            if options[name] is None:
                del options[name]
        return {name: str(_map_paths(value, digest)) for name, value in options.items()}


def _map_paths(value: Any, change: Callable[[Path], Any]) -> Any:
    """Return a dataclass, list or tuple with all paths in it changed."""
    if isinstance(value, Path):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(_map_paths(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {item.name: _map_paths(getattr(value, item.name), change) for item in fields(value)}
        return replace(value, **changed)
    return value


def _flat_options(group: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, and of the dataclasses in it, by name with spaces."""
    options: dict[str, Any] = {}
    for option in fields(group):
        value = getattr(group, option.name)
        if is_dataclass(value):
            options |= _flat_options(value)
        else:
            options[option.name.replace("_", " ")] = value
    return options


class ParsedLine(NamedTuple):
    """A line without its markup, and its sentences."""

    marked: MarkedText
    """The text and its markup."""
    spans: list[tuple[int, int]]
    """Characters [start, end) of each sentence in the text; one span of the whole text for a single sentence."""
    sources: tuple[str, ...] | None = None
    """The text in each source of a model with several, which are one sentence; None for a model with one source."""


class LineTranslator:
    """Loaded models that translate lines (a `bulk.Work`).

    Attributes:
        chunk_size: Number of lines that are sorted by length together.
        several: The translator if its model has several sources, otherwise None.
    """

    def __init__(self, options: TranslateOptions, translator: Translator | PivotTranslator | None = None) -> None:
        """Load the models, unless they are loaded already, as `translator`.

        Raises:
            BadParameter: An option is incompatible with the models.
            RnnsearchError: A model cannot be loaded (see `translator.loading.load`), or does not support an option.
        """
        options.hardware.set_threads()
        self.options = options
        self.translator = translator or load_translator(options)
        self.translator.protect = options.terms.protected_types()
        self.several = several_sources(self.translator)
        if self.several is not None:
            self._require_options_for(self.several)
            self.several.protect = ()
        self._counts: Counts = {}
        if options.alignments or options.terms.tags:
            # Called for its check, so that errors come before the first line is translated.
            self.translator.require_alignments(options.lines.by)
        if options.alignments or options.terms.tags or options.lines.format == "json":
            for model in models_of(self.translator):
                report_missing_aligner(model, options.lines.by)
        if options.lines.min_confidence is not None:
            self.translator.require_confidence()
        if options.lines.documents:
            self.translator.require_context()
        self._order = self.translator.document_order()
        # The current document: with --documents the lines since the last empty one, otherwise one line.
        self._document = 0
        batch = options.hardware.batch or self.translator.config.search.batch_sentences
        self.chunk_size = BATCHES_PER_CHUNK * batch
        self.search_options, rerank = choose_reranking(
            self.translator, search_options(self.translator, options), options.search, options.hardware.device
        )
        if options.closest_to is not None:
            from rnnsearch.translator.rerank import Closest

            require_several(self.search_options, "--interpolate")
            self.search_options = replace(self.search_options, n_best=self.search_options.beam)
            self._choose_closest = Closest(self.translator.languages[1])
        self._search = build_search(self._glossary_translator() or self.translator, self.search_options, batch, rerank)
        self._confidence = ConfidenceFilter(options.lines.min_confidence, options.lines.unsure, self._counts)
        # With --by read the model is loaded so that its attention is that of the position after each word.
        by: AlignedBy | None = "attention" if options.lines.by == "read" else options.lines.by
        self._writer = TranslationWriter(options, by, self._confidence)
        sources = () if self.several is None else self.several.sources
        self._links = LinkWriter(options.lines.unit, by, self._counts, sources)

    def _require_options_for(self, several: Translator) -> None:
        """Raise ModelError, because the model has several sources, if an option needs one."""
        options = self.options
        for is_used, task in (
            (options.has_markup, "translating markup, or text that is preserved,"),
            (options.terms.glossary is not None, "translating with a glossary"),
            (options.search.reranker is not None, "reranking"),
            (options.closest_to is not None, "interpolation with references"),
        ):
            if is_used:
                several.require_one_source(task)

    def _glossary_translator(self) -> GlossaryTranslator | None:
        terms = self.options.terms
        if self.options.pivot.is_used:
            # `load_translator` has rejected options of terms.
            return None
        [translator] = models_of(self.translator)
        if terms.force_terms and (terms.glossary is None or not translator.reads_terms):
            raise typer.BadParameter("--force-terms needs a --glossary, and a model with text.inline_terms")
        if terms.glossary is None:
            return None
        return GlossaryTranslator(terms.glossary, translator, self.search_options, terms.force_terms, self._counts)

    def __call__(self, lines: Sequence[str], first: int) -> Done:
        """Translate any number of lines, chunk by chunk; `first` is the number of the first one, from 0."""
        return Done.concatenate(self._translate_chunks(lines, first))

    def _translate_chunks(self, lines: Sequence[str], first: int) -> Iterator[Done]:
        for chunk in chunked(lines, self.chunk_size):
            yield self.translate(chunk, first)
            first += len(chunk)

    def translate(
        self, lines: Sequence[str | tuple[str, ...]], first: int, grammars: Sequence[str | None] | None = None
    ) -> Done:
        """Translate one chunk of lines.

        Args:
            lines: The lines; for a model with several sources, also tuples of texts and arrays (`NamedArray`).
            first: Number of the first line, from 0.
            grammars: Grammar of the placeholders of each line (see `text.markup.protected`).
        """
        self._counts.clear()
        parallel: Sequence[str] = ()
        if self.options.parallel is not None:
            lines, parallel = zip(*(str(line).split("\n") for line in lines), strict=True)
        texts, skipped, messages = self._parse_lines(lines, first)
        # Lazy: a group of lines is translated when the loop below reaches its first line.
        n_best_lists = self._n_best(texts, grammars or [None] * len(texts))
        if self.options.closest_to is not None:
            n_best_lists = map(self._choose_closest, n_best_lists, parallel)
        return self._written([text.marked for text in texts], n_best_lists, first, skipped, messages, parallel)

    def translate_arrays(self, arrays: Sequence[NamedArray], first: int) -> Done:
        """Translate one chunk of arrays; `first` is the number of the first one, from 0."""
        self._counts.clear()
        max_rows = self.options.lines.max_source
        searched: list[Any] = []
        skipped: list[str | None] = []
        messages = []
        for number, array in enumerate(arrays, first + 1):
            fits = len(array.values) <= max_rows
            searched.append(array if fits else NamedArray(array, array.values[:0]))
            skipped.append(None if fits else str(array))
            if not fits:
                messages.append(too_many_rows_message(self.options.input_name, number, max_rows, "--max-source"))
        sources = [MarkedText("", tags=False)] * len(arrays)
        return self._written(sources, iter(self._search(searched)), first, skipped, messages)

    def _written(
        self,
        sources: Sequence[MarkedText],
        n_best_lists: Iterator[list[Translation]],
        first: int,
        skipped: Sequence[str | None],
        messages: list[str],
        parallel: Sequence[str] = (),
    ) -> Done:
        """Return the output of one chunk.

        Args:
            sources: Text and markup of each line.
            n_best_lists: Its translations, best first.
            first: Number of the first line, from 0.
            skipped: For each line that was too long, the line.
            messages: Messages about the lines.
            parallel: The second column of each line, if it has one.
        """
        written: list[str] = []
        links: list[str] = []
        replaced: Counter[str] = Counter()
        for number, source, n_best, skipped_line in zip(count(first), sources, n_best_lists, skipped, strict=False):
            best = n_best[0]
            written.append(self._with_tag(self._writer.lines(source, n_best, number, skipped_line)))
            if self.options.alignments:
                links.append(self._links.line(best, self._confidence.words_before(best)))
            replaced.update(REPLACED_PREFIX + word.by for word in best.replaced)
            if best.blocked:
                messages.append(blocked_message(self.options.input_name, number + 1, bool(best.sentences)))
        num_empty = written.count("\n")
        if self.options.second_column is not None:
            written = list(map(_tsv_row, written, parallel))
        outputs = {OUTPUT: "".join(written)}
        if self.options.alignments:
            outputs[ALIGNMENTS] = "".join(links)
        return Done(outputs, messages, {**self._counts, **replaced, EMPTY_LINES: num_empty})

    def _n_best(self, lines: Sequence[ParsedLine], grammars: Sequence[str | None]) -> Iterator[list[Translation]]:
        """Yield the n best translations of each line."""
        remaining_grammars = iter(grammars)
        # Not all lines together: each may have thousands of sentences.
        for group in _groups(lines, self.chunk_size):
            sentences: list[str | Segmented] = []
            documents: list[int] = []
            for line, grammar in zip(group, remaining_grammars, strict=False):
                if line.sources is not None:
                    assert self.several is not None
                    sentences += self.several.segment([line.sources])
                    continue
                texts_of_line = [line.marked.text[start:end] for start, end in line.spans]
                # Terms are found in texts, so a glossary takes placeholders by the default grammar.
                if grammar is not None and self.options.terms.glossary is None:
                    sentences += self.translator.segment(texts_of_line, grammars=[grammar] * len(texts_of_line))
                else:
                    sentences += texts_of_line
                if not self.options.lines.documents or not line.marked.text.strip():
                    self._document += 1
                documents += [self._document] * len(texts_of_line)
            texts = [line.marked.text for line in group]
            spans = [line.spans for line in group]
            results = assign_sentences(
                texts, spans, self._order.n_best(sentences, documents, self._search), self.translator.languages[1]
            )
            for result in results:
                yield result.translations()

    def _parse_lines(
        self, lines: Sequence[str | tuple[str, ...]], first: int
    ) -> tuple[list[ParsedLine], list[str | None], list[str]]:
        """Return the texts of lines, the lines that are too long (their text is empty), and messages about these.

        Markup does not count towards the limit of tokens.
        """
        max_tokens = self.options.lines.max_source
        parsed: list[ParsedLine] = []
        skipped: list[str | None] = []
        messages: list[str] = []
        for number, line in enumerate(lines, first + 1):
            texts = (line,) if isinstance(line, str) else line
            text = self._parse(line, number) if all(map(fits_byte_limit, texts)) else None
            if text is not None and self._fits(text, max_tokens):
                parsed.append(text)
                skipped.append(None)
                continue
            parsed.append(self._parse("", number))
            skipped.append("\t".join(texts))
            if text is not None and len(text.spans) > MAX_LINE_SENTENCES:
                messages.append(too_many_sentences_message(self.options.input_name, number))
            else:
                messages.append(too_long_message(self.options.input_name, number, max_tokens, "--max-source"))
        return parsed, skipped, messages

    def _parse(self, line: str | tuple[str, ...], number: int) -> ParsedLine:
        """Return a line without its markup, and its sentences or sources; `number` is that of the line, from 1."""
        if self.several is not None:
            sources = line
            if isinstance(line, str):
                sources = source_columns(line, self.several.sources, f"{self.options.input_name}:{number}")
            return ParsedLine(MarkedText(sources[0], tags=False), [(0, len(sources[0]))], tuple(sources))
        assert isinstance(line, str)
        marked = MarkedText(line, tags=self.options.terms.tags)
        if self.options.lines.split == "lines":
            return ParsedLine(marked, [(0, len(marked.text))])
        return ParsedLine(marked, line_spans(marked.text, self.translator.languages[0]))

    def _fits(self, line: ParsedLine, max_tokens: int) -> bool:
        if self.several is not None and line.sources is not None:
            for source, name in zip(line.sources, self.several.sources, strict=True):
                if isinstance(source, NamedArray):
                    fits = len(source.values) <= max_tokens
                else:
                    # Raises an error for text in the column of an array.
                    fits = not source or self.several.system.text_tokenizer(name).fits(source, max_tokens)
                if not fits:
                    return False
            return True
        if len(line.spans) > MAX_LINE_SENTENCES:
            return False
        return all(self.translator.source.fits(line.marked.text[start:end], max_tokens) for start, end in line.spans)

    def _with_tag(self, line: str) -> str:
        if self.options.tag is None or line == "\n":
            return line
        return f"{self.options.tag} {line}"


def _tsv_row(line: str, other: str) -> str:
    """Return a line of output and another text as two columns; tabs inside them become spaces."""
    columns = [text.replace("\t", " ") for text in (line.removesuffix("\n"), other)]
    return "\t".join(columns) + "\n"


def _groups(lines: Sequence[ParsedLine], max_sentences: int) -> Iterator[list[ParsedLine]]:
    """Yield consecutive lines with at most so many sentences together, but at least one line."""
    group: list[ParsedLine] = []
    num_sentences = 0
    for line in lines:
        if group and num_sentences + len(line.spans) > max_sentences:
            yield group
            group = []
            num_sentences = 0
        group.append(line)
        num_sentences += len(line.spans)
    if group:
        yield group


def blocked_message(input_name: str, number: int, has_sentences: bool) -> str:
    """Return the message about a line for which the search found nothing, or for one of its sentences."""
    message = f"{input_name}:{number}: the search found no translation that satisfies the constraints"
    if has_sentences:
        return f"{message} for one of its sentences, which is omitted"
    return f"{message}; {EMPTY_OUTPUT}"


def too_many_sentences_message(input_name: str, number: int) -> str:
    """Return the message about a line that has too many sentences."""
    return f"{input_name}:{number}: must have at most {MAX_LINE_SENTENCES:,} sentences; {EMPTY_OUTPUT}"


def several_sources(translator: Translator | PivotTranslator) -> Translator | None:
    """Return a translator if its model has several sources, otherwise None."""
    from rnnsearch.translator.translator import Translator

    if isinstance(translator, Translator) and translator.has_several_sources:
        return translator
    return None


def load_translator(options: TranslateOptions) -> Translator | PivotTranslator:
    """Load the models as one translator.

    With a pivot, the options of ensembles are for the first model, and those of unknown words and language models for
    the second one, which writes the translations.
    """
    from rnnsearch.translator.loading import load

    ensemble = options.ensemble
    of_all: dict[str, Any] = {
        "candidates": options.search.candidates,
        "precision": options.hardware.precision,
        "attended_word": "read" if options.lines.by == "read" else None,
    }
    of_first: dict[str, Any] = {
        "weights": ensemble.parsed_weights(),
        "mean": ensemble.mean,
        "normalize": options.lines.normalize,
        "averaging": ensemble.averaging,
    }
    of_last: dict[str, Any] = {
        "replace_unknown": options.unknown_words.replace_unknown,
        "dictionary": options.unknown_words.dictionary,
        "language_model": ensemble.lm,
        "language_model_weight": ensemble.lm_weight,
    }
    pivot = options.pivot
    if not pivot.is_used:
        translator = load(list(options.models), options.hardware.device, **of_all, **of_first, **of_last)
        return options.direction.select(translator)
    from rnnsearch.translator.pivot import pivot as through

    _require_supported_by_pivot(options)
    first = load(list(options.models), options.hardware.device, **of_all, **of_first)
    # By default, the model itself translates further.
    if pivot.pivot is None and all(value is None for value in of_last.values()):
        last = first
    else:
        last = load(pivot.pivot or list(options.models), options.hardware.device, **of_all, **of_last)
    source, target = options.direction.languages
    # The requested beam, unless the first model must find more translations.
    beam = options.search.beam and max(options.search.beam, pivot.pivot_n_best)
    return through(first, last, pivot.pivot_n_best, beam, source=source, language=pivot.pivot_language, target=target)


def _require_supported_by_pivot(options: TranslateOptions) -> None:
    """Raise BadParameter if an option is for single models."""
    has_option = {
        "--zero-shot": isinstance(options.direction, ZeroShotGroup) and options.direction.zero_shot,
        "--glossary": options.terms.glossary is not None,
        "--force-terms": options.terms.force_terms,
        "--reranker": options.search.reranker is not None,
        "--min-confidence": options.lines.min_confidence is not None,
    }
    for option, is_given in has_option.items():
        if is_given:
            raise typer.BadParameter(f"{option} cannot be combined with --pivot, which translates with two models")


def search_options(translator: Translator | PivotTranslator, options: TranslateOptions) -> SearchOptions:
    """Return the model's search options with those of the command in their place."""
    return translator.options(
        beam=options.search.beam,
        n_best=options.lines.n_best,
        length_penalty=options.search.length_penalty,
        max_length=options.search.max_length,
        ban_unknown=options.unknown_words.ban_unknown,
        no_repeat_ngram=options.search.no_repeat_ngram,
        variant=options.sampling.variant(),
        banned=options.banned_phrases,
    )


def report_counts(options: TranslateOptions, counts: Counts) -> None:
    """Print what the counts of all lines mean."""
    if options.alignments:
        warn_of_uniform_attention(options.models[0], counts)
    report_terms(counts)
    report_replaced_words(counts)
    report_confidence(options.lines.min_confidence, options.lines.unsure, counts)


class TranslationWriter:
    """Formats translations as text, JSON or n-best lists."""

    def __init__(self, options: TranslateOptions, by: AlignedBy | None, confidence: ConfidenceFilter) -> None:
        """Store the options; `by` is the source of the links that place markup, by default the best one available."""
        self._format = options.lines.format
        self._by_attention = by == "attention"
        self._has_markup = options.has_markup
        self._confidence = confidence

    def lines(self, source: MarkedText, n_best: list[Translation], number: int, skipped: str | None) -> str:
        """Return the output of one line of input, which may be several lines in the n-best format.

        Args:
            source: Text and markup of the line.
            n_best: Its translations, best first.
            number: Number of the line, from 0.
            skipped: The input line, if it was too long and an empty one was translated in its place.
        """
        best = n_best[0]
        if self._format == "text":
            return self._confidence.line(best, self._text(source, best)) + "\n"
        if self._format == "json":
            row = self._row(source, best)
            if len(n_best) > 1:
                row["n_best"] = [self._row(source, translation) for translation in n_best]
            if skipped is not None:
                row |= {"source": skipped, "warnings": [TOO_LONG]}
            return json_line(row)
        lines = ""
        for translation in n_best:
            text = self._text(source, translation).replace("|||", "&#124;&#124;&#124;")
            lines += f"{number} ||| {text} ||| log_prob={translation.log_prob:.6f} ||| {translation.score:.6f}\n"
        return lines

    def _text(self, source: MarkedText, translation: Translation) -> str:
        """Return the translation with the markup of its source, on one line."""
        from rnnsearch.translator.translation import one_line

        links: Collection[Link] = ()
        if source.marks:
            links = translation.attended if self._by_attention else translation.alignment
        return one_line(source.place(one_line(translation.text), links))

    def _row(self, source: MarkedText, translation: Translation) -> dict[str, Any]:
        row = translation_row(translation, self._by_attention)
        if self._has_markup:
            row["marked"] = self._text(source, translation)
        if translation.sentences:
            row["sentences"] = [translation_row(sentence, self._by_attention) for sentence in translation.sentences]
        return row


def translation_row(translation: Translation, by_attention: bool = False) -> dict[str, Any]:
    """Return the fields of a translation in `--format json`.

    Args:
        by_attention: Take links from attention, even if the model has an aligner.
    """
    from rnnsearch.translator.confidence import warnings

    names = ("source", "text", "score", "log_prob", "finished", "tokens", "token_scores", "source_tokens")
    if by_attention:
        links = {"alignment": "attended", "token_alignment": "attended_tokens"}
    else:
        links = {"alignment": "alignment", "token_alignment": "token_alignment"}
    row: dict[str, Any] = translation.json_values(*names)
    values: Mapping[str, Any] = translation.json_values(*links.values())
    row |= {name: values[attribute] for name, attribute in links.items()}
    row |= translation.json_values("attention", "confidence", "word_confidence")
    row["replaced"] = [asdict(word) for word in translation.replaced]
    row["warnings"] = warnings(translation)
    if translation.pivot is not None:
        row["pivot"] = translation.pivot
    if translation.sources:
        row["sources"] = translation.source_texts
        row["alignments"] = translation.alignments
    if translation.missing_terms:
        row["missing_terms"] = translation.missing_terms
    if translation.rationale is not None:
        row["rationale"] = translation.rationale
    return row


def json_line(row: dict[str, Any]) -> str:
    """Return an object as a line of JSON."""
    return json.dumps(row, ensure_ascii=False) + "\n"
