r"""Subtitles in SRT and WebVTT: the text of each cue is a segment.

Numbers, times, notes, styles, positions such as `{\an8}` and the dashes of speakers stay as they are. A translation
has as many lines as its source.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rnnsearch.text.documents.document import Document, FileText, Replacement, one_line

_TIME = r"(?:\d{1,3}:)?\d{1,2}:\d{2}[,.]\d{1,3}"
_TIMES = re.compile(rf"[ \t]*{_TIME}[ \t]+-->[ \t]+{_TIME}(?:[ \t][^\r\n]*)?")
_START = re.compile(rf"(?:\ufeff)?\s*+\d+[ \t]*\r?\n{_TIMES.pattern}\s*\r?\n")
_START_BYTES = 1000
_PREFIX = re.compile(r"\s*(?:\{\\[^{}\r\n]*\}\s*)*(?:[-\u2010-\u2015]\s*)?")
"""Positions and styles, and the dash of a speaker."""
_SPEAKER_DASH = re.compile(r"[-\u2010-\u2015]")
_MARKUP = re.compile(r"</[a-z]|<(?:[ibu]|font|c|v|lang|ruby)\b[^<>]*>|&(?:amp|lt|gt|nbsp|lrm|rlm);", re.IGNORECASE)
_SPACE_OR_TAG = re.compile(r"<[^<>]*>|( )")


class _Cue(NamedTuple):
    """Lines [start, end) of the text of one speaker in a cue."""

    start: int
    end: int
    num_lines: int
    is_markup: bool


class Subtitles(Document):
    """A file of subtitles. Lines of a cue are joined, except those of different speakers, which begin with a dash."""

    tags = True

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        self._file = FileText.decode(name, content)
        self._cues: list[_Cue] = []
        self.marked_segments = []
        lines: list[tuple[int, str]] | None = None  # of the current cue, with their offsets; None outside cues
        start = 0
        for line in self._file.text.split("\n"):
            text = line.removesuffix("\r")
            if _TIMES.fullmatch(text):
                lines = []
            elif lines is not None and text.strip():
                lines.append((start, text))
            elif lines is not None:
                self._add_cue(lines)
                lines = None
            start += len(line) + 1
        self._add_cue(lines or [])

    def fill_marked(self, translations: Sequence[str]) -> bytes:
        replacements = []
        line_end = self._file.line_end
        for cue, translation in zip(self._cues, translations, strict=True):
            # An empty line would end the cue.
            text = one_line(translation).strip()
            if not text:
                continue
            if not cue.is_markup:
                text = html.unescape(text)
            text = line_end.join(_balanced_lines(text, cue.num_lines))
            replacements.append(Replacement(cue.start, cue.end, text))
        return self._file.spliced(replacements)

    def _add_cue(self, lines: list[tuple[int, str]]) -> None:
        """Add the segments of a cue: one, or one for each line with a dash."""
        bounds = [index for index, (_, text) in enumerate(lines) if index == 0 or _SPEAKER_DASH.match(text.lstrip())]
        for first, end in pairwise([*bounds, len(lines)]):
            offset, text = lines[first]
            skipped = _PREFIX.match(text)
            assert skipped is not None  # it matches the empty string
            texts = [text[skipped.end() :], *(text for _, text in lines[first + 1 : end])]
            segment = " ".join(texts).strip()
            if not segment:
                continue
            is_markup = _MARKUP.search(segment) is not None
            last_offset, last_text = lines[end - 1]
            self._cues.append(
                _Cue(offset + skipped.end(), last_offset + len(last_text.rstrip()), end - first, is_markup)
            )
            self.marked_segments.append(segment if is_markup else html.escape(segment, quote=False))


def is_subtitles(start: bytes) -> bool:
    """Return True if a file that starts with these bytes is SRT."""
    return _START.match(start[:_START_BYTES].decode("utf-8", "replace")) is not None


def _balanced_lines(text: str, num_lines: int) -> list[str]:
    """Return a text as at most a number of lines of similar length, divided at spaces outside tags."""
    spaces = [match.start() for match in _SPACE_OR_TAG.finditer(text) if match[1]]
    lines = []
    start = 0
    first = 0  # index of the first space after `start`
    for index in range(1, min(num_lines, len(spaces) + 1)):
        middle = start + (len(text) - start) / (num_lines - index + 1)
        after = bisect_left(spaces, middle, first)
        nearest = [position for position in (after - 1, after) if first <= position < len(spaces)]
        if not nearest:
            break
        best = min(nearest, key=lambda position: abs(spaces[position] - middle))
        lines.append(text[start : spaces[best]])
        start = spaces[best] + 1
        first = best + 1
    return [*lines, text[start:]]
