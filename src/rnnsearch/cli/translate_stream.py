"""`rnnsearch translate --stream`: words are translated while the rest of the line has not arrived.

It works with the models of simultaneous translation (`translator/simultaneous.py`). A line of input is a line of
output, whose words are written as soon as later source words cannot change them. Tests:
tests/commands/test_stream.py.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, cast

from typer import BadParameter

from rnnsearch.cli.io import open_output, print_message
from rnnsearch.errors import DataError, ModelError

if TYPE_CHECKING:
    from rnnsearch.cli.options import BulkGroup, FileGroup
    from rnnsearch.cli.translate_lines import TranslateOptions
    from rnnsearch.translator.simultaneous import SimultaneousTranslation

READ_BYTES = 1 << 16


def require_stream_options(options: TranslateOptions, bulk: BulkGroup) -> None:
    """Raise BadParameter if an option has no effect on simultaneous translation, which is greedy."""
    lines = replace(options.lines, stream=False, normalize=None)
    groups = (lines, options.search, options.sampling, options.ensemble, options.pivot, options.terms, bulk)
    changed = [name for group in groups for name in group.changed_options()]
    if options.alignments:
        changed.append("--alignments")
    if changed:
        raise BadParameter(f"{changed[0]} cannot be combined with --stream")
    if len(options.models) > 1:
        raise BadParameter("--stream needs a single model; got several")


def translate_stream(options: TranslateOptions, files: FileGroup) -> None:
    """Translate the words of each line as they arrive, and print the average lagging.

    Raises:
        ModelError: The model cannot translate simultaneously.
        DataError: The input is not text.
    """
    from rnnsearch.cli.translate_lines import load_translator, search_options
    from rnnsearch.translator.simultaneous import SimultaneousTranslator
    from rnnsearch.translator.translator import Translator

    options.hardware.set_threads()
    translator = load_translator(options)
    assert isinstance(translator, Translator), "`require_stream_options` rejects pivots"
    try:
        simultaneous = SimultaneousTranslator(translator, search_options(translator, options))
    except ModelError as error:
        raise ModelError(f"{options.models[0]}: {error}") from None
    lagging: list[float] = []
    with open_output(files.output) as output:
        for words in _lines_of_words(_file_words(files.input) if files.input else _standard_input_words()):
            for piece in chain(_collect(simultaneous.translate(words), lagging), ["\n"]):
                output.write(piece)
                output.flush()
    if lagging:
        print_message(f"average lagging: {fmean(lagging):.2f} source words, over {len(lagging):,} sentences")


def _collect(
    pieces: Generator[str, None, list[SimultaneousTranslation]], lagging: list[float]
) -> Generator[str, None, None]:
    """Yield the pieces of a translation; then add the average lagging of its sentences to a list."""
    sentences = yield from pieces
    lagging += [sentence.average_lagging for sentence in sentences]


def _lines_of_words(words: Iterator[str | None]) -> Iterator[Iterable[str]]:
    """Yield the words of each line as an iterator, to be used up before the next one; None ends a line."""
    for first in words:
        yield _until_line_end(first, words)


def _until_line_end(first: str | None, words: Iterator[str | None]) -> Iterator[str]:
    word = first
    while word is not None:
        yield word
        word = next(words, None)


def _file_words(path: Path) -> Iterator[str | None]:
    from rnnsearch.data.corpus import read_lines

    for line in read_lines(path, truncate=True):
        yield from _whole_line(line)


def _standard_input_words() -> Iterator[str | None]:
    """Yield each word of standard input when the white space after it has arrived, and None at each line end."""
    is_open = False  # inside a line
    rest = ""  # the start of a word
    for text in _standard_input_text():
        *lines, last = (rest + text).split("\n")
        for line in lines:
            yield from _whole_line(line)
        is_open = bool(last) or (is_open and not lines)
        words = list(_cut_words(last))
        rest = words.pop() if words and not last[-1].isspace() else ""
        yield from words
    if rest:
        yield rest
    if is_open:
        yield None


def _standard_input_text() -> Iterator[str]:
    """Yield the text of standard input as it arrives."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    stream = cast(BufferedIOBase, sys.stdin.buffer)
    number = 1
    data = b"more"
    while data:
        data = stream.read1(READ_BYTES)
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            number += data[: error.start].count(b"\n")
            raise DataError(f"<standard input>:{number}: must be text in UTF-8; got other bytes") from None
        yield text
        number += text.count("\n")


def _whole_line(line: str) -> Iterator[str | None]:
    yield from _cut_words(line)
    yield None


def _cut_words(text: str) -> Iterator[str]:
    """Yield the words of a text, long ones in parts."""
    from rnnsearch.translator.simultaneous import word_parts

    for start, end in word_parts(text):
        yield text[start:end]
