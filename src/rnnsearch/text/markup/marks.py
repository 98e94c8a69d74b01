"""The text that a model sees of a marked-up source, and the marks to restore in its translation.

Marks are inline tags, which must surround the corresponding words of the translation, and protected
text (URLs, numbers, placeholders, ...), which must stay letter for letter. A model sees plain text;
`place` then finds the target words by word alignment: an element surrounds the run of target words
that are linked to its words and to no others. Whatever the links, each mark is placed exactly once,
and nested as in the source.

`translator/translator.py`, `serve/files.py`, `html_document.py`, `inline_document.py`, `text/documents` and
`cli/translate_lines.py` use it. Types of protected text are in `protected.py`. Tests: tests/text/test_marks.py, and
tests/text/test_linear.py for linear time.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterator, Set

from rnnsearch.text.alignments import Link
from rnnsearch.text.markup.placing import Mark, MarkPlacement
from rnnsearch.text.markup.protected import ProtectedType, find_protected
from rnnsearch.text.markup.tags import CODES, Tag, protected_element_ends, tags

MAX_DEPTH = 100
"""Maximum nesting depth; tags of deeper elements become points. The time to place marks grows with it."""

_WHITE_SPACE = re.compile(r"[ \t\n\r\f]+")
_ID = re.compile(r"\sid\s*=")
_PAIR = re.compile(r"\s(?:i|rid|id)\s*=\s*[\"']?([^\s\"'>]*)")
_SUB = "sub of a code"
_PLACEHOLDERS: tuple[ProtectedType, ...] = ("placeholders",)
_SUB_TEXT = re.compile(r"([^<]*<sub(?:\s[^<>]*)?>)([^<]*)(</sub>[^<]*)")


class MarkedText:
    """A source text without its marks."""

    def __init__(
        self, source: str, tags: bool = True, collapse: bool = False, untranslated: Set[str] = frozenset()
    ) -> None:
        """Separate the text from its marks.

        Args:
            source: The marked-up source text.
            tags: True if it contains inline tags, and `&lt;` for `<`; a tag without a partner is a point.
            collapse: True if white space is a single space, as in HTML.
            untranslated: Names of elements, in lower case, whose content must stay unchanged.
        """
        self.source = source
        """The marked-up source text."""
        self.collapses = collapse
        """True if white space is a single space."""
        self._tags = tags
        self.text = source
        """The plain text; empty if there is nothing to translate but markup and fixed content."""
        self.marks: list[Mark] = []
        """Outer marks before inner ones."""
        if tags:
            parser = _MarkupParser(source, collapse, untranslated)
            self.text = parser.text
            self.marks = parser.marks
        self._is_untranslatable = bool(self.marks) and not self._has_translatable_text()
        if self._is_untranslatable:
            self.text = ""

    def _has_translatable_text(self) -> bool:
        # Text between elements with fixed content is what can be translated.
        fixed = sorted((mark.start, mark.end) for mark in self.marks if mark.content is not None)
        starts = [0, *(end for _, end in fixed)]
        ends = [*(start for start, _ in fixed), len(self.text)]
        return any(self.text[start:end].strip() for start, end in zip(starts, ends, strict=True))

    def place(self, target: str, links: Collection[Link]) -> str:
        """Return a translation of the plain text with all marks.

        Args:
            target: The translation.
            links: Links between the words of both texts.
        """
        if self._is_untranslatable:
            return self.source
        if not self.marks:
            return self._escape(target)
        return MarkPlacement(self.marks, self.text, target, links).render(self._escape)

    def _escape(self, text: str) -> str:
        return html.escape(text, quote=False) if self._tags else text


class _MarkupParser:
    """Parser of a text with inline tags into plain `text` and `marks`."""

    def __init__(self, source: str, collapse: bool = False, untranslated: Set[str] = frozenset()) -> None:
        self.marks: list[Mark] = []
        self._source = source
        self._collapses = collapse
        self._parts: list[str] = []
        self._size = 0
        self._last_character = ""
        self._open_elements: list[tuple[str, int]] = []  # name and mark index
        self._marks_since_text: list[Mark] = []
        self._follows_fixed_content = False  # the last text must not be joined to the next word
        self._parse(list(tags(source)), untranslated)
        self.text = "".join(self._parts)

    def _parse(self, found_tags: list[Tag], untranslated: Set[str]) -> None:
        end_tags = protected_element_ends(found_tags, untranslated)
        position = 0
        for index, tag in enumerate(found_tags):
            if tag.start < position:  # inside an element with fixed content
                continue
            self._add_source(position, tag.start)
            position = tag.end
            following = found_tags[index + 1] if index + 1 < len(found_tags) else None
            if tag.start in end_tags:
                end_tag = end_tags[tag.start]
                position = end_tag.end
                if tag.name in CODES:
                    self._add_code(tag, end_tag)
                else:
                    self._add_fixed_element(tag.markup, self._source[tag.end : end_tag.start], end_tag.markup)
            elif following is not None and _is_mask(tag, following):
                position = following.end
                self._add_literal(self._source[tag.start : position])
            elif tag.is_end:
                self._close(tag.name, tag.markup)
            else:
                self._open(tag.name, tag.markup, tag.is_empty)
        self._add_source(position, len(self._source))
        for mark in self.marks:
            if mark.parent >= 0 and not self.marks[mark.parent].closes:  # the parent never ended, so it is a point
                mark.parent = self.marks[mark.parent].parent

    def _open(self, name: str, markup: str, is_empty: bool = False) -> None:
        self._add_point(markup)
        if not is_empty and len(self._open_elements) < MAX_DEPTH:
            self._open_elements.append((name, len(self.marks) - 1))

    def _close(self, name: str, markup: str) -> None:
        if not self._open_elements or self._open_elements[-1][0] != name:
            # Only the innermost open element can end: marks are nested.
            self._add_point(markup)
            return
        _, number = self._open_elements.pop()
        self.marks[number].end = self._size
        self.marks[number].closes = markup

    def _add_code(self, tag: Tag, end_tag: Tag) -> None:
        """Add a code of XLIFF or TMX: the start or end of an element, a word of the sentence, or a point."""
        markup = self._source[tag.start : end_tag.end]
        content = self._source[tag.end : end_tag.start]
        text = _SUB_TEXT.fullmatch(content)
        if text is not None:
            # What stands in `sub` is text; what is around it belongs to the markup.
            self._open(_SUB, f"{tag.markup}{text[1]}")
            self._add_text(html.unescape(text[2]))
            self._close(_SUB, f"{text[3]}{end_tag.markup}")
        elif tag.name in ("bpt", "ept"):
            pair = _PAIR.search(tag.markup)
            name = f"bpt {pair[1] if pair else ''}"
            if tag.name == "bpt":
                self._open(name, markup)
            else:
                self._close(name, markup)
        elif tag.name == "ph" and _is_word(html.unescape(content)):
            self._add_literal(markup)
        else:
            self._add_point(markup)

    def _add_literal(self, markup: str) -> None:
        """Add an element that the translator sees as protected text: a word of the sentence."""
        mark = self._add_point("")
        self._add_text(markup)
        mark.start = self._size - len(markup)
        mark.end = self._size
        mark.content = markup

    def _add_source(self, start: int, end: int) -> None:
        text = self._source[start:end]
        if self._collapses:
            text = _WHITE_SPACE.sub(" ", text)
        self._add_text(html.unescape(text))

    def _add_text(self, text: str) -> None:
        if not text:
            return
        if self._marks_since_text:
            is_between_spaces = self._last_character.isspace() and text[0].isspace()
            if is_between_spaces:  # keep only one of the two spaces
                text = text[1:]
            ends_word = self._last_character.isalnum() and not text[:1].isalnum()
            for mark in self._marks_since_text:
                mark.spaced = is_between_spaces
                mark.ends_word = ends_word
        # `a<br/>b` are two words, which must not become one.
        is_divided = self._follows_fixed_content or any(mark.opens.endswith("/>") for mark in self._marks_since_text)
        if is_divided and self._last_character.isalnum() and text[:1].isalnum():
            self._append(" ")
        self._marks_since_text = []
        self._follows_fixed_content = False
        self._append(text)

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        self._last_character = text[-1:] or self._last_character

    def _add_point(self, markup: str) -> Mark:
        parent = self._open_elements[-1][1] if self._open_elements else -1
        mark = Mark(self._size, self._size, markup, parent=parent)
        self.marks.append(mark)
        self._marks_since_text.append(mark)
        return mark

    def _add_fixed_element(self, opens: str, content: str, closes: str) -> None:
        """Add an element whose content stays unchanged, separated from adjacent words."""
        mark = self._add_point(opens)
        text = html.unescape("".join(_text_between_tags(content)))
        if self._last_character.isalnum() and text[:1].isalnum():
            self._append(" ")
        self._add_text(text)
        mark.start = self._size - len(text)
        mark.end = self._size
        mark.closes = closes
        mark.content = content
        self._follows_fixed_content = self._last_character.isalnum()


def _is_mask(tag: Tag, following: Tag) -> bool:
    """Return True for `<x id="29"></x>`: an element without content in the place of something else."""
    is_empty = following.is_end and following.name == tag.name and following.start == tag.end
    return is_empty and not (tag.is_end or tag.is_empty) and (tag.name == "x" or _ID.search(tag.markup) is not None)


def _is_word(content: str) -> bool:
    """Return True if the content of a `ph` is a placeholder or words, not a tag."""
    if content.lstrip().startswith("<"):
        return False
    is_code = content.lstrip().startswith(("\\", "["))
    return bool(find_protected(content, _PLACEHOLDERS)) or (not is_code and any(map(str.isalnum, content)))


def _text_between_tags(source: str) -> Iterator[str]:
    position = 0
    for tag in tags(source):
        yield source[position : tag.start]
        position = tag.end
    yield source[position:]
