"""Elements of an XML file by their offsets, so that text can be spliced in without parsing and writing the rest.

`tmx.py` and `xliff.py` use it. Files come from strangers: declarations with which a small file could fill the memory
are rejected, nothing external is loaded, and nesting is limited. Offsets are bytes of the file in UTF-8.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from rnnsearch.errors import DataError
from rnnsearch.text.documents.document import FileText, Replacement
from rnnsearch.text.markup.tags import collapse_spaces

MAX_DEPTH = 50
"""Maximum nesting depth of elements."""
_DECLARATION = re.compile(rb"<\?xml\s[^>]*?encoding\s*=\s*[\"']([\w.:-]+)")
_DECLARATION_BYTES = 200
_TAG = re.compile(rb"<(?:[^>\"']|\"[^\"]*\"|'[^']*')*+>")
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# One without an end extends to the end of the text: searching for each end in vain would take quadratic time.
_CONTENT = re.compile(r"<!\[CDATA\[(?P<cdata>.*?)(?:\]\]>|\Z)|<!--.*?(?:-->|\Z)|<\?.*?(?:\?>|\Z)", re.DOTALL)
_SPACE_CHARACTERS = " \t\r\n"


@dataclass(eq=False, slots=True)
class Element:
    """An element of an XML file."""

    tag: str
    """Name with its namespace prefix."""
    attributes: dict[str, str]
    """Values by name."""
    parent: Element | None
    """Nearest recorded element around it."""
    start: int
    """Offset of its start tag."""
    content_start: int
    """Offset after its start tag."""
    content_end: int = 0
    """Offset of its end tag; of an element without one (`<seg/>`), equal to `content_start`."""
    end: int = 0
    """Offset after its end tag."""
    is_blank: bool = True
    """True if it contains only white space and comments."""

    is_empty_tag: bool = False
    """True if the start tag is the whole element: `<seg/>`."""


class XmlFile:
    """An XML file with some of its elements, into which content is spliced."""

    def __init__(self, name: str, format: str, root: str, content: bytes, tags: Collection[str]) -> None:
        """Find the elements with certain names, in the order of their start tags; raise DataError as `find_elements`.

        Args:
            name: File name.
            format: Name of the format for messages.
            root: Name of the root element.
            content: The file's bytes.
            tags: Names of the elements.
        """
        self._file = FileText.decode(name, content, declared_encoding(content))
        self._data = self._file.text.encode()
        self.elements = find_elements(name, format, root, self._data, tags)
        """The elements."""

    def content(self, element: Element) -> str:
        """Return the content of an element as it is in the file."""
        return self._data[element.content_start : element.content_end].decode()

    def spaces_before(self, offset: int) -> str:
        """Return the white space before an offset."""
        start = offset
        while start and self._data[start - 1 : start] in (b" ", b"\t", b"\r", b"\n"):
            start -= 1
        return self._data[start:offset].decode()

    def fill(self, element: Element, content: str) -> Splice:
        """Return the splice that gives a blank element its content; comments in it stay."""
        if element.is_empty_tag:  # the `/>` becomes an end tag
            return Splice(element.end - 2, element.end, f">{content}</{element.tag}>")
        old = self._data[element.content_start : element.content_end]
        return Splice(element.content_start, element.content_start if old.strip() else element.content_end, content)

    def add_attributes(self, element: Element, attributes: Mapping[str, str]) -> Splice:
        """Return the splice that adds attributes to the start tag of an element."""
        position = element.content_start - (2 if element.is_empty_tag else 1)
        text = "".join(f" {name}={quoteattr(value)}" for name, value in attributes.items())
        return Splice(position, position, text)

    def spliced(self, splices: Iterable[Splice]) -> bytes:
        """Return the file with its changes; characters that its encoding does not have become references."""
        parts = []
        position = 0
        for start, end, content in sorted(splices):
            parts += [self._data[position:start], content.encode()]
            position = end
        parts.append(self._data[position:])
        whole = Replacement(0, len(self._file.text), b"".join(parts).decode())
        return self._file.spliced([whole], "xmlcharrefreplace")


class Splice(NamedTuple):
    """New content for the bytes [start, end) of a file in UTF-8."""

    start: int
    end: int
    content: str


def declared_encoding(content: bytes) -> bytes | None:
    """Return the name of the encoding in the XML declaration of a file, or None."""
    declaration = _DECLARATION.match(content[:_DECLARATION_BYTES])
    return declaration[1] if declaration else None


def find_elements(name: str, format: str, root: str, data: bytes, tags: Collection[str]) -> list[Element]:
    """Return the elements of an XML file with certain names, in the order of their start tags.

    Names keep their namespace prefixes: an expanded prefix could make each element as long as the file.

    Args:
        name: File name.
        format: Name of the format for messages.
        root: Name of the root element.
        data: The file in UTF-8.
        tags: Names of the elements.

    Raises:
        DataError: The content is not XML with this root, is nested too deeply, or declares entities or attributes,
            with which a small file could fill the memory.
    """
    finder = _ElementFinder(name, format, root, data, tags)
    try:
        finder.parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise DataError(f"{name}: must be {format}; got {error}") from None
    return finder.elements


class _ElementFinder:
    """Handlers of an XML parser that record elements."""

    def __init__(self, name: str, format: str, root: str, data: bytes, tags: Collection[str]) -> None:
        self.elements: list[Element] = []
        self._name = name
        self._format = format
        self._root = root
        self._data = data
        self._tags = tags
        self._depth = 0
        self._open: list[Element] = []
        # The data are in UTF-8, whatever the file declares.
        self.parser = expat.ParserCreate("utf-8")
        # Entities can expand exponentially ("billion laughs"), and default attributes are added to every element.
        self.parser.EntityDeclHandler = self.parser.AttlistDeclHandler = self._reject
        self.parser.StartElementHandler = self._on_start
        self.parser.EndElementHandler = self._on_end
        self.parser.CharacterDataHandler = self._on_text
        # Otherwise expat calls the handler for each line and entity.
        self.parser.buffer_text = True

    def _reject(self, *_: Any) -> None:
        raise DataError(f"{self._name}: must not declare entities or attributes; it does")

    def _on_start(self, tag: str, attributes: dict[str, str]) -> None:
        if self._depth == 0 and tag != self._root:
            raise DataError(f"{self._name}: must be {self._format}; got XML with the root <{tag[:40]}>")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise DataError(f"{self._name}: must nest elements at most {MAX_DEPTH} deep; it nests deeper")
        parent = self._open[-1] if self._open else None
        if parent is not None:
            parent.is_blank = False
        if tag in self._tags:
            start = self.parser.CurrentByteIndex
            end = _tag_end(self._data, start)
            is_empty_tag = self._data[end - 2 : end] == b"/>"
            element = Element(tag, attributes, parent, start, end, is_empty_tag=is_empty_tag)
            self.elements.append(element)
            self._open.append(element)

    def _on_end(self, tag: str) -> None:
        self._depth -= 1
        if tag not in self._tags:
            return
        element = self._open.pop()
        if element.is_empty_tag:
            element.content_end = element.end = element.content_start
        else:
            element.content_end = self.parser.CurrentByteIndex
            element.end = _tag_end(self._data, element.content_end)

    def _on_text(self, text: str) -> None:
        if self._open and self._open[-1].is_blank:
            self._open[-1].is_blank = not text.strip()


def _tag_end(data: bytes, start: int) -> int:
    """Return the offset after the tag at an offset."""
    match = _TAG.match(data, start)
    assert match is not None  # the parser has accepted it
    return match.end()


def inline_markup(content: str) -> str:
    """Return the content of an element on one line, for `MarkedText`.

    White space between words is one space, as XML's formats define it; CDATA sections become escaped text, comments
    are omitted.
    """

    def replace(match: re.Match[str]) -> str:
        return "" if match["cdata"] is None else html.escape(match["cdata"], quote=False)

    return collapse_spaces(_CONTENT.sub(replace, content)).strip(_SPACE_CHARACTERS)


def with_spaces_around(translation: str, source: str) -> str:
    """Return a translation with the white space at both ends of its source."""
    stripped = source.strip(_SPACE_CHARACTERS)
    start = source.index(stripped)
    return source[:start] + translation.strip(_SPACE_CHARACTERS) + source[start + len(stripped) :]


def as_content(markup: str) -> str:
    """Return markup as well-formed content of an element: unchanged, or as escaped text if it is not well-formed."""
    # XML cannot represent some control characters, not even escaped.
    markup = _NO_XML.sub("", markup)
    try:
        expat.ParserCreate("utf-8").Parse(f"<x>{markup}</x>".encode(), True)
    except expat.ExpatError:
        return html.escape(html.unescape(markup), quote=False)
    return markup
