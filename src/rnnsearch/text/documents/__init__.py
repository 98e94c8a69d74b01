"""Files with text to translate: plain text, TSV, TMX, XLIFF, PO, HTML and subtitles.

`read_document` finds the segments without a translation; `Document.fill` returns the file with their translations.
Everything else in the file stays byte for byte as it is, because translations are spliced into the original.

`serve/files.py` and `cli/translate_documents.py` use it. New format: subclass `Document`, add it to `FORMATS`. Files
come from strangers: nothing external is loaded, and time and memory are bounded (tests/stress/bombs.py). Tests:
tests/data/test_formats.py, tests/data/test_po.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from rnnsearch.errors import DataError, did_you_mean
from rnnsearch.text.documents.document import Document
from rnnsearch.text.documents.html import Html
from rnnsearch.text.documents.lines import PlainText, Tsv
from rnnsearch.text.documents.po import Po
from rnnsearch.text.documents.subtitles import Subtitles, is_subtitles
from rnnsearch.text.documents.tmx import Tmx
from rnnsearch.text.documents.xliff import Xliff

__all__ = ["FORMATS", "Document", "document_format", "read_document"]

FORMATS: dict[str, Callable[[str, bytes, str, str], Document]] = {
    ".txt": PlainText,
    ".tsv": Tsv,
    ".tmx": Tmx,
    ".po": Po,
    ".html": Html,
    ".srt": Subtitles,
    ".xliff": Xliff,
    ".xlf": Xliff,
    ".pot": Po,
    ".htm": Html,
    ".xhtml": Html,
    ".vtt": Subtitles,
}
"""Class by suffix of the file name, in lower case."""


def document_format(name: str, start: bytes) -> Callable[[str, bytes, str, str], Document] | None:
    """Return the class for a file, or None if the suffix of its name is unknown.

    Args:
        name: File name.
        start: The first bytes of the file; subtitles are recognised in `.txt` files, too.
    """
    suffix = PurePath(name).suffix.lower()
    if suffix == ".txt" and is_subtitles(start):
        return Subtitles
    return FORMATS.get(suffix)


def read_document(name: str, content: bytes, source: str, target: str) -> Document:
    """Return the document in a file, by the suffix of its name.

    Args:
        name: File name, also for error messages.
        content: The file's bytes.
        source: Language code to translate from.
        target: Language code to translate to.

    Raises:
        DataError: The suffix is unknown, or the content is not of its format.
    """
    document = document_format(name, content)
    if document is None:
        hint = did_you_mean(PurePath(name).suffix.lower(), list(FORMATS))
        raise DataError(f'the file name must end in {", ".join(FORMATS)}; got "{name}"{hint}')
    return document(name, content, source, target)
