"""HTML with its text translated: tags, comments and white space stay as they are, letter for letter.

One pass that fails on nothing: what looks like a tag but never ends is kept as it is, to the end of the text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

_OPENS = re.compile(r"<(?=[a-zA-Z/!?])")
_TAG = re.compile(r"</?([a-zA-Z][^\s/>]*)(?:[^>\"']|\"[^\"]*\"|'[^']*')*+>")
_RAW = frozenset({"script", "style", "textarea"})
"""Elements whose content is no markup."""
_KEPT = frozenset({"script", "style", "textarea", "code", "kbd", "samp", "var", "svg", "math"})
"""Elements whose text is not translated."""
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_NO = re.compile(r"\stranslate\s*=\s*[\"']?no\b", re.IGNORECASE)


class Markup:
    """HTML taken apart: `texts` are what there is to translate, unescaped."""

    def __init__(self, source: str) -> None:
        self._parts: list[str] = []
        self._places: list[int] = []
        """Which parts are texts to translate."""
        self._kept = ""
        """The open element whose text stays; empty for none."""
        self._depth = 0
        self._read(source)
        self.texts = [html.unescape(self._parts[place]) for place in self._places]

    def filled(self, translations: Sequence[str]) -> str:
        """The document with its texts replaced, escaped anew."""
        parts = list(self._parts)
        for place, translation in zip(self._places, translations, strict=True):
            parts[place] = html.escape(translation, quote=False)
        return "".join(parts)

    def _read(self, source: str) -> None:
        at = begin = 0
        while (opens := _OPENS.search(source, at)) is not None:
            at = opens.start()
            self._text(source[begin:at])
            end = self._end(source, at)
            if end < 0:
                self._parts.append(source[at:])
                return
            self._parts.append(source[at:end])
            begin = at = end
        self._text(source[begin:])

    def _end(self, source: str, at: int) -> int:
        """Where the mark that begins at `at` ends; -1 where it never does."""
        if source.startswith("<!--", at):
            last = source.find("-->", at + 4)
            return last + 3 if last >= 0 else -1
        if (tag := _TAG.match(source, at)) is None:
            return -1 if source[at + 1 : at + 3].lstrip("/")[:1].isalpha() else source.find(">", at) + 1 or -1
        name = tag[1].lower()
        self._element(name, tag[0])
        if name in _RAW and self._kept == name:
            close = re.compile(f"</{name}", re.IGNORECASE).search(source, tag.end())
            return close.start() if close else -1
        return tag.end()

    def _element(self, name: str, tag: str) -> None:
        """Keep account of the element whose text stays."""
        closes = tag.startswith("</")
        empty = name in _VOID or tag.endswith("/>")
        if self._kept:
            if name == self._kept and not empty:
                self._depth += -1 if closes else 1
            if self._depth == 0:
                self._kept = ""
        elif not closes and not empty and (name in _KEPT or _NO.search(tag)):
            self._kept, self._depth = name, 1

    def _text(self, text: str) -> None:
        if text and text.strip() and not self._kept:
            self._places.append(len(self._parts))
        if text:
            self._parts.append(text)
