"""Readers of sentence pairs in translation memories, catalogues and tables: TMX, XLIFF, PO, CSV and XLSX.

`corpus.read_chunks` uses them for entries of `data.train` with these suffixes, also if the file is compressed. Rows are
numbered like the units of the file. White space in a text becomes one space, because a row is a line. Files may be
invalid or enormous: XML and CSV are streamed, and entities, deep nesting and large archives are rejected.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from io import BufferedIOBase
from itertools import chain, islice
from pathlib import Path
from typing import Any
from xml.parsers import expat

from rnnsearch.config.options import LANGUAGE
from rnnsearch.errors import DataError, library_errors, reason
from rnnsearch.text.documents.document import FileText
from rnnsearch.text.documents.po import parse_po
from rnnsearch.text.documents.xml import MAX_DEPTH
from rnnsearch.text.languages import base_language, language_name
from rnnsearch.text.markup.tags import CODES

Texts = tuple[str, ...]
"""Text in each language; empty if it is missing."""
Reader = Callable[[Path, BufferedIOBase, Sequence[str]], Iterator[Texts]]
"""Yields the rows of a file in some languages; raises DataError."""

BLOCK_BYTES = 1 << 16
MAX_UNIT_CHARACTERS = 1 << 20
"""Maximum length of the texts of a unit, like that of a line."""
MAX_FILE_BYTES = 1 << 28
"""Maximum size of files that are read as a whole: PO and XLSX."""
MAX_XLSX_BYTES = 1 << 30
"""Maximum size of an uncompressed workbook."""
DELIMITERS = "\t;,"
"""Separators of columns; the first of equally consistent ones counts, because text has more commas than tabs."""
SAMPLED_LINES = 100


def one_line(text: str) -> str:
    """Return a text with all white space replaced by single spaces."""
    return " ".join(text.split())


class _XmlReader(ABC):
    """Collects the rows of an XML file while it is parsed; subclasses handle elements."""

    def __init__(self, path: Path, languages: Sequence[str]) -> None:
        self.path = path
        self.languages = languages
        self.rows: list[Texts] = []
        self._depth = 0
        self._codes = 0
        self._text: list[str] | None = None
        self._characters = 0
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data
        self._parser.EntityDeclHandler = self._reject_entity

    def read(self, file: BufferedIOBase) -> Iterator[Texts]:
        """Yield the rows of the file."""
        try:
            while block := file.read(BLOCK_BYTES):
                self._parser.Parse(block)
                yield from self.rows
                self.rows.clear()
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            problem = expat.errors.messages.get(error.code, "an error that is not known")
            raise DataError(f"{self.path}:{error.lineno}: must be XML; got an error: {problem}") from None
        except (LookupError, ValueError) as error:  # of an encoding that is unknown, or has several bytes per character
            problem = f"must be XML in UTF-8, UTF-16 or an encoding of one byte per character; got {reason(error)}"
            raise self._error(problem) from None
        yield from self.rows

    @abstractmethod
    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Handle the start of an element."""

    @abstractmethod
    def end(self, tag: str) -> None:
        """Handle the end of an element."""

    def open_text(self) -> None:
        """Collect text from here on."""
        self._text = []
        self._characters = 0

    def close_text(self) -> str:
        """Return the text since `open_text`, on one line, without codes."""
        text = one_line("".join(self._text or []))
        self._text = None
        return text

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"must have at most {MAX_DEPTH} nested elements")
        name = tag.rpartition(":")[2]
        self._codes += name in CODES
        self.start(name, attributes)

    def _end(self, tag: str) -> None:
        self._depth -= 1
        name = tag.rpartition(":")[2]
        self._codes -= name in CODES
        self.end(name)

    def _data(self, text: str) -> None:
        if self._text is None or self._codes:
            return
        self._characters += len(text)
        if self._characters > MAX_UNIT_CHARACTERS:
            raise self._error(f"a text must have at most {MAX_UNIT_CHARACTERS:,} characters")
        self._text.append(text)

    def _reject_entity(self, *_: object) -> None:
        raise self._error("must not declare entities")

    def _error(self, problem: str) -> DataError:
        return DataError(f"{self.path}:{self._parser.CurrentLineNumber}: {problem}")


class _TmxReader(_XmlReader):
    """Reads the units of a translation memory; a unit has a variant per language or region."""

    def __init__(self, path: Path, languages: Sequence[str]) -> None:
        super().__init__(path, languages)
        self._variants: list[tuple[str, str]] = []
        self._language = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "tu":
            self._variants = []
        elif tag == "tuv":
            self._language = attributes.get("xml:lang", attributes.get("lang", ""))
        elif tag == "seg":
            self.open_text()

    def end(self, tag: str) -> None:
        if tag == "seg":
            self._variants.append((self._language, self.close_text()))
        elif tag == "tu":
            self.rows.append(tuple(_variant(self._variants, language) for language in self.languages))


def _variant(variants: Sequence[tuple[str, str]], language: str) -> str:
    """Return the first text in a language, preferably in exactly its region; empty if there is none."""
    same = [(code, text) for code, text in variants if text and base_language(code) == base_language(language)]
    exact = [text for code, text in same if code.lower().replace("_", "-") == language.lower().replace("_", "-")]
    return next(iter(exact), same[0][1] if same else "")


class _XliffReader(_XmlReader):
    """Reads the units of XLIFF 1.2 and 2, in either direction."""

    def __init__(self, path: Path, languages: Sequence[str]) -> None:
        super().__init__(path, languages)
        self._is_reversed = False
        self._texts = {"source": "", "target": ""}
        self._is_unit = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in ("xliff", "file"):
            source = attributes.get("source-language", attributes.get("srcLang"))
            if source is not None:
                self._is_reversed = base_language(source) == base_language(self.languages[-1])
        elif tag in ("trans-unit", "segment"):
            self._is_unit = True
            self._texts = {"source": "", "target": ""}
        elif tag == "alt-trans":  # suggestions, after the unit's own texts
            self._is_unit = False
        elif tag in ("source", "target") and self._is_unit:
            self.open_text()

    def end(self, tag: str) -> None:
        if tag in ("source", "target") and self._is_unit:
            self._texts[tag] = self.close_text()
        elif tag in ("trans-unit", "segment"):
            texts = tuple(self._texts.values())
            self.rows.append(texts[::-1] if self._is_reversed else texts)
            self._is_unit = False


def _read_xml(reader: type[_XmlReader], path: Path, file: BufferedIOBase, languages: Sequence[str]) -> Iterator[Texts]:
    """Yield the units of an XML file."""
    yield from reader(path, languages).read(file)


def _read_po(path: Path, file: BufferedIOBase, languages: Sequence[str]) -> Iterator[Texts]:
    """Yield the translated messages of a catalogue; those of plural forms are of the singular and of the last form.

    Fuzzy translations count as missing.
    """
    if len(languages) != 2:
        raise DataError(f"{path}: a catalogue has two languages; got a corpus of {len(languages)}")
    content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise DataError(f"{path}: must have at most {MAX_FILE_BYTES:,} bytes")
    for entry in parse_po(FileText.decode(str(path), content)):
        if entry.is_header or entry.id is None:
            continue
        is_fuzzy = "fuzzy" in entry.flags
        forms = [] if is_fuzzy else [entry.forms[number].value for number in sorted(entry.forms)]
        yield one_line(entry.id.value), one_line(forms[0]) if forms else ""
        if entry.plural is not None:
            yield one_line(entry.plural.value), one_line(forms[-1]) if len(forms) > 1 else ""


def _read_csv(path: Path, file: BufferedIOBase, languages: Sequence[str]) -> Iterator[Texts]:
    """Yield the rows of a table whose columns are separated by commas, semicolons or tabs."""
    content: Any = file  # both buffered readers and gzip files can peek
    start = content.peek(2)[:2]
    encoding = "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    text = io.TextIOWrapper(content, encoding=encoding, newline="")
    number = 0
    try:
        # Bounded by the limit of a line, which the csv module checks later.
        sample = list(islice(iter(partial(text.readline, MAX_UNIT_CHARACTERS), ""), SAMPLED_LINES))
        delimiter = max(DELIMITERS, key=partial(_consistency, sample))
        # A quoted cell may continue on the next lines.
        rows = csv.reader(chain(sample, text), delimiter=delimiter)
        for texts in _select_columns(rows, languages):
            number += 1
            yield texts
    except (csv.Error, UnicodeError) as error:
        raise DataError(f"{path}:{number + 1}: must be a table of text in UTF-8 (CSV): {reason(error)}") from None
    finally:
        # The caller closes the file, possibly before this generator.
        with suppress(ValueError):
            text.detach()


def _consistency(lines: Sequence[str], delimiter: str) -> float:
    """Return the fraction of rows that have the most frequent number of columns, 0 if that is one."""
    try:
        widths = Counter(len(row) for row in csv.reader(lines, delimiter=delimiter) if row)
    except csv.Error:
        return 0.0
    width, rows = widths.most_common(1)[0] if widths else (0, 0)
    return rows / widths.total() if width > 1 else 0.0


def _read_xlsx(path: Path, file: BufferedIOBase, languages: Sequence[str]) -> Iterator[Texts]:
    """Yield the rows of the first sheet of a workbook."""
    if find_spec("openpyxl") is None:
        raise DataError(f'{path}: needs the package openpyxl: pip install "rnnsearch[xlsx]"')
    import openpyxl

    content = io.BytesIO(file.read(MAX_FILE_BYTES + 1))
    if content.getbuffer().nbytes > MAX_FILE_BYTES:
        raise DataError(f"{path}: must have at most {MAX_FILE_BYTES:,} bytes")
    with library_errors(f"{path}: must be an Excel workbook (.xlsx)"):
        with zipfile.ZipFile(content) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MAX_XLSX_BYTES:
            raise DataError(f"{path}: must have at most {MAX_XLSX_BYTES:,} bytes when unpacked; got {size:,}")
        book = openpyxl.load_workbook(content, read_only=True, data_only=True)
        sheet: Any = book.worksheets[0]
        rows = (["" if cell is None else str(cell) for cell in row] for row in sheet.iter_rows(values_only=True))
        yield from _select_columns(rows, languages)


def _select_columns(rows: Iterator[Sequence[str]], languages: Sequence[str]) -> Iterator[Texts]:
    """Yield the columns of the languages: those that a header names, or else the first ones."""
    first = next(rows, None)
    if first is None:
        return
    columns = _header_columns(first, languages)
    if columns is None:
        columns = list(range(len(languages)))
        yield tuple(one_line(_cell(first, column)) for column in columns)
    for row in rows:
        if any(map(str.strip, row)):
            yield tuple(one_line(_cell(row, column)) for column in columns)


def _cell(row: Sequence[str], column: int) -> str:
    return row[column] if column < len(row) else ""


def _header_columns(row: Sequence[str], languages: Sequence[str]) -> list[int] | None:
    """Return the column of each language by code, English name, or "source" and "target"; None without a header."""
    names = [cell.strip().lower() for cell in row]
    columns = []
    for index, language in enumerate(languages):
        role = "target" if index == len(languages) - 1 else "source"
        known = (language.lower(), base_language(language), language_name(language).lower(), role)
        column = next((names.index(name) for name in known if name in names), None)
        if column is None:  # another region
            codes = [base_language(name) if re.fullmatch(LANGUAGE, name, re.IGNORECASE) else "" for name in names]
            column = codes.index(base_language(language)) if base_language(language) in codes else None
        if column is None:
            return None
        columns.append(column)
    return columns


READERS: dict[str, Reader] = {
    ".tmx": partial(_read_xml, _TmxReader),
    ".xliff": partial(_read_xml, _XliffReader),
    ".xlf": partial(_read_xml, _XliffReader),
    ".po": _read_po,
    ".csv": _read_csv,
    ".xlsx": _read_xlsx,
}
"""Reader by suffix."""
