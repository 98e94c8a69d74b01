"""`rnnsearch translate`, `score` and `align`.

The commands use `translate_lines.py`, `translate_documents.py`, `translate_arrays.py`, `pairs.py` and, at a terminal,
`prompt.py`. Numbers of input and output lines must be equal. Tests: tests/commands/test_translate.py,
tests/commands/test_translate_files.py, tests/commands/test_align.py, tests/commands/test_searches.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import BadParameter, Option

from rnnsearch.cli.bulk import require_files, run_in_shards
from rnnsearch.cli.io import (
    input_chunks,
    open_output,
    parallel_rows,
    print_message,
    require_distinct_files,
    source_files,
)
from rnnsearch.cli.options import (
    AlignBy,
    AlignmentUnit,
    BulkGroup,
    FileGroup,
    FusionGroup,
    HardwareGroup,
    LineGroup,
    MaxPairTokens,
    Model,
    Models,
    OutputFile,
    PairDocuments,
    PivotGroup,
    SearchGroup,
    SearchMethodGroup,
    SourceFile,
    TargetFile,
    TermsGroup,
    TranslationHardwareGroup,
    UnknownWordsGroup,
    ZeroShotGroup,
)
from rnnsearch.cli.panels import expand_groups
from rnnsearch.text.alignment_types import Symmetrisation

if TYPE_CHECKING:
    from rnnsearch.bulk import Counts, Done
    from rnnsearch.cli.translate_lines import LineTranslator, TranslateOptions


@expand_groups
def translate(
    models: Models,
    files: FileGroup,
    direction: ZeroShotGroup,
    lines: LineGroup,
    search: SearchGroup,
    sampling: SearchMethodGroup,
    ensemble: FusionGroup,
    pivot: PivotGroup,
    unknown_words: UnknownWordsGroup,
    terms: TermsGroup,
    bulk: BulkGroup,
    hardware: TranslationHardwareGroup,
) -> None:
    """Translate text, line by line.

    Every input line gives exactly one output line; its sentences are translated separately. Of a file whose name ends
    in .po, .tmx, .xliff, .html, .srt or .vtt, only the text is translated; a .npy file has arrays, for a model that
    reads them. At a terminal, without files, this starts a
    prompt that shows the probability of each word and the source words that it attends to.
    """
    _require_effective_options(files, lines, terms, bulk)
    from rnnsearch.cli.translate_lines import TranslateOptions, report_counts

    options = TranslateOptions(
        models=tuple(models),
        input_name=str(files.input or "<standard input>"),
        direction=direction,
        lines=lines,
        search=search,
        sampling=sampling,
        ensemble=ensemble,
        pivot=pivot,
        unknown_words=unknown_words,
        terms=terms,
        hardware=hardware,
        alignments=files.alignments is not None,
        banned_phrases=terms.banned_phrases(),
    )
    _require_models(models)
    report_counts(options, _translate_input(options, files, bulk))


def _require_effective_options(files: FileGroup, lines: LineGroup, terms: TermsGroup, bulk: BulkGroup) -> None:
    """Raise BadParameter if options of different groups are incompatible or have no effect."""
    has_markup = terms.tags or bool(terms.protect)
    if lines.unit != "words" and files.alignments is None:
        raise BadParameter("--unit has no effect without --alignments")
    if lines.by is not None and files.alignments is None and lines.format != "json" and not has_markup:
        raise BadParameter("--by has no effect without --alignments, --format json, --tags or --protect")
    require_distinct_files({"--output": files.output, "--alignments": files.alignments}, [files.input])
    require_files(bulk, files)
    if lines.documents and bulk.engine is not None:
        raise BadParameter("--documents cannot be combined with --engine, whose shards may divide documents")


def _require_models(models: Sequence[Path]) -> None:
    """Raise BadParameter if a path is that of a document, which users may take for the input argument."""
    for model in models:
        # Only if a file is named: the formats take 30 ms to import.
        if model.is_file():
            from rnnsearch.text.documents import document_format

            if document_format(model.name, b"") is not None:
                raise BadParameter(f"{model} is not a model; name the file to translate by -i")


def _translate_input(options: TranslateOptions, files: FileGroup, bulk: BulkGroup) -> Counts:
    """Translate the input according to its format, and return the counts of all lines."""
    if files.input is not None:
        from rnnsearch.cli.translate_arrays import is_array_file, require_array_options, translate_arrays

        if is_array_file(files.input) and "|" not in str(files.input):
            require_array_options(options, bulk)
            return translate_arrays(options, files)
        from rnnsearch.cli.translate_documents import (
            is_document,
            is_table_of_sources,
            require_line_files,
            require_text_options,
            translate_document,
        )

        require_line_files(files.input)
        if is_document(files.input) and not is_table_of_sources(options, files.input):
            require_text_options(options, bulk)
            return translate_document(options, files)
    if options.lines.stream:
        from rnnsearch.cli.translate_stream import require_stream_options, translate_stream

        require_stream_options(options, bulk)
        translate_stream(options, files)
        return {}
    if bulk.engine is not None:
        return _translate_in_shards(options, files, bulk)
    translator = options()
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if is_terminal and options.supports_prompt and files == FileGroup():
        _run_prompt(translator)
        return {}
    return _translate_lines(translator, files)


def _translate_in_shards(options: TranslateOptions, files: FileGroup, bulk: BulkGroup) -> Counts:
    """Translate a file in shards that an interrupted run need not repeat; return the counts of all lines."""
    from rnnsearch.cli.translate_lines import ALIGNMENTS, OUTPUT

    assert files.input is not None and files.output is not None, "`require_files` has checked it"
    if "|" in str(files.input) and not files.input.is_file():
        raise BadParameter("--engine needs one input file; join several sources as columns, with tabs between them")
    outputs = {OUTPUT: files.output}
    if files.alignments is not None:
        outputs[ALIGNMENTS] = files.alignments
    return run_in_shards(options, files.input, outputs, bulk)


def _run_prompt(translator: LineTranslator) -> None:
    """Translate what the user types at a terminal."""
    from rich.console import Console

    from rnnsearch.cli.prompt import Prompt
    from rnnsearch.cli.translate_steps import models_of

    [only_model] = models_of(translator.translator)
    only_model.require_one_source("the prompt")
    splits_sentences = translator.options.lines.split == "sentences"
    Prompt(only_model, Console(), translator.search_options, splits_sentences).run()


def _translate_lines(translator: LineTranslator, files: FileGroup) -> Counts:
    """Translate chunk by chunk as the input arrives; return the counts of all lines."""
    from rnnsearch.bulk import Done
    from rnnsearch.cli.translate_lines import ALIGNMENTS, OUTPUT

    with ExitStack() as stack:
        outputs = {OUTPUT: stack.enter_context(open_output(files.output))}
        if files.alignments is not None:
            outputs[ALIGNMENTS] = stack.enter_context(open_output(files.alignments))

        def chunks() -> Iterator[Done]:
            translated_lines = 0
            for lines in _input_chunks(translator, files.input):
                done = translator.translate(lines, translated_lines)
                translated_lines += len(lines)
                for message in done.messages:
                    print_message(message)
                for name, file in outputs.items():
                    file.write(done.outputs[name])
                outputs[OUTPUT].flush()
                # Only the counts: outputs and messages have been written.
                yield Done({}, [], done.counts)

        return Done.concatenate(chunks()).counts


def _input_chunks(translator: LineTranslator, path: Path | None) -> Iterator[Sequence[str | tuple[str, ...]]]:
    """Yield the lines of the input in chunks, or the rows of several parallel files."""
    several = translator.several
    if path is None or several is None or "|" not in str(path):
        return input_chunks(path, translator.chunk_size)
    paths = source_files(path, several.sources)
    return parallel_rows(paths, several.sources, several.system.arrays, translator.chunk_size)


@expand_groups
def score(
    model: Model,
    source: SourceFile,
    target: TargetFile,
    *,
    output: OutputFile = None,
    format: Annotated[
        Literal["text", "json"], Option(help="text, the log-probability in nats; or json, with all fields.")
    ] = "text",
    documents: PairDocuments = False,
    max_tokens: MaxPairTokens = 2000,
    direction: ZeroShotGroup,
    hardware: HardwareGroup,
) -> None:
    """Compute log-probabilities of given translations.

    Prints log p(target | source), one line per sentence pair.
    """
    require_distinct_files({"--output": output}, [source, target])
    hardware.set_threads()
    from rnnsearch.cli.pairs import read_pairs
    from rnnsearch.cli.translate_lines import TOO_LONG, json_line, translation_row
    from rnnsearch.translator.loading import load

    translator = direction.select(load(model, hardware.device))
    order = translator.document_order()
    with open_output(output) as file:
        for pairs in read_pairs(translator, source, target, max_tokens, documents):
            in_context = order.with_context(pairs.sources, pairs.documents, pairs.targets)
            for pair, skipped in zip(translator.score(in_context, pairs.targets), pairs.skipped, strict=True):
                if format == "text":
                    file.write("\n" if skipped else f"{pair.log_prob:.6f}\n")
                    continue
                row = translation_row(pair)
                if skipped is not None:
                    row |= {"source": skipped[0], "text": skipped[1]}
                    row |= {"score": None, "log_prob": None, "warnings": [TOO_LONG]}
                file.write(json_line(row))


@expand_groups
def align(
    model: Model,
    source: SourceFile,
    target: TargetFile,
    *,
    output: OutputFile = None,
    unit: AlignmentUnit = "words",
    by: AlignBy = None,
    reverse: Annotated[
        Path | None,
        Option(
            help="Model of the opposite direction, whose links are combined with the model's; not for --by aligner."
        ),
    ] = None,
    symmetrise: Annotated[
        Symmetrisation | None,
        Option(help="Method that combines the links of both directions.", show_default="grow-diag-final-and"),
    ] = None,
    documents: PairDocuments = False,
    max_tokens: MaxPairTokens = 2000,
    direction: ZeroShotGroup,
    hardware: HardwareGroup,
) -> None:
    """Align given translations word by word.

    Prints Pharaoh links `source-target`, counted from 0, one line per sentence pair.
    """
    require_distinct_files({"--output": output}, [source, target])
    hardware.set_threads()
    from rnnsearch.cli.pairs import (
        BidirectionalAligner,
        LinkWriter,
        pharaoh_line,
        read_pairs,
        report_missing_aligner,
        warn_of_uniform_attention,
    )
    from rnnsearch.text.several_sources import single_texts
    from rnnsearch.translator.loading import load

    translator = direction.select(load(model, hardware.device))
    requested_by = by
    by = translator.require_alignments(by)
    if documents and by == "aligner":
        raise BadParameter("--documents has no effect on the aligner; choose --by attention, read or posterior")
    report_missing_aligner(translator, requested_by)
    bidirectional = None
    if reverse is not None:
        translator.require_one_source("alignment in both directions")
        if by == "aligner" or unit == "symbols":
            raise BadParameter(
                "--reverse needs --by attention, read or posterior, and --unit words (an aligner already combines both "
                "directions)"
            )
        backward = load(reverse, hardware.device)
        if len(backward.directions) > 1:
            backward = backward.select(*translator.languages[::-1])
        bidirectional = BidirectionalAligner(translator, backward, by, symmetrise or "grow-diag-final-and")
    elif symmetrise is not None:
        raise BadParameter("--symmetrise has no effect without --reverse")
    counts: Counts = {}
    links = LinkWriter(unit, by, counts, translator.sources)
    order = translator.document_order()
    with open_output(output) as file:
        for pairs in read_pairs(translator, source, target, max_tokens, documents):
            if bidirectional is not None:
                texts = single_texts(pairs.sources, translator.sources)
                file.writelines(map(pharaoh_line, bidirectional.links(texts, pairs.targets, pairs.documents)))
            elif by == "aligner":
                file.writelines(map(pharaoh_line, translator.align(pairs.sources, pairs.targets, unit, by)))
            else:
                in_context = order.with_context(pairs.sources, pairs.documents, pairs.targets)
                file.writelines(map(links.line, translator.score(in_context, pairs.targets, by)))
    warn_of_uniform_attention(model, counts)
    if reverse is not None and bidirectional is not None:
        warn_of_uniform_attention(model, bidirectional.counts[0])
        warn_of_uniform_attention(reverse, bidirectional.counts[1])
