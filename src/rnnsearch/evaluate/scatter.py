"""Sentences on a plane, laid out for the report: where each dot and each sentence beside its dot stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rnnsearch.evaluate.projection import Projection

COLOURS = 6
"""The style sheet's colours `--c0`, `--c1`, ...; more groups use them again with another mark."""
_MARKS = 6
_WIDTH, _HEIGHT, _EDGE = 640, 400, 26
_NAMED = 12
"""Up to this many sentences, each stands beside its dot, as in the paper's figure."""
_SHORT = 42
_LETTER, _LINE = 6.6, 15
"""About how wide a letter and how high a line of a sentence beside its dot is."""


class Group(NamedTuple):
    """A group of sentences: its colour and its mark."""

    number: int
    name: str

    @property
    def colour(self) -> int:
        """Which of the style sheet's colours."""
        return self.number % COLOURS

    @property
    def mark(self) -> int:
        """Which of the template's marks."""
        return (self.number + self.number // COLOURS) % _MARKS


class Beside(NamedTuple):
    """A sentence, cut, beside its dot: right (1) or left (-1) of it, and so far down."""

    text: str
    side: int
    down: int


class Dot(NamedTuple):
    """A sentence's place."""

    x: float
    y: float
    sentence: str
    group: Group
    beside: Beside | None


@dataclass(frozen=True)
class Plane:
    """The whole picture."""

    dots: list[Dot]
    groups: list[Group]
    explained: tuple[float, float]
    """The share of the variance along each axis."""
    width: int = _WIDTH
    height: int = _HEIGHT

    @property
    def grouped(self) -> bool:
        """Whether any group has a name, so that the colours need a key."""
        return any(group.name for group in self.groups)


def plane(projection: Projection) -> Plane:
    """The picture of a projection."""
    places = _places(projection.points)
    groups = [Group(n, name) for n, name in enumerate(projection.groups)]
    of = {group.name: group for group in groups}
    sentences = projection.sentences
    beside = _beside([s.sentence for s in sentences], places) if len(places) <= _NAMED else [None] * len(places)
    dots = [
        Dot(x, y, one.sentence, of[one.group], text)
        for one, (x, y), text in zip(sentences, places, beside, strict=True)
    ]
    return Plane(dots, groups, projection.explained)


def _places(points: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Points in the picture, both axes in one scale, so that distances are true."""
    low, high = points.min(axis=0), points.max(axis=0)
    whole = np.array([_WIDTH, _HEIGHT])
    scale = float(((whole - 2 * _EDGE) / np.maximum(high - low, 1e-9)).min())
    placed = (points - (low + high) / 2) * scale * np.array([1.0, -1.0]) + whole / 2
    return [(float(x), float(y)) for x, y in placed]


def _beside(sentences: Sequence[str], places: Sequence[tuple[float, float]]) -> list[Beside | None]:
    """Sentences beside their dots, where they cover neither each other nor another dot; else only in the tooltip."""
    taken = [(x - 8, y - 8, x + 8, y + 8) for x, y in places]
    found: list[Beside | None] = []
    for n, (sentence, (x, y)) in enumerate(zip(sentences, places, strict=True)):
        text = sentence if len(sentence) <= _SHORT else sentence[: _SHORT - 1] + "…"
        width = _LETTER * len(text)
        for side, down in product((-1, 1) if x > _WIDTH / 2 else (1, -1), (0, -_LINE, _LINE, -2 * _LINE, 2 * _LINE)):
            left = x + 11 if side > 0 else x - 11 - width
            box = (left, y + down - _LINE / 2, left + width, y + down + _LINE / 2)
            others = (*taken[:n], *taken[n + 1 :])
            if left >= 0 and left + width <= _WIDTH and not any(_overlap(box, other) for other in others):
                taken.append(box)
                found.append(Beside(text, side, down))
                break
        else:
            found.append(None)
    return found


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes (left, top, right, bottom) have a point in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
