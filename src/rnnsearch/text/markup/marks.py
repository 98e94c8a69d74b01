"""Marks in a text, which must come out of a translation: inline tags around the words that they stood around, and
stretches that are to stay letter for letter.

A model sees the plain text. What was marked in it is found again by word alignment: the run of target words that are
linked to an element's words, and to no others, is the element's. Whatever the links, all marks come out, each once,
and nested as they were.
"""

from __future__ import annotations

import html
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator

from rnnsearch.text.alignments import Link
from rnnsearch.text.markup.placing import Mark, Placing
from rnnsearch.text.markup.protected import PROTECTED, Protected, kind_of, protected
from rnnsearch.text.markup.tags import kept_ends, tags

__all__ = ["PROTECTED", "MarkedText", "Protected"]

DEEPEST = 100
"""Elements inside one another; the tags of deeper ones are points. The time to place them grows by it."""


class MarkedText:
    """A text with its marks taken out of it."""

    def __init__(self, source: str, tags: bool = True, protect: Collection[Protected] = ()) -> None:
        """`tags`: whether it holds inline tags, and `&lt;` for `<`; a tag without a partner is a point. `protect`: what
        is kept, by names of `PROTECTED`."""
        self._source, self._tags = source, tags
        read = _Reader(source) if tags else None
        self.text = read.text if read else source
        """The plain text; empty where there is nothing to be translated, but markup and what is kept."""
        self.marks = read.marks if read else []
        """Outer ones before inner ones; what is protected at the end."""
        if protect:
            self._protect(protect)
        self._silent = bool(self.marks) and not self._speaks()
        if self._silent:
            self.text = ""

    def _speaks(self) -> bool:
        kept = sorted((mark.start, mark.end) for mark in self.marks if mark.kept is not None)
        begins, ends = [0, *(end for _, end in kept)], [*(start for start, _ in kept), len(self.text)]
        return any(self.text[begin:end].strip() for begin, end in zip(begins, ends, strict=True))

    def _protect(self, names: Collection[Protected]) -> None:
        edges = sorted({edge for mark in self.marks for edge in (mark.start, mark.end)})
        elements = [(number, mark) for number, mark in enumerate(self.marks) if mark.end > mark.start]
        around, following = [(-1, Mark(0, len(self.text)))], 0
        for match in protected(names).finditer(self.text):
            start, end = match.span()
            while following < len(elements) and elements[following][1].start <= start:
                around.append(elements[following])
                following += 1
                while around[-2][1].end <= around[-1][1].start:
                    del around[-2]
            while around[-1][1].end <= start and around[-1][0] >= 0:
                around.pop()
            number, element = around[-1]
            crossed = bisect_left(edges, end) > bisect_right(edges, start)
            if element.kept is None and not crossed:
                kept = self._escaped(match[0])
                self.marks.append(Mark(start, end, kept=kept, kind=kind_of(match), parent=number))

    def placed(self, target: str, links: Collection[Link]) -> str:
        """A translation of the plain text with the marks in it; `links` are between the words of both."""
        if self._silent:
            return self._source
        if not self.marks:
            return self._escaped(target)
        return Placing(self.marks, self.text, target, links).written(self._escaped)

    def _escaped(self, text: str) -> str:
        return html.escape(text, quote=False) if self._tags else text


class _Reader:
    """Takes a text with inline tags apart: `text` is what is left, `marks` what was taken out."""

    def __init__(self, source: str) -> None:
        self.marks: list[Mark] = []
        self._parts: list[str] = []
        self._size = 0
        self._last = ""
        self._open: list[tuple[str, int]] = []
        """Names and numbers of the elements that have not ended."""
        self._fresh: list[Mark] = []
        """Marks since the last text."""
        self._glued = False
        """Whether the last text is of an element that is kept, and must not run together with more."""
        self._read(source)
        self.text = "".join(self._parts)

    def _read(self, source: str) -> None:
        found = list(tags(source))
        begin, ends = 0, kept_ends(found)
        for tag in found:
            if tag.start < begin:  # inside what is kept
                continue
            self._add(html.unescape(source[begin : tag.start]))
            begin = tag.end
            if tag.start in ends:
                end = ends[tag.start]
                self._keep(tag.markup, source[tag.end : end.start], end.markup)
                begin = end.end
            elif tag.closes and self._open and self._open[-1][0] == tag.name:
                mark = self.marks[self._open.pop()[1]]
                mark.end, mark.closes = self._size, tag.markup
            else:  # only the innermost open element can end: marks are nested
                self._point(tag.markup)
                if not (tag.closes or tag.empty) and len(self._open) < DEEPEST:
                    self._open.append((tag.name, len(self.marks) - 1))
        self._add(html.unescape(source[begin:]))
        for mark in self.marks:
            if mark.parent >= 0 and not self.marks[mark.parent].closes:  # which never ended, and is a point
                mark.parent = self.marks[mark.parent].parent

    def _add(self, text: str) -> None:
        if not text:
            return
        if self._fresh:
            spaces = self._last.isspace() and text[0].isspace()
            if spaces:  # one is enough
                text = text[1:]
            for mark in self._fresh:
                mark.spaced = spaces
        divided = self._glued or any(mark.opens.endswith("/>") for mark in self._fresh)
        if divided and self._last.isalnum() and text[:1].isalnum():
            self._append(" ")
        self._fresh, self._glued = [], False
        self._append(text)

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        self._last = text[-1:] or self._last

    def _point(self, markup: str) -> Mark:
        mark = Mark(self._size, self._size, markup, parent=self._open[-1][1] if self._open else -1)
        self.marks.append(mark)
        self._fresh.append(mark)
        return mark

    def _keep(self, opens: str, content: str, closes: str) -> None:
        """An element with its content, which is a word of its own at least."""
        mark = self._point(opens)
        text = html.unescape("".join(_without_tags(content)))
        if self._last.isalnum() and text[:1].isalnum():
            self._append(" ")
        self._add(text)
        mark.start, mark.end, mark.closes, mark.kept = self._size - len(text), self._size, closes, content
        self._glued = self._last.isalnum()


def _without_tags(source: str) -> Iterator[str]:
    begin = 0
    for tag in tags(source):
        yield source[begin : tag.start]
        begin = tag.end
    yield source[begin:]
