"""Plain text and TSV: one segment per line or row."""

from __future__ import annotations

from collections.abc import Sequence

from rnnsearch.text.documents.document import Document, FileText, Replacement, one_line

_LINE_ENDS = "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters at which Python splits lines."""


class PlainText(Document):
    """A text file: each line that is not blank is a segment."""

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        self._file = FileText.decode(name, content)
        self._starts: list[int] = []
        self.marked_segments = []
        start = 0
        for line in self._file.text.splitlines(keepends=True):
            if line.strip():
                self._starts.append(start)
                self.marked_segments.append(line.rstrip(_LINE_ENDS))
            start += len(line)

    def fill_marked(self, translations: Sequence[str]) -> bytes:
        """Return the file with the translations; an empty one gives an empty line."""
        replacements = []
        for start, segment, translation in zip(self._starts, self.marked_segments, translations, strict=True):
            replacements.append(Replacement(start, start + len(segment), one_line(translation)))
        return self._file.spliced(replacements)


class Tsv(Document):
    """A TSV file: the first column is a segment if the second is empty or missing, and receives the translation."""

    is_bilingual = True

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        self._file = FileText.decode(name, content)
        self._cells: list[tuple[int, int, str]] = []  # start and end of the cell to fill, and the tab before it
        self.marked_segments = []
        start = 0
        # Not `splitlines`: a cell may contain other line separators.
        for line in self._file.text.split("\n"):
            first, *others = line.removesuffix("\r").split("\t", 2)
            if first.strip() and not "".join(others[:1]).strip():
                self.marked_segments.append(first)
                end = start + len(first)
                if others:
                    self._cells.append((end + 1, end + 1 + len(others[0]), ""))
                else:
                    self._cells.append((end, end, "\t"))
            start += len(line) + 1

    def fill_marked(self, translations: Sequence[str]) -> bytes:
        """Return the file with the translations; tabs and line ends in a translation become spaces."""
        replacements = []
        for (start, end, tab), translation in zip(self._cells, translations, strict=True):
            if translation:
                replacements.append(Replacement(start, end, tab + one_line(translation).replace("\t", " ")))
        return self._file.spliced(replacements)
