"""HTML with its text translated: what stands between sentences stays as it is, letter for letter, and the tags inside
of sentences come to stand where word alignment says.

Linear in the text, and fails on nothing: what looks like a tag but never ends is kept as it is, to the end of the text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rnnsearch.text.alignments import Link
from rnnsearch.text.marks import MarkedText
from rnnsearch.text.tags import INLINE, kept_ends, tags


class Markup:
    """HTML taken apart: `texts` are what there is to translate, without their tags."""

    def __init__(self, source: str) -> None:
        self._parts: list[str | MarkedText] = []
        found = list(tags(source))
        ends, begin, kept = kept_ends(found), 0, 0
        for tag in found:
            if tag.start < kept or tag.name in INLINE:
                continue
            self._add(source[begin : tag.start])
            # Of an element whose text stays and that never ends, all stays.
            kept = tag.end if not tag.keeps else ends[tag.start].end if tag.start in ends else len(source)
            self._parts.append(source[tag.start : kept])
            begin = kept
        self._add(source[begin:])
        self._marked = [part for part in self._parts if isinstance(part, MarkedText)]
        self.texts = [part.text for part in self._marked]
        self.marked = any(part.marks for part in self._marked)
        """Whether there are tags inside of them, so that links are asked for."""

    def filled(self, translations: Sequence[tuple[str, Collection[Link]]]) -> str:
        """The document with its texts replaced, escaped anew; beside each the links between the words of both."""
        placed = iter([marked.placed(*found) for marked, found in zip(self._marked, translations, strict=True)])
        return "".join(part if isinstance(part, str) else next(placed) for part in self._parts)

    def _add(self, text: str) -> None:
        marked = MarkedText(text)
        self._parts.append(marked if marked.text.strip() else text)
