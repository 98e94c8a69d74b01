"""gettext catalogues (PO): entries without a translation get one, marked as fuzzy so that it is reviewed.

`parse_po` finds entries by offsets, in linear time; `Po` splices translations in, so that comments, wrapping, order and
all other entries stay as they are. GNU `msgfmt -c` accepts the result if it accepts the file: plural forms are
complete, line feeds at both ends of a text are kept, and the header has what these need.
"""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from rnnsearch.errors import DataError
from rnnsearch.text.documents.document import UTF8, Document, FileText, Replacement
from rnnsearch.text.documents.plural_forms import MAX_FORMS, PluralForms, default_plural_forms, parse_plural_forms
from rnnsearch.text.markup.protected import NO_PRINTF, PRINTF, protected_pattern

WIDTH = 80
"""Maximum number of columns of a line, as written by gettext's tools."""
_CHARSET = re.compile(rb"charset=([\w.:-]+)")
_CHARSET_BYTES = 10_000
_TOKEN = re.compile(
    r"[ \t\r\n\v\f]+|(?P<comment>#[^\r\n]*)"
    r"|(?P<keyword>msgctxt|msgid_plural|msgid|msgstr(?:[ \t]*\[(?P<form>\d{1,4})\])?|domain)(?=[\s\"])"
    r"|\"(?P<string>(?:[^\"\\\r\n]|\\[^\r\n])*+)\""
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', **{char: f"\\{name}" for name, char in _ESCAPED.items()}})
_CONTROL = re.compile("[\x00-\x06\x0e-\x1f\x7f]")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_WORD = re.compile(r"[^ ]*(?: +|$)")
# A closing tag, a tag without content, or a character reference: the text is HTML.
_MARKUP = re.compile(r"</[a-zA-Z][^<>]*>|<[a-zA-Z][^<>]*/>|<(?:br|hr|img|wbr)\b[^<>]*>|&(?:\w{2,8}|#\d{1,7});")
_REFERENCE = re.compile(r"&(?:\w{2,8}|#\w{1,7});")


@dataclass(slots=True)
class Text:
    """A text of an entry, at offsets [start, end) of the file: one or more quoted strings."""

    start: int
    """Offset of the first quotation mark."""
    end: int
    """Offset after the last quotation mark."""
    strings: list[str] = field(default_factory=list)
    """Contents of the strings, with their escapes."""

    @property
    def value(self) -> str:
        """The text."""
        return _ESCAPE.sub(_unescape, "".join(self.strings))


@dataclass(slots=True)
class Entry:
    """An entry of a catalogue."""

    start: int
    """Offset of its first keyword."""
    comments: list[tuple[int, str]] = field(default_factory=list)
    """Offsets and lines of the comments before it."""
    context: Text | None = None
    """`msgctxt`."""
    id: Text | None = None
    """`msgid`."""
    plural: Text | None = None
    """`msgid_plural`."""
    forms: dict[int, Text] = field(default_factory=dict)
    """`msgstr` by the number of the plural form; 0 is the only one of an entry without plural."""

    @property
    def flags(self) -> set[str]:
        """Flags such as `c-format`."""
        lines = [comment[2:] for _, comment in self.comments if comment.startswith("#,")]
        return set(" ".join(lines).replace(",", " ").split())

    @property
    def is_header(self) -> bool:
        """True if the translation is the header of the catalogue."""
        return self.context is None and self.id is not None and not self.id.value


_PRINTF_LANGUAGES = "c objc python php perl ruby lua awk gcc-internal java-printf javascript go d elisp object-pascal"
_PRINTF_FLAGS = frozenset(f"{language}-format" for language in _PRINTF_LANGUAGES.split())
"""Flags of entries in which each percent sign is part of a directive."""


class _Segment(NamedTuple):
    """A text to translate, and where its translation belongs."""

    entry: Entry
    source: Text
    forms: list[int]
    is_markup: bool


class Po(Document):
    """A gettext catalogue.

    The plural form that `Plural-Forms` gives for 1 is a translation of `msgid`, the others are of `msgid_plural`. A
    form that serves 1 and 21, for example, is of `msgid_plural` if only that has the placeholder for the number.
    """

    tags = True
    is_bilingual = True

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        charset = _CHARSET.search(content[:_CHARSET_BYTES])
        self._file = FileText.decode(name, content, charset[1] if charset else None)
        self._target = target
        entries = list(parse_po(self._file))
        self._header = next((entry for entry in entries if entry.is_header), None)
        self._has_plurals = any(entry.plural for entry in entries)
        self._plural_forms = _read_plural_forms(self._file, self._header) or default_plural_forms(target)
        self._wraps = _is_wrapped(entries)
        self._segments: list[_Segment] = []
        for entry in entries:
            if not entry.is_header:
                self._segments += _open_segments(entry, self._plural_forms)
        self.marked_segments = []
        for segment in self._segments:
            text = segment.source.value
            self.marked_segments.append(text if segment.is_markup else html.escape(text, quote=False))

    @cached_property
    def grammars(self) -> Sequence[str | None]:
        """Grammar of the placeholders of each segment, by the flags of its entry."""
        return [_grammar(segment.entry.flags) for segment in self._segments]

    def fill_marked(self, translations: Sequence[str]) -> bytes:
        """Return the catalogue with the translations; it becomes UTF-8 if its encoding lacks a character."""
        by_entry: dict[int, tuple[Entry, dict[int, str]]] = {}  # by offset
        for segment, translation in zip(self._segments, translations, strict=True):
            if not translation.strip():
                continue
            _, forms = by_entry.setdefault(segment.entry.start, (segment.entry, {}))
            forms |= dict.fromkeys(segment.forms, _as_message(segment, translation))
        replacements: list[Replacement] = []
        for entry, forms in by_entry.values():
            replacements += self._fill_entry(entry, forms)
        if not replacements:
            return self._file.spliced([])
        try:
            return self._file.spliced([*replacements, *self._complete_header(self._file.encoding)])
        except UnicodeEncodeError:
            file = FileText(self._file.name, self._file.text, UTF8)
            return file.spliced([*replacements, *self._complete_header(UTF8)])

    def _fill_entry(self, entry: Entry, forms: dict[int, str]) -> Iterator[Replacement]:
        """Yield the replacements that give an entry the texts of its forms, and the flag fuzzy."""
        for number, text in forms.items():
            if number in entry.forms:
                old = entry.forms[number]
                line_start = self._file.text.rfind("\n", max(0, old.start - WIDTH), old.start) + 1
                column = old.start - line_start
                yield Replacement(old.start, old.end, self._quoted(text, column))
        new = defaultdict[int, list[str]](list)  # lines by the end of the text before them
        for number in sorted(forms.keys() - entry.forms.keys()):
            assert entry.plural is not None  # other entries have only form 0
            before = max((form for form in entry.forms if form < number), default=None)
            keyword = f"msgstr[{number}] "
            line = f"{self._file.line_end}{keyword}{self._quoted(forms[number], len(keyword))}"
            new[entry.plural.end if before is None else entry.forms[before].end].append(line)
        for end, lines in new.items():
            yield Replacement(end, end, "".join(lines))
        yield from self._mark_fuzzy(entry)

    def _mark_fuzzy(self, entry: Entry) -> Iterator[Replacement]:
        """Yield the replacement that adds the flag fuzzy, if the entry does not have it."""
        position = entry.start
        for offset, comment in entry.comments:
            if comment.startswith("#,"):
                if "fuzzy" in comment.replace(",", " ").split():
                    return
                yield Replacement(offset + 2, offset + 2, " fuzzy,")
                return
            if comment.startswith("#|"):  # the previous source follows the flags
                position = min(position, offset)
        yield Replacement(position, position, f"#, fuzzy{self._file.line_end}")

    def _quoted(self, text: str, column: int) -> str:
        """Return a text as quoted strings, like gettext's tools: several lines if it has several or is too long."""
        escaped = text.translate(_ESCAPES)
        is_short = not self._wraps or column + len(escaped) + 2 <= WIDTH
        if is_short and "\n" not in text[:-1]:
            return f'"{escaped}"'
        lines: list[str] = []
        for line in _LINE.findall(text):
            escaped = line.translate(_ESCAPES)
            lines += _wrapped(escaped) if self._wraps else [escaped]
        return self._file.line_end.join(f'"{line}"' for line in ["", *lines])

    def _complete_header(self, encoding: str) -> Iterator[Replacement]:
        """Yield the replacements that give the header what a catalogue with translations needs."""
        fields = {}
        if not _header_field(self._header, "Language"):
            fields["Language"] = self._target.replace("-", "_")
        content_type = _header_field(self._header, "Content-Type")
        charset = content_type.partition("charset=")[2].strip()
        if charset in ("", "CHARSET") or encoding != self._file.encoding:
            fields["Content-Type"] = "text/plain; charset=UTF-8"
        if self._header is None:
            fields["Content-Transfer-Encoding"] = "8bit"
        if self._has_plurals and _read_plural_forms(self._file, self._header) is None:
            fields["Plural-Forms"] = self._plural_forms.header
        if self._header is None or not self._header.forms:
            yield self._new_header(fields)
            return
        text = self._header.forms[0]
        for name, value in fields.items():
            old = _raw_field(name).search(self._file.text, text.start, text.end)
            if old is not None:
                yield Replacement(old.start(1), old.end(1), f" {value}")
        new = [name for name in fields if not _raw_field(name).search(self._file.text, text.start, text.end)]
        lines = [f'"{name}: {fields[name]}\\n"' for name in new]
        if lines:
            is_complete = not text.value or text.value.endswith("\n")
            yield Replacement(text.end, text.end, self._file.line_end.join(["" if is_complete else ' "\\n"', *lines]))

    def _new_header(self, fields: dict[str, str]) -> Replacement:
        lines = ['msgid ""', 'msgstr ""', *(f'"{name}: {value}\\n"' for name, value in fields.items()), "", ""]
        return Replacement(0, 0, self._file.line_end.join(lines))


def parse_po(file: FileText) -> Iterator[Entry]:
    """Yield the entries of a catalogue, without obsolete ones.

    Raises:
        DataError: The text is not a catalogue.
    """
    parser = _Parser(file)
    text = file.text
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise parser.error(position, text[position : position + 40].splitlines()[0])
        position = token.end()
        if token["comment"]:
            parser.comment(token)
        elif token["keyword"]:
            if (entry := parser.keyword(token)) is not None:
                yield entry
        elif token["string"] is not None:
            parser.string(token)
    if (entry := parser.end()) is not None:
        yield entry


class _Parser:
    """State of `parse_po`: the current entry, and the comments of the next one."""

    def __init__(self, file: FileText) -> None:
        self._file = file
        self._entry: Entry | None = None
        self._comments: list[tuple[int, str]] = []
        self._text: Text | None = None  # where the next string belongs
        self._expects_string = False
        self._ignores_string = False

    def error(self, offset: int, problem: str) -> DataError:
        """Return an error about the file."""
        return DataError(f'{self._file.name}: must be a PO file; got "{problem}" in line {self._line(offset)}')

    def _line(self, offset: int) -> int:
        return self._file.line_number(offset)

    def comment(self, token: re.Match[str]) -> None:
        """Read a comment. It belongs to the next entry, unless it is inside one."""
        if token["comment"].startswith("#~"):
            self._comments = []
        else:
            self._comments.append((token.start(), token["comment"]))

    def keyword(self, token: re.Match[str]) -> Entry | None:
        """Read a keyword; return the entry before it if it starts a new one."""
        self._require_string(token.start())
        keyword = token["keyword"].partition("[")[0].strip()
        self._ignores_string = keyword == "domain"
        self._text = None
        previous = None
        is_new = keyword == "msgctxt" or (keyword == "msgid" and not self._is_after_context())
        if is_new:
            previous = self.end()
            self._entry = Entry(token.start(), self._comments)
        self._expects_string = True
        if self._ignores_string:
            return previous
        if self._entry is None:
            raise self.error(token.start(), token["keyword"])
        # Comments between the lines of an entry are preserved, but have no meaning.
        self._comments = []
        self._text = Text(-1, -1)
        self._store(self._entry, keyword, token)
        return previous

    def _is_after_context(self) -> bool:
        return self._entry is not None and self._entry.context is not None and self._entry.id is None

    def _store(self, entry: Entry, keyword: str, token: re.Match[str]) -> None:
        assert self._text is not None
        number = int(token["form"] or 0)
        is_repeated = (keyword == "msgid_plural" and entry.plural) or (keyword == "msgstr" and number in entry.forms)
        if is_repeated or number >= MAX_FORMS or (entry.id is None and keyword not in {"msgctxt", "msgid"}):
            raise self.error(token.start(), token["keyword"])
        if keyword == "msgctxt":
            entry.context = self._text
        elif keyword == "msgid":
            entry.id = self._text
        elif keyword == "msgid_plural":
            entry.plural = self._text
        else:
            entry.forms[number] = self._text

    def string(self, token: re.Match[str]) -> None:
        """Read a quoted string."""
        if self._text is None and not self._ignores_string:
            raise self.error(token.start(), token[0][:40])
        self._expects_string = False
        if self._text is not None:
            if self._text.start < 0:
                self._text.start = token.start()
            self._text.end = token.end()
            self._text.strings.append(token["string"])

    def end(self) -> Entry | None:
        """Return the current entry, which is complete."""
        entry = self._entry
        self._entry = None
        if entry is not None and (entry.id is None or not entry.forms):
            raise self.error(entry.start, self._file.text[entry.start : entry.start + 40].splitlines()[0])
        self._require_string(len(self._file.text))
        return entry

    def _require_string(self, offset: int) -> None:
        if self._expects_string:
            raise self.error(offset, self._file.text[offset : offset + 40].partition("\n")[0] or "end of file")


def _unescape(match: re.Match[str]) -> str:
    octal, hexadecimal, character = match.groups()
    if octal:
        return chr(int(octal, 8) & 0xFF)
    if hexadecimal:
        return chr(int(hexadecimal, 16))
    return _ESCAPED.get(character, character)


def _open_segments(entry: Entry, plural_forms: PluralForms) -> Iterator[_Segment]:
    """Yield the segments of an entry: those of its texts whose translation is missing."""
    assert entry.id is not None
    if not entry.id.value.strip():
        return
    if entry.plural is None:
        if not entry.forms[0].value:
            yield _segment(entry, entry.id, [0])
        return
    forms = range(max([plural_forms.count, *(number + 1 for number in entry.forms)]))
    empty = [number for number in forms if number not in entry.forms or not entry.forms[number].value]
    singular = plural_forms.form_of_one
    has_singular = not plural_forms.one_is_shared or _has_placeholders(entry.id.value, entry.plural.value)
    if has_singular and singular in empty:
        empty.remove(singular)
        yield _segment(entry, entry.id, [singular])
    if empty:
        yield _segment(entry, entry.plural, empty)


def _segment(entry: Entry, source: Text, forms: list[int]) -> _Segment:
    return _Segment(entry, source, forms, _MARKUP.search(source.value) is not None)


def _grammar(flags: set[str]) -> str | None:
    """Return the grammar of the placeholders of an entry with these flags."""
    if flags & _PRINTF_FLAGS:
        return PRINTF
    return NO_PRINTF if "no-c-format" in flags else None


def _has_placeholders(singular: str, plural: str) -> bool:
    """Return True if the singular has all placeholders of the plural."""
    pattern = protected_pattern(("placeholders",))
    in_singular = Counter(match[0] for match in pattern.finditer(singular))
    return Counter(match[0] for match in pattern.finditer(plural)) <= in_singular


def _as_message(segment: _Segment, translation: str) -> str:
    """Return a marked translation as the text of an entry, with line feeds at its ends like the source."""
    source = segment.source.value
    if not segment.is_markup or not _REFERENCE.search(source):
        # The source has no escaped characters, so the translation must not have any.
        translation = translation.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    text = _CONTROL.sub("", translation).strip("\n")
    body = source.strip("\n")
    start = source.index(body)
    return source[:start] + text + source[start + len(body) :]


def _is_wrapped(entries: Sequence[Entry]) -> bool:
    """Return False if the lines of a file are not wrapped: one is too long, although it has a space."""
    for entry in entries:
        for text in (entry.id, entry.plural, *entry.forms.values()):
            for string in text.strings if text else ():
                if len(string) > WIDTH and " " in string.strip():
                    return False
    return True


def _wrapped(line: str) -> Iterator[str]:
    """Yield parts of an escaped line that fit into `WIDTH` columns with their quotation marks, divided at spaces."""
    current = ""
    for word in _WORD.findall(line):
        if current and len(current) + len(word) > WIDTH - 3:
            yield current
            current = ""
        current += word
    if current:
        yield current


def _raw_field(name: str) -> re.Pattern[str]:
    """Return the pattern of a field in the header as it is in the file, whose group is the value."""
    return re.compile(rf'(?:"|\\n){name}:([^"\\]*)(?=\\n|")', re.IGNORECASE)


def _header_field(header: Entry | None, name: str) -> str:
    """Return the value of a field, or an empty string."""
    if header is None or not header.forms:
        return ""
    for line in header.forms[0].value.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() == name.lower():
            return value.strip()
    return ""


def _read_plural_forms(file: FileText, header: Entry | None) -> PluralForms | None:
    """Return the plural forms that the header declares, or None if it does not, or has a template's placeholders.

    Raises:
        DataError: They are invalid.
    """
    value = _header_field(header, "Plural-Forms")
    if not value or "INTEGER" in value or "EXPRESSION" in value:
        return None
    try:
        return parse_plural_forms(value)
    except ValueError as error:
        raise DataError(f"{file.name}: Plural-Forms {error}") from None
