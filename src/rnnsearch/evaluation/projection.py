"""Encoder states of chosen sentences on a plane: do sentences that mean the same lie together?

After figure 2 of Sutskever, Vinyals & Le (2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rnnsearch.errors import RnnsearchError
from rnnsearch.text.words import count_words

LEAST = 3
"""Sentences that a plane needs: two are always on a line."""
GROUPS, MEMBERS = 6, 6
"""Groups of similar sentences, and sentences of each, where the user names none."""
_CANDIDATES = 2000
_WORDS = (4, 20)
"""Fewest and most words of a sentence that is chosen by itself."""
_APART = 0.3
"""Two groups' first sentences are less alike than this (cosine)."""


@dataclass(frozen=True)
class Grouped:
    """A sentence to show and the group that gives it its colour; an empty name is a group too."""

    sentence: str
    group: str = ""


@dataclass(frozen=True)
class Projection:
    """Sentences as points."""

    sentences: tuple[Grouped, ...]
    points: NDArray[np.float64]
    """[N, 2]"""
    explained: tuple[float, float]
    """The share of the states' variance along each axis."""

    @property
    def groups(self) -> list[str]:
        """The groups' names in order of appearance."""
        return list(dict.fromkeys(s.group for s in self.sentences))


def project(sentences: Sequence[Grouped], states: NDArray[np.floating[Any]]) -> Projection:
    """The two directions in which the sentences' states [N, H] differ most.

    Errors: RnnsearchError for fewer than three sentences, another number of states, or states that are not finite.
    """
    if len(sentences) < LEAST:
        raise RnnsearchError(f"a map of encoder states must have at least {LEAST} sentences; got {len(sentences)}")
    if states.shape[0] != len(sentences) or not np.isfinite(states).all():
        raise RnnsearchError(
            f"states must be one finite vector a sentence ({len(sentences)}); got shape {list(states.shape)}"
        )
    points, explained = principal_components(states, 2)
    return Projection(tuple(sentences), points, (float(explained[0]), float(explained[1])))


def principal_components(
    states: NDArray[np.floating[Any]], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coordinates [N, count] along the directions of largest variance, largest first, and each one's share of it.

    With X the centred states, the eigenvectors u of X X^T (N x N, small where states are long) with eigenvalues v give
    the coordinates u sqrt(v): those of the singular value decomposition of X. A direction's sign, which is free, is
    such that its farthest point is positive. Directions that the states do not have are zero.
    """
    centred = states.astype(np.float64) - states.astype(np.float64).mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    values, vectors = np.clip(values[::-1], 0.0, None), vectors[:, ::-1]
    total = values.sum()
    points = np.zeros((len(states), count))
    explained = np.zeros(count)
    for n in range(min(count, len(values))):
        if values[n] > 1e-12 * max(total, np.finfo(np.float64).tiny):
            direction = vectors[:, n] * np.sqrt(values[n])
            points[:, n] = direction * np.sign(direction[np.abs(direction).argmax()])
            explained[n] = values[n] / total
    return points, explained


def similar_sentences(sentences: Sequence[str], groups: int = GROUPS, members: int = MEMBERS) -> list[Grouped]:
    """Groups of sentences that share many words, the sentences of each the most alike; named by what they share.

    Chosen among the first 2,000 different sentences of 4 to 20 words. Words are compared without case and weigh
    log(sentences / sentences with the word). Fewer and smaller groups come of fewer sentences.
    """
    texts = [s for s in dict.fromkeys(sentences) if _WORDS[0] <= len(s.split()) <= _WORDS[1]][:_CANDIDATES]
    if not texts:
        return []
    weights, names = _weighted_words(texts)
    similarity = weights @ weights.T
    np.fill_diagonal(similarity, 0.0)
    near = np.sort(similarity, axis=1)[:, -(members - 1) :].mean(axis=1)
    free = np.ones(len(texts), dtype=bool)
    chosen: list[Grouped] = []
    for _ in range(groups):
        if not (free & (near > 0)).any():
            break
        first = int(np.where(free, near, -1.0).argmax())
        order = np.argsort(np.where(free, -similarity[first], np.inf), kind="stable")
        rest = [int(n) for n in order if free[n] and n != first and similarity[first, n] > 0][: members - 1]
        group = [first, *rest]
        name = _shared(weights[group], names)
        chosen += [Grouped(texts[n], name) for n in group]
        free[group] = False
        free &= similarity[first] < _APART
    return chosen


def _weighted_words(texts: Sequence[str]) -> tuple[NDArray[np.float64], list[str]]:
    """Unit vectors [sentences, words] of the words' weights, and the words."""
    bags = [count_words([text.lower()]) for text in texts]
    names = sorted(set().union(*bags))
    column = {word: n for n, word in enumerate(names)}
    has = np.zeros((len(texts), len(names)))
    for row, bag in enumerate(bags):
        has[row, [column[word] for word in bag]] = 1.0
    weights = has * np.log(len(texts) / np.maximum(has.sum(axis=0), 1.0))
    return weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-9), names


def _shared(weights: NDArray[np.float64], names: list[str]) -> str:
    """Up to three words that most of the sentences share, the weightiest first."""
    common = (weights > 0).sum(axis=0) * 2 > len(weights)
    sums = np.where(common, weights.sum(axis=0), 0.0)
    order = np.argsort(-sums, kind="stable")[:3]
    words = [names[n] for n in order if sums[n] > sums.max() / 2]  # of little weight: "a", "the"
    return ", ".join(words or [names[int(weights.sum(axis=0).argmax())]])


# Sentences on a plane, laid out for the report: where each dot and each sentence beside its dot stands.

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
