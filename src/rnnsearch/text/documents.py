"""Files with text to translate: plain text, TSV, TMX and PO.

`read_document` extracts the segments without a translation; `Document.fill` returns the file with their translations.
Everything else in the file stays as it is.

`serve/files.py` and `serve/libretranslate.py` use it for file translation. New format: subclass `Document`, add it to
`FORMATS`. Files come from strangers: nothing external is loaded, and time and memory are bounded
(tests/stress/bombs.py). Tests: tests/data/test_formats.py.
"""

import re
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, ClassVar
from xml.etree import ElementTree
from xml.parsers import expat

from rnnsearch.errors import DataError, did_you_mean
from rnnsearch.text.languages import base_language
from rnnsearch.text.markup.marks import Protected

LANGUAGE_ATTRIBUTE = "xml:lang"
MAX_DEPTH = 50
"""Maximum nesting depth of elements in a TMX file."""
MAX_ENTRY_LINES = 2000
"""Maximum number of lines of a PO entry, including escaped line ends.

The library copies the whole entry once per line.
"""
_LINE_ENDS = "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters at which Python splits lines."""
_ESCAPED_END = re.compile(r"\\[nrvf]")
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_TEXT_ELEMENTS = frozenset({"hi", "sub"})
"""Elements in a TMX segment whose content is text; other elements contain markup of the original file."""


class Document(ABC):
    """A file with segments to translate, each of one or more sentences.

    Subclasses are created with (name, content, source language, target language), see `FORMATS`.
    """

    segments: list[str]
    """Segments to translate, in order."""
    protect: ClassVar[tuple[Protected, ...]] = ()
    """Types of text in the segments that must stay unchanged."""

    @abstractmethod
    def fill(self, translations: Sequence[str]) -> bytes:
        """Return the file with the translations of its segments."""


class PlainText(Document):
    """A text file: each line that is not blank is a segment. Line ends are preserved."""

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        self._byte_order_mark, text = _decode(name, content)
        self._lines = text.splitlines(keepends=True)
        self._line_numbers = [n for n, line in enumerate(self._lines) if line.strip()]
        self.segments = [self._lines[n].rstrip(_LINE_ENDS) for n in self._line_numbers]

    def fill(self, translations: Sequence[str]) -> bytes:
        lines = list(self._lines)
        for n, segment, translation in zip(self._line_numbers, self.segments, translations, strict=True):
            lines[n] = translation + lines[n][len(segment) :]
        return self._byte_order_mark + "".join(lines).encode()


class Tsv(Document):
    """A TSV file: the first column is a segment if the second is empty or missing, and receives the translation."""

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        self._byte_order_mark, text = _decode(name, content)
        # Not `splitlines`: a cell may contain other line separators.
        self._lines = text.split("\n")
        self._line_numbers: list[int] = []
        self.segments = []
        for n, (first, *others) in enumerate(map(_cells, self._lines)):
            if first.strip() and not "".join(others[:1]).strip():
                self._line_numbers.append(n)
                self.segments.append(first)

    def fill(self, translations: Sequence[str]) -> bytes:
        """Return the file with the translations; tabs in a translation become spaces."""
        lines = list(self._lines)
        for n, translation in zip(self._line_numbers, translations, strict=True):
            line_end = "\r" if lines[n].endswith("\r") else ""
            row = _cells(lines[n])
            row[1:2] = [translation.replace("\t", " ")]
            lines[n] = "\t".join(row) + line_end
        return self._byte_order_mark + "\n".join(lines).encode()


class Tmx(Document):
    """A translation memory: units with a source-language variant get a target-language variant if they have none.

    Markup of the original file inside a segment (`ph`, `bpt`, ...) is not in the new variant.
    """

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        self._doctype, self._root = _parse_xml(name, content)
        if self._root.tag != "tmx":
            raise DataError(f"{name}: must be TMX; got XML with the root <{self._root.tag[:40]}>")
        self._target = target
        self._units: list[ElementTree.Element] = []
        self.segments: list[str] = []
        for unit in self._root.iter("tu"):
            text = _segment(unit, source)
            if text.strip() and not _segment(unit, target).strip():
                self._units.append(unit)
                self.segments.append(text)

    def fill(self, translations: Sequence[str]) -> bytes:
        for unit, translation in zip(self._units, translations, strict=True):
            # An empty variant in the target language is replaced.
            unit[:] = [child for child in unit if child.tag != "tuv" or not _has_language(child, self._target)]
            variant = ElementTree.SubElement(unit, "tuv", {LANGUAGE_ATTRIBUTE: self._target})
            # XML cannot represent some control characters, not even escaped.
            ElementTree.SubElement(variant, "seg").text = _NO_XML.sub("", translation)
        body = ElementTree.tostring(self._root, encoding="unicode")
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{self._doctype}{body}\n'.encode()


class Po(Document):
    """A gettext catalogue: entries without a translation get one, marked as fuzzy so that it is reviewed.

    Placeholders that a program fills in are protected.
    """

    protect = ("urls", "emails", "placeholders")

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        import polib

        _, text = _decode(name, content)
        _require_short_entries(name, text)
        try:
            # The library takes the text for a file name if such a file exists; no name ends with a line feed.
            self._catalogue = polib.pofile(f"{text}\n")
        except Exception as error:  # the library raises various types for malformed text
            raise DataError(f"{name}: must be a PO file; got {error}") from None
        self._target = target
        self._open_entries = [entry for entry in self._catalogue if _is_open(entry)]
        self.segments = []
        for entry in self._open_entries:
            self.segments.append(entry.msgid)
            if entry.msgid_plural:
                self.segments.append(entry.msgid_plural)

    def fill(self, translations: Sequence[str]) -> bytes:
        """Return the catalogue with the translations; all plural forms but the first get the translated plural."""
        catalogue = self._catalogue
        remaining = iter(translations)
        for entry in self._open_entries:
            singular = next(remaining)
            if entry.msgid_plural:
                plural = next(remaining)
                forms = dict.fromkeys(entry.msgstr_plural or (0, 1), plural)
                if 0 in forms:
                    forms[0] = singular
                entry.msgstr_plural = forms
            else:
                entry.msgstr = singular
            entry.fuzzy = True
        catalogue.metadata["Content-Type"] = "text/plain; charset=UTF-8"
        if not catalogue.metadata.get("Language"):
            catalogue.metadata["Language"] = self._target
        return f"{catalogue}\n".encode()


def read_document(name: str, content: bytes, source: str, target: str) -> Document:
    """Return the document in a file, by the suffix of its name.

    Args:
        name: File name, also for error messages.
        content: The file's bytes.
        source: Language code to translate from.
        target: Language code to translate to.

    Raises:
        DataError: The suffix is unknown, or the content is not of its format.
    """
    suffix = PurePath(name).suffix.lower()
    if suffix not in FORMATS:
        hint = did_you_mean(suffix, list(FORMATS))
        raise DataError(f'the file name must end in {", ".join(FORMATS)}; got "{name}"{hint}')
    return FORMATS[suffix](name, content, source, target)


def _decode(name: str, content: bytes) -> tuple[bytes, str]:
    """Return the byte order mark, if any, and the text."""
    mark = BOM_UTF8 if content.startswith(BOM_UTF8) else b""
    try:
        return mark, content[len(mark) :].decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}:{line}: must be UTF-8; got byte 0x{content[error.start]:02x}") from None


def _cells(line: str) -> list[str]:
    """Return the first two columns of a row, and the remaining text."""
    return line.removesuffix("\r").split("\t", 2)


def _require_short_entries(name: str, text: str) -> None:
    """Raise DataError if a PO entry has too many lines."""
    lines = 0
    for number, raw_line in enumerate(text.splitlines(), 1):
        line = raw_line.strip().removeprefix("#~").lstrip()
        if line.startswith("msgstr"):  # what follows belongs to this text or to the next entry
            lines = 0
        if line and not line.startswith("#:"):  # references to the program are stored as a list, not copied
            lines += 1 + len(_ESCAPED_END.findall(line))
        if lines > MAX_ENTRY_LINES:
            raise DataError(f"{name}:{number}: an entry must have at most {MAX_ENTRY_LINES:,} lines; it has more")


def _parse_xml(name: str, content: bytes) -> tuple[str, ElementTree.Element]:
    """Return the DOCTYPE line of an XML document, or "", and its root element.

    Names keep their namespace prefixes: an expanded prefix could make each element as long as the
    file.

    Raises:
        DataError: The content is not XML, is nested too deeply, or declares entities or attributes,
            with which a
            small file could fill the memory.
    """
    depth = 0
    doctype = ""
    tree = ElementTree.TreeBuilder()

    def on_doctype(root: str, system: str | None, public: str | None, _: int) -> None:
        nonlocal doctype
        # Only the reference is kept; the parser never loads it.
        if system:
            doctype = f"<!DOCTYPE {root} " + (f'PUBLIC "{public}"' if public else "SYSTEM") + f' "{system}">\n'

    def on_declaration(*_: Any) -> None:
        raise DataError(f"{name}: must not declare entities or attributes; it does")

    def on_start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        tree.start(tag, attributes)
        if depth > MAX_DEPTH:
            raise DataError(f"{name}: must nest elements at most {MAX_DEPTH} deep; it nests deeper")

    def on_end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        tree.end(tag)

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = on_doctype
    # Entities can expand exponentially ("billion laughs"), and default attributes are added to every element.
    parser.EntityDeclHandler = parser.AttlistDeclHandler = on_declaration
    parser.StartElementHandler = on_start
    parser.EndElementHandler = on_end
    parser.CharacterDataHandler = tree.data
    # Otherwise expat calls `data` for each line and entity.
    parser.buffer_text = True
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise DataError(f"{name}: must be TMX; got {error}") from None
    return doctype, tree.close()


def _has_language(variant: ElementTree.Element, language: str) -> bool:
    """Return True if a variant is in a language, ignoring regions."""
    return base_language(variant.get(LANGUAGE_ATTRIBUTE) or variant.get("lang") or "") == base_language(language)


def _segment(unit: ElementTree.Element, language: str) -> str:
    """Return the text of a unit's variant in a language, or an empty string."""
    for variant in unit.findall("tuv"):
        segment = variant.find("seg")
        if segment is not None and _has_language(variant, language):
            return _text(segment)
    return ""


def _text(element: ElementTree.Element) -> str:
    parts = [element.text or ""]
    for child in element:
        parts += [_text(child) if child.tag in _TEXT_ELEMENTS else "", child.tail or ""]
    return "".join(parts)


def _is_open(entry: Any) -> bool:
    """Return True if a PO entry has text to translate and no translation."""
    if entry.obsolete or not entry.msgid.strip():
        return False
    return not any(entry.msgstr_plural.values()) if entry.msgid_plural else not entry.msgstr


FORMATS: dict[str, Callable[[str, bytes, str, str], Document]] = {
    ".txt": PlainText,
    ".tsv": Tsv,
    ".tmx": Tmx,
    ".po": Po,
}
"""Class by suffix of the file name, in lower case."""
