"""`rnnsearch translate -i` for files with another structure than lines: PO, TMX, XLIFF, HTML and subtitles.

The formats are those of the server (`text.documents`); the text in them is translated like lines, with all options of
the command. Tests: tests/commands/test_translate_files.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from typer import BadParameter

from rnnsearch.cli.io import chunked, print_message
from rnnsearch.cli.pairs import EMPTY_OUTPUT
from rnnsearch.cli.translate_steps import WARNING_PREFIX
from rnnsearch.errors import DataError, ModelError
from rnnsearch.text.documents import FORMATS, Document, document_format
from rnnsearch.text.documents.lines import PlainText, Tsv
from rnnsearch.text.markup.tags import fixed_spans
from rnnsearch.utils.files import write_bytes

if TYPE_CHECKING:
    from rnnsearch.bulk import Counts
    from rnnsearch.cli.options import BulkGroup, FileGroup
    from rnnsearch.cli.translate_lines import LineTranslator, TranslateOptions

MAX_BYTES = 1 << 26
"""Maximum size of a file that is read as a whole."""
UNSUPPORTED_SUFFIXES = frozenset((".doc", ".docx", ".epub", ".odp", ".ods", ".odt", ".pdf", ".pptx", ".rtf", ".xlsx"))
"""Formats of office programs, which users may expect to be supported."""
_START_BYTES = 1 << 12  # by which a format is recognised
_LINE_END = re.compile("(\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029])")
_HIDDEN_LINE_ENDS = {ord(character): 0xF0000 + ord(character) for character in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"}
"""Characters of a private area for the line ends inside tags, so that a tag is not divided into two lines."""
_SHOWN_LINE_ENDS = {hidden: shown for shown, hidden in _HIDDEN_LINE_ENDS.items()}
_LINES_ONLY = (
    "models with several sources translate lines only; give them a text file with a tab-separated column per source, "
    "or a text file per source"
)


def is_document(path: Path) -> bool:
    """Return True if the file is translated as a whole, and not line by line; its name or content says so.

    Raises:
        DataError: The file is of a format that is not supported.
    """
    if not path.is_file():
        return False
    if path.suffix.lower() in UNSUPPORTED_SUFFIXES:
        raise DataError(f"{path}: {path.suffix} files are not supported; save the text as one of {', '.join(FORMATS)}")
    try:
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
    except OSError:  # reported by the reader of lines
        return False
    document_class = document_format(path.name, start)
    if document_class is Tsv:
        return b"\t" in start  # without columns, it is lines
    return document_class not in (None, PlainText)


def is_table_of_sources(options: TranslateOptions, path: Path) -> bool:
    """Return True if a TSV file has a column per source of a model, and so is translated line by line.

    Args:
        options: The models.
        path: A document (see `is_document`).

    Raises:
        ModelError: The model has several sources, and the file has another format.
    """
    from rnnsearch.systems.folder import load_translation_config

    model = options.models[0]
    # Engine files have one source; those of other folders are reported when the model is loaded.
    if not model.is_dir() or not load_translation_config(model, multiway=True).has_several_texts:
        return False
    if path.suffix.lower() == ".tsv":
        return True
    raise ModelError(f"{path}: {_LINES_ONLY}")


def require_line_files(path: Path) -> None:
    """Raise DataError if one of the files of several sources, separated by "|", is a document."""
    if path.is_file():
        return
    names = str(path).split("|")
    for name in names if len(names) > 1 else ():
        if is_document(Path(name.strip())):
            raise DataError(f"{name.strip()}: {_LINES_ONLY}")


def require_text_options(options: TranslateOptions, bulk: BulkGroup) -> None:
    """Raise BadParameter if an option is for lines only."""
    has_option = {
        "--format": options.lines.format != "text",
        "--alignments": options.alignments,
        "--engine": bulk.engine is not None,
        "--stream": options.lines.stream,
    }
    for option, is_given in has_option.items():
        if is_given:
            raise BadParameter(f"{option} needs lines of text as input; {options.input_name} has another format")


def translate_document(options: TranslateOptions, files: FileGroup) -> Counts:
    """Translate a file into a file of the same format, and return the counts of all texts in it.

    Raises:
        DataError: The file is too large, or is not of its format.
        RnnsearchError: A model cannot be loaded, or an option is not supported.
    """
    from rnnsearch.cli.translate_lines import LineTranslator, load_translator

    assert files.input is not None
    content = _read(files.input)
    document_class = document_format(files.input.name, content)
    assert document_class is not None
    options.hardware.set_threads()
    models = load_translator(options)
    document = document_class(str(files.input), content, *models.languages)
    counts: Counts = {}
    translations: list[str] = []
    if document.marked_segments:
        translator = LineTranslator(_options_for(document, options), models)
        translations = _translate_segments(document, translator, counts)
    else:
        print_message(f"{files.input}: nothing to translate")
    filled = document.fill_marked(translations)
    if files.output is None:
        sys.stdout.buffer.write(filled)
        sys.stdout.flush()
    else:
        write_bytes(files.output, filled)
    return counts


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise DataError(f"{path}: must have at most {MAX_BYTES >> 20} MiB; it has more (divide it)")
    return content


def _options_for(document: Document, options: TranslateOptions) -> TranslateOptions:
    """Return the options with those that the markup in a document needs."""
    # Without these characters, text with and without markup is the same, and any model can translate it.
    has_markup = any("<" in segment or "&" in segment for segment in document.marked_segments)
    terms = replace(options.terms, tags=document.tags and has_markup)
    return replace(options, terms=terms, input_name=f"{options.input_name}, text")


def _translate_segments(document: Document, translator: LineTranslator, counts: Counts) -> list[str]:
    """Return the translation of each marked segment; lines are translated one by one.

    A line without a translation stays as it is. In bilingual files the whole segment is then empty.
    """
    segments = [_split_lines(segment) for segment in document.marked_segments]
    lines: list[str] = []
    grammars: list[str | None] = []  # of placeholders (see `Document.grammars`); a line has that of its segment
    for segment, grammar in zip(segments, document.grammars, strict=True):
        texts = [line.strip() for line in segment if line and not line.isspace()]
        lines += texts
        grammars += [grammar] * len(texts)
    remaining = _translate_lines(lines, grammars, translator, counts)
    translations = []
    for segment in segments:
        parts = []
        is_complete = True
        for line in segment:
            text = line.strip()
            if not text:
                parts.append(line)
                continue
            translation = next(remaining)
            is_complete = is_complete and translation is not None
            start = line.index(text)
            parts += [line[:start], translation or text, line[start + len(text) :]]
        is_left = document.is_bilingual and not is_complete
        translations.append("" if is_left else "".join(parts).translate(_SHOWN_LINE_ENDS))
    return translations


def _translate_lines(
    lines: Sequence[str], grammars: Sequence[str | None], translator: LineTranslator, counts: Counts
) -> Iterator[str | None]:
    """Yield the translation of each line, or None if it is too long, unsure, or lost its placeholders."""
    from rnnsearch.cli.translate_lines import OUTPUT

    first = 0
    for chunk in chunked(lines, translator.chunk_size):
        done = translator.translate(chunk, first, grammars[first : first + len(chunk)])
        first += len(chunk)
        for message in done.messages:
            # There are no lines; such a text stays in the file.
            print_message(message.replace(EMPTY_OUTPUT, "it is not translated"))
        for name, number in done.counts.items():
            counts[name] = counts.get(name, 0) + number
        # The name of this warning is a literal in `translator/confidence.py` (`warnings`); keep both equal.
        has_lost_placeholders = done.counts.get(f"{WARNING_PREFIX}untranslated", 0) > 0
        for line, translation in zip(chunk, done.outputs[OUTPUT].removesuffix("\n").split("\n"), strict=True):
            # A sentence whose placeholders were lost is its own translation; the counts are of the whole chunk.
            is_lost = has_lost_placeholders and translation == line
            yield None if is_lost or not translation else translation


def _split_lines(segment: str) -> Iterable[str]:
    """Return the lines of a segment and the line ends between them; those in tags and fixed content are hidden."""
    parts = []
    position = 0
    for start, end in fixed_spans(segment):
        parts += [segment[position:start], segment[start:end].translate(_HIDDEN_LINE_ENDS)]
        position = end
    return _LINE_END.split("".join([*parts, segment[position:]]))
