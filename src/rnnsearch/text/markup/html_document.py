"""HTML as texts to translate and everything between them.

`serve/translation_service.py` and `text.documents` use it. HTML comes from strangers: tests/text/test_linear.py. Tests:
tests/serve/test_html_documents.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from rnnsearch.text.alignments import Link
from rnnsearch.text.markup.marks import MarkedText
from rnnsearch.text.markup.tags import Tag, collapse_spaces, protected_element_ends, tags

_SPACES = " \t\n\r\f"
"""White space of HTML; a no-break space is text."""
_LAYOUT = frozenset({"pre", "textarea", "listing", "xmp"})
"""Elements in which white space is layout."""
_ATTRIBUTE = re.compile(r"(?<=[\s\"'])([a-zA-Z][^\s\"'<>/=]*+)\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)')")
_TRANSLATED_ATTRIBUTES = frozenset({"title", "alt"})
_MAY_HAVE_ATTRIBUTES = re.compile("title|alt|content", re.IGNORECASE)
"""Finds nothing in most texts, whose tags are then not searched for attributes."""
_DESCRIPTIONS = frozenset({"description", "og:title", "og:description", "twitter:title", "twitter:description"})
"""Values of `name` or `property` of the `meta` elements whose `content` is translated."""
_SLOT_START = "\ue010"
_SLOT_END = "\ue011"
_SLOT = re.compile(f"{_SLOT_START}([0-9]{{1,9}}){_SLOT_END}")
"""Attribute value in the document while its other texts are translated."""


class _Attribute(NamedTuple):
    """A value to translate at characters [start, end) of a document, in quotes."""

    start: int
    end: int
    quote: str


class HtmlDocument:
    """An HTML document as texts to translate and everything between them, which is preserved exactly.

    Tags inside a text are placed around the aligned words of its translation. The values of `title`, `alt` and
    descriptions in `meta` are texts, too. White space inside a text is one space, as browsers show it, except in `pre`
    and `textarea`. Parsing takes time linear in the length and never fails: what looks like a tag but does not end is
    preserved up to the end of the document.
    """

    def __init__(self, source: str) -> None:
        self._parts: list[str | MarkedText] = []
        self._attributes: list[_Attribute] = []
        self._values: list[MarkedText] = []
        if _SLOT_START not in source:
            source = self._take_attributes(source)
        self._parse(source)
        marked = [*(part for part in self._parts if isinstance(part, MarkedText)), *self._values]
        self._marked = marked
        self.texts = [part.text for part in marked]
        """The texts to translate, without tags; those of attributes come last."""
        self.has_inline_tags = any(part.marks for part in marked)
        """True if there are tags inside texts, so that links between words are needed."""

    @cached_property
    def marked_texts(self) -> list[str]:
        """The texts to translate, with inline tags; white space is one space, unless it is layout."""
        return [collapse_spaces(part.source) if part.collapses else part.source for part in self._marked]

    def filled(self, translations: Sequence[tuple[str, Collection[Link]]]) -> str:
        """Return the document with its texts replaced by translations.

        Args:
            translations: For each text, its translation and the links between their words.
        """
        pairs = zip(self._marked, translations, strict=True)
        return self.joined([part.place(*translation) for part, translation in pairs])

    def joined(self, translations: Sequence[str]) -> str:
        """Return the document with its texts replaced by translations with tags; an empty one leaves its text.

        Args:
            translations: For each of `marked_texts`, its translation with inline tags and escaped characters.
        """
        remaining = iter(translations)
        parts = []
        for part in self._parts:
            parts.append(part if isinstance(part, str) else next(remaining) or part.source)
        values = []
        for value, attribute, translation in zip(self._values, self._attributes, remaining, strict=True):
            escaped = "&quot;" if attribute.quote == '"' else "&#39;"
            values.append(translation.replace(attribute.quote, escaped) or value.source)
        document = "".join(parts)
        return _SLOT.sub(lambda slot: values[int(slot[1])], document) if values else document

    def _take_attributes(self, source: str) -> str:
        """Return the document with a slot for each attribute value to translate."""
        if _MAY_HAVE_ATTRIBUTES.search(source) is None:
            return source
        found_tags = list(tags(source))
        kept = protected_element_ends(found_tags)
        kept_end = 0
        parts = []
        position = 0
        for tag in found_tags:
            if tag.start in kept and tag.start >= kept_end:
                kept_end = kept[tag.start].end
            if tag.start < kept_end or tag.is_end or not tag.name:
                continue
            for attribute in _translated_attributes(tag):
                value = MarkedText(source[attribute.start : attribute.end], collapse=True)
                if not any(map(str.isalpha, value.text)):
                    continue
                parts += [source[position : attribute.start], f"{_SLOT_START}{len(self._values)}{_SLOT_END}"]
                self._attributes.append(attribute)
                self._values.append(value)
                position = attribute.end
        return "".join([*parts, source[position:]])

    def _parse(self, source: str) -> None:
        all_tags = list(tags(source))
        end_tag_by_start = protected_element_ends(all_tags)
        text_start = 0  # of the text that is being collected
        points: list[Tag] = []  # comments and empty elements in this text
        kept_end = 0  # end of the last element whose content is preserved
        layout_elements: list[str] = []
        for tag in all_tags:
            # Inline tags stay in the text and are placed by `MarkedText`.
            if tag.start < kept_end or tag.is_inline:
                if tag.start < kept_end:
                    continue
                if tag.is_empty:
                    points.append(tag)
                elif tag.start in end_tag_by_start and tag.keeps_content:
                    kept_end = end_tag_by_start[tag.start].end
                continue
            self._add_text(source, text_start, tag.start, points, bool(layout_elements))
            points = []
            if not tag.keeps_content:
                kept_end = tag.end
            elif tag.start in end_tag_by_start:
                kept_end = end_tag_by_start[tag.start].end
            else:  # an element that does not end is preserved up to the end of the document
                kept_end = len(source)
            self._parts.append(source[tag.start : kept_end])
            text_start = kept_end
            if tag.name in _LAYOUT and not tag.keeps_content:
                if not tag.is_end:
                    layout_elements.append(tag.name)
                elif layout_elements and layout_elements[-1] == tag.name:
                    layout_elements.pop()
        self._add_text(source, text_start, len(source), points, bool(layout_elements))

    def _add_text(self, source: str, start: int, end: int, points: Sequence[Tag], is_layout: bool) -> None:
        """Add characters [start, end), in which there are inline tags and comments."""
        # Comments, images and white space at the ends are not part of the text.
        first = 0
        last = len(points)
        core_start = _skip_spaces(source, start, end)
        while first < last and points[first].start == core_start:
            core_start = _skip_spaces(source, points[first].end, end)
            first += 1
        core_end = core_start + len(source[core_start:end].rstrip(_SPACES))
        while first < last and points[last - 1].end == core_end:
            core_end = core_start + len(source[core_start : points[last - 1].start].rstrip(_SPACES))
            last -= 1
        if is_layout:
            core_start = start
            core_end = end
        marked = MarkedText(source[core_start:core_end], collapse=not is_layout)
        if marked.text.strip():
            self._parts += [source[start:core_start], marked, source[core_end:end]]
        else:
            self._parts.append(source[start:end])


def _skip_spaces(source: str, start: int, end: int) -> int:
    while start < end and source[start] in _SPACES:
        start += 1
    return start


def _translated_attributes(tag: Tag) -> Iterator[_Attribute]:
    """Yield the attribute values of a tag that are text for readers."""
    matches = list(_ATTRIBUTE.finditer(tag.markup))
    is_description = tag.name == "meta" and any(
        match[1].lower() in ("name", "property") and (match[2] or match[3] or "").strip().lower() in _DESCRIPTIONS
        for match in matches
    )
    for match in matches:
        name = match[1].lower()
        if name in _TRANSLATED_ATTRIBUTES or (is_description and name == "content"):
            start, end = match.span(2 if match[2] is not None else 3)
            yield _Attribute(tag.start + start, tag.start + end, tag.markup[end])
