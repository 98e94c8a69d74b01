"""Representations of translations for consoles and notebooks.

`Translation.__repr__`, `Translation._repr_html_` and `Translation.plot` use this module, which therefore cannot import
`Translation`. The HTML has no script and no external resource, so that notebooks show it without trust.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rnnsearch.text.alignments import Link

MAX_TEXT_CHARACTERS = 60
"""Longer texts are shortened in a repr, so that it fits a line."""

_CELL = 'style="text-align:left;padding:2px 6px;border:none"'
_SMALL_CELL = 'style="text-align:left;padding:0 6px 4px;border:none;font-size:85%;opacity:.65"'


def translation_repr(translation: Any) -> str:
    """Return one line with the text, the score and the confidence of a calibrated model."""
    text = translation.text
    if len(text) > MAX_TEXT_CHARACTERS:
        text = f"{text[: MAX_TEXT_CHARACTERS - 1]}…"
    confidence = "" if translation.confidence is None else f", confidence={translation.confidence:.2f}"
    return f"Translation({text!r}, score={translation.score:.2f}{confidence})"


def translation_html(translation: Any) -> str:
    """Return a table of the translation's words, with the source words aligned to each below it."""
    linked = _linked_words(translation.source_words, len(translation.words), translation.alignment)
    words = "".join(f"<td {_CELL}>{escape(word)}</td>" for word in translation.words)
    sources = "".join(f"<td {_SMALL_CELL}>{escape(word)}</td>" for word in linked)
    facts = f"score {translation.score:.2f}"
    if translation.confidence is not None:
        facts += f", confidence {translation.confidence:.2f}"
    if not translation.finished:
        facts += ", cut off"
    return (
        f"<div><div>{escape(translation.source)}</div>"
        f'<table style="border:none"><tr>{words}</tr><tr>{sources}</tr></table>'
        f'<div style="font-size:85%;opacity:.65">{facts}</div></div>'
    )


def _linked_words(source_words: Sequence[str], num_targets: int, links: Sequence[Link]) -> list[str]:
    """Return, for each target word, the source words that are linked to it."""
    linked: list[list[str]] = [[] for _ in range(num_targets)]
    for source, target in sorted(links):
        linked[target].append(source_words[source])
    return [" ".join(words) for words in linked]


@dataclass(frozen=True)
class Plot:
    """A heat map that a notebook displays."""

    svg: str
    """The image."""

    def __repr__(self) -> str:
        """Return a hint for consoles, which cannot show the image."""
        return "Plot(an SVG image; plot(path) writes a file)"

    def _repr_svg_(self) -> str:
        return self.svg
