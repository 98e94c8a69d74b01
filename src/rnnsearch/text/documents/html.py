"""HTML files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rnnsearch.text.documents.document import Document, FileText
from rnnsearch.text.documents.xml import declared_encoding
from rnnsearch.text.markup.html_document import HtmlDocument

_META_BYTES = 2048
_META_CHARSET = re.compile(rb"<meta\s[^<>]*?charset\s*=\s*[\"']?([\w-]+)", re.IGNORECASE)


class Html(Document):
    """An HTML file: each text between tags that are not inline is a segment."""

    tags = True

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        declaration = _META_CHARSET.search(content[:_META_BYTES])
        self._file = FileText.decode(name, content, declaration[1] if declaration else declared_encoding(content))
        self._html = HtmlDocument(self._file.text)
        self.marked_segments = self._html.marked_texts

    def fill_marked(self, translations: Sequence[str]) -> bytes:
        """Return the file with the translations; characters that its encoding does not have become references."""
        text = self._html.joined(translations)
        return self._file.mark + text.encode(self._file.encoding, "xmlcharrefreplace")
