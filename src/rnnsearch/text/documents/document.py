"""The interface of documents, and files as decoded text into which translations are spliced.

All formats in this package use it. Offsets are characters of the decoded text.
"""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from rnnsearch.errors import DataError
from rnnsearch.text.markup.marks import MarkedText

UTF8 = "utf-8"
MAX_ENCODING_NAME = 40
_ENCODING_NAME = re.compile(r"[A-Za-z0-9][\w.:-]*")
# Codecs of character sets; others of Python's codecs decode something else, or take quadratic time (punycode).
_CHARACTER_SET = re.compile(
    r"ascii|utf-8|iso8859-\d+|cp\d+|koi8[-_]\w|mac-\w+|gb2312|gbk|gb18030|big5|big5hkscs|euc_\w+|shift_jis\w*|tis-620"
)
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is its prefix
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_UNMARKED_UTF16 = {b"<\0?\0": "utf-16-le", b"\0<\0?": "utf-16-be"}  # an XML declaration


class Document(ABC):
    """A file with segments to translate, each of one or more sentences.

    Subclasses are created with (name, content, source language, target language), see `FORMATS`.

    There are two views of the segments: `segments` and `fill` are plain text; in `marked_segments` and `fill_marked`
    the segments of formats with `tags` contain inline tags and escaped characters, for `MarkedText`. An empty
    translation leaves a segment as it is (a line of plain text becomes empty).
    """

    marked_segments: list[str]
    """Segments to translate, in order; with inline markup if `tags`."""
    tags: ClassVar[bool] = False
    """True if `marked_segments` contain inline markup."""
    is_bilingual: ClassVar[bool] = False
    """True if a segment can stay untranslated, because the file contains source and translation."""

    @cached_property
    def grammars(self) -> Sequence[str | None]:
        """Grammar of the placeholders of each segment (see `text.markup.protected`)."""
        return [None] * len(self.marked_segments)

    @property
    def segments(self) -> list[str]:
        """Segments to translate as plain text, in order."""
        if not self.tags:
            return self.marked_segments
        return [MarkedText(segment).text for segment in self.marked_segments]

    def fill(self, translations: Sequence[str]) -> bytes:
        """Return the file with plain translations of its segments; inline tags are placed without word alignments."""
        if not self.tags:
            return self.fill_marked(translations)
        marked = []
        for segment, translation in zip(self.marked_segments, translations, strict=True):
            marked.append(MarkedText(segment).place(translation, ()) if translation else "")
        return self.fill_marked(marked)

    def filled(self, translations: Sequence[str]) -> bytes:
        """Return the same as `fill`, which had this name in earlier versions."""
        return self.fill(translations)

    @abstractmethod
    def fill_marked(self, translations: Sequence[str]) -> bytes:
        """Return the file with the translations of its marked segments."""


class Replacement(NamedTuple):
    """New text for the characters [start, end) of a file."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class FileText:
    """The decoded content of a file, which can be encoded again to the same bytes."""

    name: str
    """File name, for messages."""
    text: str
    """Content without the byte order mark."""
    encoding: str = UTF8
    """Python's name of the encoding."""
    mark: bytes = b""
    """Byte order mark."""

    @staticmethod
    def decode(name: str, content: bytes, declared: bytes | None = None) -> FileText:
        """Return the text of a file.

        Args:
            name: File name.
            content: The file's bytes.
            declared: Name of the encoding in the file, which counts if there is no byte order mark. Default: UTF-8.

        Raises:
            DataError: The content is not text in this encoding.
        """
        mark, encoding = _detect_encoding(content, declared)
        body = content[len(mark) :]
        try:
            text = body.decode(encoding)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, len(mark) + error.start) + 1
            wrong = f"byte 0x{body[error.start]:02x}"
            raise DataError(f"{name}:{line}: must be {encoding.upper()}; got {wrong}") from None
        # Some old multi-byte encodings have several codes for a character.
        if encoding != UTF8 and _encoded(text, encoding) != body:
            raise DataError(f"{name}: must be UTF-8; got {encoding.upper()} with characters in unusual codes")
        return FileText(name, text, encoding, mark)

    def spliced(self, replacements: Iterable[Replacement], errors: str = "strict") -> bytes:
        """Return the bytes of the file with parts of its text replaced.

        Args:
            replacements: Disjoint replacements, in any order.
            errors: Error handler of `str.encode` for characters that the encoding does not have.

        Raises:
            UnicodeEncodeError: The encoding does not have a character.
        """
        parts = []
        position = 0
        for start, end, text in sorted(replacements, key=lambda replacement: replacement[:2]):
            assert position <= start <= end
            parts += [self.text[position:start], text]
            position = end
        parts.append(self.text[position:])
        return self.mark + "".join(parts).encode(self.encoding, errors)

    def line_number(self, offset: int) -> int:
        """Return the number of the line at an offset, from 1."""
        return self.text.count("\n", 0, offset) + 1

    @cached_property
    def line_end(self) -> str:
        """The first line end of the file, or a line feed."""
        first = self.text.find("\n")
        return "\r\n" if first > 0 and self.text[first - 1] == "\r" else "\n"


def _detect_encoding(content: bytes, declared: bytes | None) -> tuple[bytes, str]:
    """Return the byte order mark and the encoding of a file."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            return mark, encoding
    if content[:4] in _UNMARKED_UTF16:
        return b"", _UNMARKED_UTF16[content[:4]]
    name = (declared or b"").decode("ascii", "replace")
    if len(name) > MAX_ENCODING_NAME or not _ENCODING_NAME.fullmatch(name):
        return b"", UTF8
    try:
        encoding = codecs.lookup(name).name
    except (LookupError, ValueError):
        return b"", UTF8
    if encoding == "ascii" and not content.isascii():
        return b"", UTF8
    return b"", encoding if _CHARACTER_SET.fullmatch(encoding) else UTF8


def _encoded(text: str, encoding: str) -> bytes | None:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        return None


def one_line(text: str) -> str:
    """Return a text with spaces for line ends."""
    return " ".join(text.splitlines())
