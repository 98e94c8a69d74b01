"""The tags of a text with HTML or XML in it, in one pass that fails on nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_OPENS = re.compile(r"<(?=[a-zA-Z/!?])")
_TAG = re.compile(r"</?([a-zA-Z][^\s/>]*)(?:[^>\"']|\"[^\"]*\"|'[^']*')*+>")
_RAW = frozenset({"script", "style", "textarea"})
"""Elements whose content is no markup."""
INLINE = frozenset(
    {"a", "abbr", "b", "bdi", "bdo", "big", "bpt", "cite", "code", "data", "del", "dfn", "em", "ept", "font", "g", "i"}
    | {"img", "ins", "it", "kbd", "label", "mark", "ph", "q", "s", "samp", "small", "span", "strike", "strong", "sub"}
    | {"sup", "time", "tt", "u", "var", "wbr", "x"}
)
"""Elements that stand inside a sentence, of HTML and of XLIFF."""
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_KEPT = frozenset({"code", "kbd", "samp", "var", "svg", "math"}) | _RAW
_NO = re.compile(r"\stranslate\s*=\s*[\"']?no\b", re.IGNORECASE)


@dataclass(frozen=True)
class Tag:
    """A tag, a comment or a declaration at characters [start, end) of a text."""

    start: int
    end: int
    markup: str
    name: str = ""
    """In lower case; empty for a comment, a declaration, and a tag that never ends, which reaches to the text's end."""

    @property
    def closes(self) -> bool:
        """Whether it ends an element."""
        return self.markup.startswith("</")

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it, and no end tag."""
        return not self.name or self.name in _VOID or self.markup.endswith("/>")

    @property
    def keeps(self) -> bool:
        """Whether it begins an element whose content is not to be translated."""
        return not (self.closes or self.empty) and (self.name in _KEPT or _NO.search(self.markup) is not None)


def tags(source: str) -> Iterator[Tag]:
    """All of them, in order."""
    at = 0
    while (opens := _OPENS.search(source, at)) is not None:
        start = opens.start()
        tag = _tag(source, start)
        yield tag
        at = tag.end
        if tag.name in _RAW and not (tag.closes or tag.empty):
            close = re.compile(f"</{tag.name}", re.IGNORECASE).search(source, at)
            at = close.start() if close else len(source)


def _tag(source: str, start: int) -> Tag:
    if source.startswith("<!--", start):
        last = source.find("-->", start + 4)
        end = last + 3 if last >= 0 else len(source)
    elif (tag := _TAG.match(source, start)) is not None:
        return Tag(start, tag.end(), tag[0], tag[1].lower())
    elif source[start + 1 : start + 3].lstrip("/")[:1].isalpha():  # with a quote that never ends
        end = len(source)
    else:
        end = source.find(">", start) + 1 or len(source)
    return Tag(start, end, source[start:end])


def kept_ends(found: list[Tag]) -> dict[int, Tag]:
    """The end tag of each element whose content is kept, by where its start tag begins; not of one inside another."""
    # Of each name, elements that have not ended: one that never does keeps nothing.
    opened: dict[str, list[Tag]] = {}
    closed: dict[int, Tag] = {}
    for tag in found:
        if tag.empty:
            continue
        if not tag.closes:
            opened.setdefault(tag.name, []).append(tag)
        elif opened.get(tag.name):
            closed[opened[tag.name].pop().start] = tag
    ends: dict[int, Tag] = {}
    begin = 0
    for tag in found:
        if tag.start >= begin and tag.keeps and tag.start in closed:
            ends[tag.start] = closed[tag.start]
            begin = closed[tag.start].end
    return ends
