"""A text whose tags are all inside of sentences, as translation tools and XML formats have them.

`serve/translation_service.py` uses it next to `HtmlDocument`, which has the same interface. Texts come from strangers:
tests/text/test_linear.py.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Sequence, Set

from rnnsearch.text.alignments import Link
from rnnsearch.text.markup.marks import MarkedText
from rnnsearch.text.markup.tags import tags

_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]{1,31}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});")
NO_NAMES = frozenset[str]()


class InlineDocument:
    """A text with inline tags, which are placed around the aligned words of its translation."""

    def __init__(
        self, source: str, loose: bool = False, ignored: Set[str] = NO_NAMES, splitting: Set[str] = NO_NAMES
    ) -> None:
        """Separate the text from its tags.

        Args:
            source: The text.
            loose: True if `<` and `&` may be themselves, so that only text with entities has others in its translation.
            ignored: Names of elements, in lower case, whose content is not translated.
            splitting: Names of elements, in lower case, that separate sentences.
        """
        self._is_escaped = not loose or _ENTITY.search(source) is not None
        self._parts: list[str | MarkedText] = []
        position = 0
        for tag in tags(source) if splitting else ():
            if tag.name in splitting:
                self._add_text(source[position : tag.start], ignored)
                self._parts.append(tag.markup)
                position = tag.end
        self._add_text(source[position:], ignored)
        marked = [part for part in self._parts if isinstance(part, MarkedText)]
        self.texts = [part.text for part in marked]
        """The texts to translate, without tags."""
        self.has_inline_tags = any(part.marks for part in marked)
        """True if there are tags inside texts, so that links between words are needed."""

    def filled(self, translations: Sequence[tuple[str, Collection[Link]]]) -> str:
        """Return the document with its texts replaced by translations.

        Args:
            translations: For each text, its translation and the links between their words.
        """
        remaining = iter(translations)
        parts = []
        for part in self._parts:
            if isinstance(part, str):
                parts.append(part)
            else:
                text = part.place(*next(remaining))
                parts.append(text if self._is_escaped else html.unescape(text))
        return "".join(parts)

    def _add_text(self, text: str, ignored: Set[str]) -> None:
        marked = MarkedText(text, untranslated=ignored)
        self._parts.append(marked if marked.text.strip() else text)
