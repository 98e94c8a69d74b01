"""A tolerant scanner for HTML and XML tags in a text; it takes one pass and never fails.

Texts come from strangers: tests/text/test_linear.py, tests/text/test_marks.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass

_OPENS = re.compile(r"<(?=[a-zA-Z/!?])")
# The possessive quantifier prevents backtracking, which would take quadratic time for an open quote.
_TAG = re.compile(r"</?([a-zA-Z][^\s/>]*+)(?:[^>\"']|\"[^\"]*\"|'[^']*')*+>")
_WHITE_SPACE = re.compile(r"[ \t\n\r\f]+")
_RAW = frozenset({"script", "style", "textarea"})
"""Elements whose content is not markup."""
INLINE = frozenset(
    {"a", "abbr", "b", "bdi", "bdo", "big", "bpt", "bx", "cite", "code", "data", "del", "dfn", "em", "ept", "ex"}
    | {"font", "g", "hi", "i", "img", "ins", "it", "kbd", "label", "mark", "mrk", "ph", "q", "rb", "rp", "rt", "rtc"}
    | {"ruby", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "svg", "time", "tt", "u", "ut", "var"}
    | {"wbr", "x"}
)
"""Elements that occur inside a sentence, of HTML and of XLIFF."""
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
CODES = frozenset({"bpt", "ept", "it", "ph", "ut", "svg", "rp", "rt", "rtc"})
"""Elements that are no words of the sentence: markup of another format in XLIFF and TMX, images, annotations."""
_UNTRANSLATED = frozenset({"code", "kbd", "samp", "var", "svg", "math"}) | _RAW | CODES
_TRANSLATE_NO = re.compile(
    r"\stranslate\s*=\s*[\"']?no\b|\sclass\s*=\s*(?:\"[^\"]*\bnotranslate\b|'[^']*\bnotranslate\b|notranslate\b)"
    r"|\smtype\s*=\s*[\"']?protected\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Tag:
    """A tag, a comment or a declaration at characters [start, end) of a text."""

    start: int
    """Offset of the `<`."""
    end: int
    """Offset after the `>`."""
    markup: str
    """Characters of the tag, with its brackets."""
    name: str = ""
    """Name in lower case; empty for a comment, a declaration, and an unterminated tag, which extends to the text's end.
    """

    @property
    def is_end(self) -> bool:
        """True if the tag ends an element."""
        return self.markup.startswith("</")

    @property
    def is_inline(self) -> bool:
        """True if the tag, or a comment, can occur inside a sentence."""
        return self.name in INLINE or self.markup.startswith("<!--")

    @property
    def is_empty(self) -> bool:
        """True if the element has no content and no end tag."""
        return not self.name or self.name in _VOID or self.markup.endswith("/>")

    @property
    def keeps_content(self) -> bool:
        """True if the tag starts an element whose content must not be translated."""
        return not (self.is_end or self.is_empty) and (
            self.name in _UNTRANSLATED or _TRANSLATE_NO.search(self.markup) is not None
        )


def tags(source: str) -> Iterator[Tag]:
    """Yield all tags, comments and declarations in order."""
    position = 0
    while (opens := _OPENS.search(source, position)) is not None:
        start = opens.start()
        tag = _tag(source, start)
        yield tag
        position = tag.end
        if tag.name in _RAW and not (tag.is_end or tag.is_empty):
            # Inside these elements, `<` starts no tag until the end tag.
            close = re.compile(f"</{tag.name}", re.IGNORECASE).search(source, position)
            position = close.start() if close else len(source)


def _tag(source: str, start: int) -> Tag:
    if source.startswith("<!--", start):
        close = source.find("-->", start + 4)
        end = close + 3 if close >= 0 else len(source)
    elif (tag := _TAG.match(source, start)) is not None:
        return Tag(start, tag.end(), tag[0], tag[1].lower())
    elif source[start + 1 : start + 3].lstrip("/")[:1].isalpha():  # a tag with an unterminated quote
        end = len(source)
    else:
        end = source.find(">", start) + 1 or len(source)
    return Tag(start, end, source[start:end])


def fixed_spans(source: str) -> Iterator[tuple[int, int]]:
    """Yield the characters [start, end) of each tag outside elements with fixed content, and of each such element."""
    found_tags = list(tags(source))
    end_tags = protected_element_ends(found_tags)
    position = 0
    for tag in found_tags:
        if tag.start >= position:
            position = end_tags[tag.start].end if tag.start in end_tags else tag.end
            yield tag.start, position


def collapse_spaces(source: str) -> str:
    """Return marked-up text with one space for each white space outside tags and elements with fixed content."""
    parts = []
    position = 0
    for start, end in fixed_spans(source):
        parts += [_WHITE_SPACE.sub(" ", source[position:start]), source[start:end]]
        position = end
    parts.append(_WHITE_SPACE.sub(" ", source[position:]))
    return "".join(parts)


def protected_element_ends(found_tags: list[Tag], names: Set[str] = frozenset()) -> dict[int, Tag]:
    """Return the end tag of each outermost element whose content is protected, by the position of its start tag.

    Args:
        found_tags: All tags of a text.
        names: Names of further elements, in lower case, whose content is protected.
    """
    # Match start tags and end tags by name; an element that never ends protects nothing.
    open_tags: dict[str, list[Tag]] = {}
    end_tags: dict[int, Tag] = {}
    for tag in found_tags:
        if tag.is_empty:
            continue
        if not tag.is_end:
            open_tags.setdefault(tag.name, []).append(tag)
        elif open_tags.get(tag.name):
            # The innermost open element of this name ends.
            end_tags[open_tags[tag.name].pop().start] = tag
    protected: dict[int, Tag] = {}
    position = 0
    for tag in found_tags:
        if tag.start >= position and (tag.keeps_content or tag.name in names) and tag.start in end_tags:
            protected[tag.start] = end_tags[tag.start]
            position = end_tags[tag.start].end
    return protected
