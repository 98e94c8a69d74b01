"""HTML as texts to translate and everything between them.

`serve/libretranslate.py` uses it for `format=html`. HTML comes from strangers: tests/text/test_linear.py. Tests:
tests/serve/test_html_documents.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rnnsearch.text.alignments import Link
from rnnsearch.text.markup.marks import MarkedText
from rnnsearch.text.markup.tags import INLINE, protected_element_ends, tags


class HtmlDocument:
    """An HTML document as texts to translate and everything between them, which is preserved exactly.

    Tags inside a text are placed around the aligned words of its translation. Parsing takes time linear in the length
    and never fails: what looks like a tag but does not end is preserved up to the end of the document.
    """

    def __init__(self, source: str) -> None:
        self._parts: list[str | MarkedText] = []
        all_tags = list(tags(source))
        end_tag_by_start = protected_element_ends(all_tags)
        text_start = 0  # of the text that is being collected
        kept_end = 0  # end of the last element whose content is preserved
        for tag in all_tags:
            # Inline tags stay in the text and are placed by `MarkedText`.
            if tag.start < kept_end or tag.name in INLINE:
                continue
            self._add_text(source[text_start : tag.start])
            if not tag.keeps_content:
                kept_end = tag.end
            elif tag.start in end_tag_by_start:
                kept_end = end_tag_by_start[tag.start].end
            else:  # an element that does not end is preserved up to the end of the document
                kept_end = len(source)
            self._parts.append(source[tag.start : kept_end])
            text_start = kept_end
        self._add_text(source[text_start:])
        marked = [part for part in self._parts if isinstance(part, MarkedText)]
        self.texts = [part.text for part in marked]
        """The texts to translate, without tags."""
        self.marked_texts = [part.source for part in marked]
        """The texts to translate, with inline tags."""
        self.has_inline_tags = any(part.marks for part in marked)
        """True if there are tags inside texts, so that links between words are needed."""

    def filled(self, translations: Sequence[tuple[str, Collection[Link]]]) -> str:
        """Return the document with its texts replaced by translations.

        Args:
            translations: For each text, its translation and the links between their words.
        """
        marked = [part for part in self._parts if isinstance(part, MarkedText)]
        return self.joined([part.place(*translation) for part, translation in zip(marked, translations, strict=True)])

    def joined(self, translations: Sequence[str]) -> str:
        """Return the document with its texts replaced by translations with tags; an empty one leaves its text.

        Args:
            translations: For each of `marked_texts`, its translation with inline tags and escaped characters.
        """
        remaining = iter(translations)
        parts = []
        for part in self._parts:
            parts.append(part if isinstance(part, str) else next(remaining) or part.source)
        return "".join(parts)

    def _add_text(self, text: str) -> None:
        marked = MarkedText(text)
        self._parts.append(marked if marked.text.strip() else text)
