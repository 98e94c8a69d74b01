"""Files with text to translate: plain text, TSV, TMX and PO. Taken apart into segments, and put together again.

What has a translation already keeps it; everything else of the file stays as it is.
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
from rnnsearch.text.languages import base
from rnnsearch.text.markup.marks import Protected

LANGUAGE = "xml:lang"
DEEPEST = 50
"""Elements inside one another in a TMX file."""
MOST_LINES = 2000
"""Lines of one entry of a PO file, its escaped line ends counted too: the library copies all that it has of an entry
for each."""
_LINE_ENDS = "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Where Python splits lines."""
_ESCAPED_END = re.compile(r"\\[nrvf]")
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_READABLE = frozenset({"hi", "sub"})
"""Elements inside a TMX segment whose content is text; that of the others is markup of the original file."""


class Document(ABC):
    """A file's segments, each a text of one or more sentences."""

    segments: list[str]
    """What there is to translate, in order."""
    protect: ClassVar[tuple[Protected, ...]] = ()
    """What of it is to stay letter for letter."""

    @abstractmethod
    def filled(self, translations: Sequence[str]) -> bytes:
        """The file with the segments' translations."""


class PlainText(Document):
    """Lines, each of which that is not blank is a segment. Line ends stay."""

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        self._mark, text = _decoded(name, content)
        self._lines = text.splitlines(keepends=True)
        self._places = [n for n, line in enumerate(self._lines) if line.strip()]
        self.segments = [self._lines[n].rstrip(_LINE_ENDS) for n in self._places]

    def filled(self, translations: Sequence[str]) -> bytes:
        """The text, line by line."""
        lines = list(self._lines)
        for n, segment, translation in zip(self._places, self.segments, translations, strict=True):
            lines[n] = translation + lines[n][len(segment) :]
        return self._mark + "".join(lines).encode()


class Tsv(Document):
    """Rows whose first column is a segment where the second is empty or missing; it takes the translation."""

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        self._mark, text = _decoded(name, content)
        self._lines = text.split("\n")
        self._places: list[int] = []
        self.segments = []
        for n, (first, *others) in enumerate(map(_cells, self._lines)):
            if first.strip() and not "".join(others[:1]).strip():
                self._places.append(n)
                self.segments.append(first)

    def filled(self, translations: Sequence[str]) -> bytes:
        """The rows; a tab in a translation becomes a space."""
        lines = list(self._lines)
        for n, translation in zip(self._places, translations, strict=True):
            end = "\r" if lines[n].endswith("\r") else ""
            row = _cells(lines[n])
            row[1:2] = [translation.replace("\t", " ")]
            lines[n] = "\t".join(row) + end
        return self._mark + "\n".join(lines).encode()


class Tmx(Document):
    """A translation memory: units with a variant in the source language and none in the target language get one.

    Markup of the original file inside a segment (`ph`, `bpt`, ...) has no place in the new variant.
    """

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        self._doctype, self._root = _tree(name, content)
        if self._root.tag != "tmx":
            raise DataError(f"{name}: must be TMX; got XML whose root is <{self._root.tag[:40]}>")
        self._target = target
        self._units: list[ElementTree.Element] = []
        self.segments: list[str] = []
        for unit in self._root.iter("tu"):
            if not _segment(unit, target).strip() and (text := _segment(unit, source)).strip():
                self._units.append(unit)
                self.segments.append(text)

    def filled(self, translations: Sequence[str]) -> bytes:
        """The memory with the new variants."""
        for unit, translation in zip(self._units, translations, strict=True):
            unit[:] = [child for child in unit if child.tag != "tuv" or not _is(child, self._target)]
            variant = ElementTree.SubElement(unit, "tuv", {LANGUAGE: self._target})
            ElementTree.SubElement(variant, "seg").text = _NO_XML.sub("", translation)
        body = ElementTree.tostring(self._root, encoding="unicode")
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{self._doctype}{body}\n'.encode()


class Po(Document):
    """A gettext catalogue: entries without a translation get one and are marked fuzzy, so that somebody looks. What a
    program fills in stays as it is."""

    protect = ("urls", "emails", "placeholders")

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        import polib

        _, text = _decoded(name, content)
        _require_short_entries(name, text)
        try:
            # The library takes the text for a file's name where there is such a file; none ends in a line feed.
            self._catalogue = polib.pofile(f"{text}\n")
        except Exception as error:  # whatever it raises is about the text
            raise DataError(f"{name}: must be a PO file; got {error}") from None
        self._target = target
        self._open = [entry for entry in self._catalogue if _is_open(entry)]
        self.segments = []
        for entry in self._open:
            self.segments += [entry.msgid, *([entry.msgid_plural] if entry.msgid_plural else [])]

    def filled(self, translations: Sequence[str]) -> bytes:
        """The catalogue; a plural's further forms are all made of its English-style plural."""
        catalogue, new = self._catalogue, iter(translations)
        for entry in self._open:
            first = next(new)
            if entry.msgid_plural:
                other = next(new)
                entry.msgstr_plural = {form: other if form else first for form in entry.msgstr_plural or (0, 1)}
            else:
                entry.msgstr = first
            entry.fuzzy = True
        catalogue.metadata["Content-Type"] = "text/plain; charset=UTF-8"
        if not catalogue.metadata.get("Language"):
            catalogue.metadata["Language"] = self._target
        return f"{catalogue}\n".encode()


def read_document(name: str, content: bytes, source: str, target: str) -> Document:
    """The document of a file's content, by the suffix of its name, to be translated from `source` to `target`.

    Errors: DataError for another suffix or content that is not what the suffix says.
    """
    suffix = PurePath(name).suffix.lower()
    if suffix not in FORMATS:
        hint = did_you_mean(suffix, list(FORMATS))
        raise DataError(f'the file\'s name must end in {", ".join(FORMATS)}; got "{name}"{hint}')
    return FORMATS[suffix](name, content, source, target)


def _decoded(name: str, content: bytes) -> tuple[bytes, str]:
    """The byte order mark, if there is one, and the text."""
    mark = BOM_UTF8 if content.startswith(BOM_UTF8) else b""
    try:
        return mark, content[len(mark) :].decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}:{line}: must be UTF-8; got byte 0x{content[error.start]:02x}") from None


def _cells(line: str) -> list[str]:
    """The first two columns of a row, and the rest."""
    return line.removesuffix("\r").split("\t", 2)


def _require_short_entries(name: str, text: str) -> None:
    """Errors: DataError for a PO file with an entry of too many lines."""
    lines = 0
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole.strip().removeprefix("#~").lstrip()
        if line.startswith("msgstr"):  # all that comes after it is of this text, or of the next entry
            lines = 0
        if line and not line.startswith("#:"):  # places in a program, which are a list
            lines += 1 + len(_ESCAPED_END.findall(line))
        if lines > MOST_LINES:
            raise DataError(f"{name}:{number}: an entry must have at most {MOST_LINES:,} lines; it has more")


def _tree(name: str, content: bytes) -> tuple[str, ElementTree.Element]:
    """The line that names the document's type, empty for none, and its root. Names keep their prefixes: one written
    out for its prefix could make each element as long as the file.

    Errors: DataError for what is no XML, is too deep, or declares entities or attributes, with which a small file
    could fill the memory.
    """
    depth, doctype, tree = 0, "", ElementTree.TreeBuilder()

    def typed(kind: str, system: str | None, public: str | None, _: int) -> None:
        nonlocal doctype
        if system:
            doctype = f"<!DOCTYPE {kind} " + (f'PUBLIC "{public}"' if public else "SYSTEM") + f' "{system}">\n'

    def declared(*_: Any) -> None:
        raise DataError(f"{name}: must declare no entities or attributes of its own; it does")

    def opened(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        tree.start(tag, attributes)
        if depth > DEEPEST:
            raise DataError(f"{name}: must have at most {DEEPEST} elements inside one another; it has more")

    def closed(tag: str) -> None:
        nonlocal depth
        depth -= 1
        tree.end(tag)

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = typed
    parser.EntityDeclHandler = parser.AttlistDeclHandler = declared
    parser.StartElementHandler = opened
    parser.EndElementHandler = closed
    parser.CharacterDataHandler = tree.data
    parser.buffer_text = True
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise DataError(f"{name}: must be TMX; got {error}") from None
    return doctype, tree.close()


def _is(variant: ElementTree.Element, language: str) -> bool:
    """Whether a variant is in a language, whatever its own variant."""
    return base(variant.get(LANGUAGE) or variant.get("lang") or "") == base(language)


def _segment(unit: ElementTree.Element, language: str) -> str:
    """The text of a unit's variant in a language; empty without one."""
    for variant in unit.findall("tuv"):
        if _is(variant, language) and (segment := variant.find("seg")) is not None:
            return _text(segment)
    return ""


def _text(element: ElementTree.Element) -> str:
    parts = [element.text or ""]
    for child in element:
        parts += [_text(child) if child.tag in _READABLE else "", child.tail or ""]
    return "".join(parts)


def _is_open(entry: Any) -> bool:
    """Whether a PO entry has something to translate, and no translation."""
    if entry.obsolete or not entry.msgid.strip():
        return False
    return not any(entry.msgstr_plural.values()) if entry.msgid_plural else not entry.msgstr


FORMATS: dict[str, Callable[[str, bytes, str, str], Document]] = {
    ".txt": PlainText,
    ".tsv": Tsv,
    ".tmx": Tmx,
    ".po": Po,
}
