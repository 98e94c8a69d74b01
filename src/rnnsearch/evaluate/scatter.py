"""Sentences on a plane, laid out for the report: where each dot and each sentence beside its dot stands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rnnsearch.evaluate.projection import Projection

_WIDTH, _HEIGHT, _EDGE = 640, 400, 26
"""The template's frame, and how far from it dots stay."""
_NAMED = 12
"""Up to this many sentences, each stands beside its dot, as in the paper's figure."""
_SHORT = 42
_LETTER, _LINE = 6.6, 15
"""About how wide a letter and how high a line of a sentence beside its dot is."""


class Caption(NamedTuple):
    """A sentence, cut, beside its dot: right (1) or left (-1) of it, and so far down."""

    text: str
    side: int
    down: int


class Dot(NamedTuple):
    """A sentence's place; `group` is the number of its group."""

    x: float
    y: float
    sentence: str
    group: int
    caption: Caption | None


def scatter(projection: Projection) -> list[Dot]:
    """The dots of a projection."""
    places, sentences = _places(projection.points), [s.sentence for s in projection.sentences]
    captions = _captions(sentences, places) if len(places) <= _NAMED else [None] * len(places)
    groups = [projection.groups.index(s.group) for s in projection.sentences]
    rows = zip(places, sentences, groups, captions, strict=True)
    return [Dot(x, y, sentence, group, text) for (x, y), sentence, group, text in rows]


def _places(points: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Points in the picture, both axes in one scale, so that distances are true."""
    low, high = points.min(axis=0), points.max(axis=0)
    whole = np.array([_WIDTH, _HEIGHT])
    scale = float(((whole - 2 * _EDGE) / np.maximum(high - low, 1e-9)).min())
    placed = (points - (low + high) / 2) * scale * np.array([1.0, -1.0]) + whole / 2
    return [(float(x), float(y)) for x, y in placed]


def _captions(sentences: Sequence[str], places: Sequence[tuple[float, float]]) -> list[Caption | None]:
    """Sentences beside their dots, where they cover neither each other nor another dot; else only in the tooltip."""
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in places]
    found: list[Caption | None] = []
    for n, (sentence, (x, y)) in enumerate(zip(sentences, places, strict=True)):
        text = sentence if len(sentence) <= _SHORT else sentence[: _SHORT - 1] + "…"
        width = _LETTER * len(text)
        for side, down in product((-1, 1) if x > _WIDTH / 2 else (1, -1), (0, -_LINE, _LINE, -2 * _LINE, 2 * _LINE)):
            left = x + 11 if side > 0 else x - 11 - width
            box = (left, y + down - _LINE / 2, left + width, y + down + _LINE / 2)
            others = (*taken[:n], *taken[n + 1 :])
            if left >= 0 and left + width <= _WIDTH and not any(_overlap(box, other) for other in others):
                taken.append(box)
                found.append(Caption(text, side, down))
                break
        else:
            found.append(None)
    return found


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes (left, top, right, bottom) have a point in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
