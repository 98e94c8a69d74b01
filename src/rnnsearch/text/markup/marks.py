"""The text that a model sees of a marked-up source, and the marks to restore in its translation.

Marks are inline tags, which must surround the corresponding words of the translation, and protected
text (URLs, numbers, placeholders, ...), which must stay letter for letter. A model sees plain text;
`place` then finds the target words by word alignment: an element surrounds the run of target words
that are linked to its words and to no others. Whatever the links, each mark is placed exactly once,
and nested as in the source.

`translator/translator.py`, `serve/files.py`, `html_document.py` and `cli/translate_lines.py` use it;
`documents.py` and `cli/options.py` use the types of protected text. Tests: tests/text/test_marks.py, and
tests/text/test_linear.py for linear time.
"""

from __future__ import annotations

import html
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator

from rnnsearch.text.alignments import Link
from rnnsearch.text.markup.placing import Mark, MarkPlacement
from rnnsearch.text.markup.protected import PROTECTED, Protected, protected_pattern, protected_type
from rnnsearch.text.markup.tags import protected_element_ends, tags

__all__ = ["PROTECTED", "MarkedText", "Protected"]

MAX_DEPTH = 100
"""Maximum nesting depth; tags of deeper elements become points. The time to place marks grows with it."""


class MarkedText:
    """A source text without its marks."""

    def __init__(self, source: str, tags: bool = True, protect: Collection[Protected] = ()) -> None:
        """Separate the text from its marks.

        Args:
            source: The marked-up source text.
            tags: True if it contains inline tags, and `&lt;` for `<`; a tag without a partner is a point.
            protect: Names of `PROTECTED` types of text that must stay unchanged.
        """
        self.source = source
        """The marked-up source text."""
        self._tags = tags
        self.text = source
        """The plain text; empty if there is nothing to translate but markup and protected text."""
        self.marks: list[Mark] = []
        """Outer marks before inner ones, then those of protected text."""
        if tags:
            parser = _MarkupParser(source)
            self.text = parser.text
            self.marks = parser.marks
        if protect:
            self._protect(protect)
        self._is_untranslatable = bool(self.marks) and not self._has_translatable_text()
        if self._is_untranslatable:
            self.text = ""

    def _has_translatable_text(self) -> bool:
        # Text between elements with fixed content is what can be translated.
        fixed = sorted((mark.start, mark.end) for mark in self.marks if mark.content is not None)
        starts = [0, *(end for _, end in fixed)]
        ends = [*(start for start, _ in fixed), len(self.text)]
        return any(self.text[start:end].strip() for start, end in zip(starts, ends, strict=True))

    def _protect(self, names: Collection[Protected]) -> None:
        """Add marks for protected text that no tag interrupts, outside elements with fixed content."""
        edges = sorted({edge for mark in self.marks for edge in (mark.start, mark.end)})
        elements = [(number, mark) for number, mark in enumerate(self.marks) if mark.end > mark.start]
        open_elements = [(-1, Mark(0, len(self.text)))]  # a stack; -1 is the whole text
        next_element = 0
        for match in protected_pattern(names).finditer(self.text):
            start, end = match.span()
            while next_element < len(elements) and elements[next_element][1].start <= start:
                open_elements.append(elements[next_element])
                next_element += 1
                # Elements that ended before this one started are no longer around it.
                while open_elements[-2][1].end <= open_elements[-1][1].start:
                    del open_elements[-2]
            while open_elements[-1][1].end <= start and open_elements[-1][0] >= 0:
                open_elements.pop()
            number, element = open_elements[-1]
            is_interrupted = bisect_left(edges, end) > bisect_right(edges, start)
            if element.content is None and not is_interrupted:
                content = self._escape(match[0])
                mark_type = protected_type(match)
                self.marks.append(Mark(start, end, content=content, protected_type=mark_type, parent=number))

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

    def __init__(self, source: str) -> None:
        self.marks: list[Mark] = []
        self._parts: list[str] = []
        self._size = 0
        self._last_character = ""
        self._open_elements: list[tuple[str, int]] = []  # name and mark index
        self._marks_since_text: list[Mark] = []
        self._follows_fixed_content = False  # the last text must not be joined to the next word
        self._parse(source)
        self.text = "".join(self._parts)

    def _parse(self, source: str) -> None:
        found_tags = list(tags(source))
        end_tags = protected_element_ends(found_tags)
        position = 0
        for tag in found_tags:
            if tag.start < position:  # inside an element with fixed content
                continue
            self._add_text(html.unescape(source[position : tag.start]))
            position = tag.end
            if tag.start in end_tags:
                end_tag = end_tags[tag.start]
                self._add_fixed_element(tag.markup, source[tag.end : end_tag.start], end_tag.markup)
                position = end_tag.end
            elif tag.is_end and self._open_elements and self._open_elements[-1][0] == tag.name:
                _, number = self._open_elements.pop()
                self.marks[number].end = self._size
                self.marks[number].closes = tag.markup
            else:  # only the innermost open element can end: marks are nested
                self._add_point(tag.markup)
                if not (tag.is_end or tag.is_empty) and len(self._open_elements) < MAX_DEPTH:
                    self._open_elements.append((tag.name, len(self.marks) - 1))
        self._add_text(html.unescape(source[position:]))
        for mark in self.marks:
            if mark.parent >= 0 and not self.marks[mark.parent].closes:  # the parent never ended, so it is a point
                mark.parent = self.marks[mark.parent].parent

    def _add_text(self, text: str) -> None:
        if not text:
            return
        if self._marks_since_text:
            is_between_spaces = self._last_character.isspace() and text[0].isspace()
            if is_between_spaces:  # keep only one of the two spaces
                text = text[1:]
            for mark in self._marks_since_text:
                mark.spaced = is_between_spaces
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


def _text_between_tags(source: str) -> Iterator[str]:
    position = 0
    for tag in tags(source):
        yield source[position : tag.start]
        position = tag.end
    yield source[position:]
