"""Sentences on a plane as an SVG for the report: in the page's colours, each dot's tooltip its sentence."""

from __future__ import annotations

from html import escape
from itertools import product

import numpy as np
from numpy.typing import NDArray

from rnnsearch.evaluate.projection import Projection

COLOURS = 6
"""The style sheet's colours `--c0`, `--c1`, ...; more groups use them again with another mark."""
_WIDTH, _HEIGHT, _EDGE = 640.0, 400.0, 26.0
_NAMED = 12
"""Up to this many sentences, each stands beside its dot, as in the paper's figure."""
_SHORT = 42
_LETTER, _LINE = 6.6, 15
"""About how wide a letter and how high a line of a sentence beside its dot is."""
_MARKS = (
    '<circle r="6"/>',
    '<rect x="-5.5" y="-5.5" width="11" height="11"/>',
    '<path d="M0-7.5 7 5.5H-7z"/>',
    '<path d="M0-7.5 7.5 0 0 7.5-7.5 0z"/>',
    '<path d="M0 7.5 7-5.5H-7z"/>',
    '<path d="M-2.5-7h5v4.5H7v5H2.5V7h-5V2.5H-7v-5h4.5z"/>',
)
"""One a group: no group is told by its colour alone."""


def scatter(projection: Projection, language: str = "") -> str:
    """The figure with its key and, folded, the list of its sentences. Every text is escaped."""
    places = _places(projection.points)
    groups = projection.groups
    lang = f' lang="{escape(language)}"' if language else ""
    names = _names([s.sentence for s in projection.sentences], places) if len(places) <= _NAMED else [""] * len(places)
    dots = []
    for sentence, (x, y), name in zip(projection.sentences, places, names, strict=True):
        n = groups.index(sentence.group)
        text = sentence.sentence + (f" ({sentence.group})" if sentence.group else "")
        dots.append(
            f'<g class="point c{n % COLOURS}" data-group="{n}" transform="translate({x:.1f} {y:.1f})">'
            f"<title>{escape(text)}</title>{_mark(n)}{name}</g>"
        )
    first, second = (f"{100 * share:.0f} % of the variance" for share in projection.explained)
    axes = (
        f'<text class="axis" x="{_WIDTH / 2}" y="{_HEIGHT + 18}" text-anchor="middle">first component, {first}</text>'
        f'<text class="axis" transform="translate(-8 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"second component, {second}</text>"
    )
    box = f"-24 0 {_WIDTH + 24:.0f} {_HEIGHT + 26:.0f}"
    label = f"{len(places)} sentences on a plane, by their encoder states"
    frame = f'<rect class="frame" width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" rx="8"/>'
    return (
        f'<div class="plane"{lang}><svg viewBox="{box}" role="group" aria-label="{label}">'
        f"{frame}{axes}{''.join(dots)}</svg>{_key(groups)}</div>{_list(projection, groups, lang)}"
    )


def _places(points: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Points in the picture, both axes in one scale, so that distances are true."""
    low, high = points.min(axis=0), points.max(axis=0)
    room = np.array([_WIDTH, _HEIGHT]) - 2 * _EDGE
    span = np.maximum(high - low, 1e-9)
    scale = float((room / span).min())
    middle = (low + high) / 2
    placed = (points - middle) * scale * np.array([1.0, -1.0]) + np.array([_WIDTH, _HEIGHT]) / 2
    return [(float(x), float(y)) for x, y in placed]


def _mark(group: int) -> str:
    return _MARKS[(group + group // COLOURS) % len(_MARKS)]


def _names(sentences: list[str], places: list[tuple[float, float]]) -> list[str]:
    """Sentences beside their dots, where they cover neither each other nor another dot; else only in the tooltip."""
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in places]
    names = []
    for n, (sentence, (x, y)) in enumerate(zip(sentences, places, strict=True)):
        text = sentence if len(sentence) <= _SHORT else sentence[: _SHORT - 1] + "…"
        width = _LETTER * len(text)
        for side, dy in product((-1, 1) if x > _WIDTH / 2 else (1, -1), (0, -_LINE, _LINE, -2 * _LINE, 2 * _LINE)):
            left = x + 11 if side > 0 else x - 11 - width
            box = (left, y + dy - _LINE / 2, left + width, y + dy + _LINE / 2)
            others = (*taken[:n], *taken[n + 1 :])
            if left >= 0 and left + width <= _WIDTH and not any(_overlap(box, other) for other in others):
                taken.append(box)
                anchor = "start" if side > 0 else "end"
                names.append(f'<text x="{11 * side}" y="{dy + 4}" text-anchor="{anchor}">{escape(text)}</text>')
                break
        else:
            names.append("")
    return names


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes (left, top, right, bottom) have a point in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _key(groups: list[str]) -> str:
    if groups == [""]:
        return ""
    items = "".join(
        f'<li class="key c{n % COLOURS}" data-group="{n}"><svg viewBox="-9 -9 18 18" aria-hidden="true">'
        f'{_mark(n)}</svg><span dir="auto">{escape(group) or "no group"}</span></li>'
        for n, group in enumerate(groups)
    )
    return f'<ul class="keys">{items}</ul>'


def _list(projection: Projection, groups: list[str], lang: str) -> str:
    """The sentences as text, for those who do not see the dots."""
    parts = []
    for group in groups:
        items = "".join(f'<li dir="auto">{escape(s.sentence)}</li>' for s in projection.sentences if s.group == group)
        head = f"<h3>{escape(group)}</h3>" if group else ""
        parts.append(f"{head}<ul>{items}</ul>")
    return f"<details><summary>The sentences</summary><div{lang}>{''.join(parts)}</div></details>"
