"""Encoder states of sentences, projected onto a plane: are sentences with the same meaning close to each other?

After Sutskever et al. 2014, figure 2. `similar_sentences` chooses groups of sentences if the user names none,
`project` computes their principal components, and `scatter` lays the points out for the report.

`report.py` calls these functions with the sentences of `--sentences` or of the test set, and `page.py` draws the
result. Results must be deterministic.

Axes: N sentences, H size of the encoder states.
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

MIN_SENTENCES = 3
"""Number of sentences from which on a plane says something; two are always on a line."""
NUM_GROUPS = 6
GROUP_SIZE = 6
MAX_CANDIDATES = 2000
MIN_WORDS = 4
MAX_WORDS = 20
"""Length limits of sentences that are chosen automatically."""
MAX_GROUP_SIMILARITY = 0.3
"""Upper limit of the cosine similarity between the first sentences of two groups."""


@dataclass(frozen=True)
class GroupedSentence:
    """A sentence and the name of its group, which determines its colour; the empty name is a group, too."""

    sentence: str
    """Raw sentence."""
    group: str = ""


@dataclass(frozen=True)
class Projection:
    """Sentences as points in the plane."""

    sentences: tuple[GroupedSentence, ...]
    """Sentence of each point."""
    points: NDArray[np.float64]
    """Coordinates [N, 2]."""
    variance_fractions: tuple[float, float]
    """Fraction of the states' variance along each axis."""

    @property
    def groups(self) -> list[str]:
        """Names of the groups in order of appearance."""
        return list(dict.fromkeys(s.group for s in self.sentences))


def project(sentences: Sequence[GroupedSentence], states: NDArray[np.floating[Any]]) -> Projection:
    """Project the states [N, H] of sentences onto their first two principal components.

    Raises:
        RnnsearchError: If there are fewer than three sentences, another number of states, or values that are not
            finite.
    """
    if len(sentences) < MIN_SENTENCES:
        raise RnnsearchError(
            f"a map of encoder states must have at least {MIN_SENTENCES} sentences; got {len(sentences)}"
        )
    if states.shape[0] != len(sentences) or not np.isfinite(states).all():
        raise RnnsearchError(
            f"states must be one finite vector per sentence ({len(sentences)}); got shape {list(states.shape)}"
        )
    points, fractions = principal_components(states, 2)
    return Projection(tuple(sentences), points, (float(fractions[0]), float(fractions[1])))


def principal_components(
    states: NDArray[np.floating[Any]], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coordinates [N, count] along the directions of largest variance, and their fractions of the variance.

    For centred states X, the eigenvectors u of X X^T (N x N, which is small if the states are long) with eigenvalues
    v give the coordinates u sqrt(v), like the singular value decomposition of X. The sign of a direction is
    arbitrary; it is chosen such that the farthest point is positive. Directions beyond the rank of X are zero.
    """
    centred = states.astype(np.float64) - states.astype(np.float64).mean(axis=0)
    eigenvalues, eigenvectors = np.linalg.eigh(centred @ centred.T)
    # From ascending to descending order; rounding can make zeros negative.
    eigenvalues = np.clip(eigenvalues[::-1], 0.0, None)
    eigenvectors = eigenvectors[:, ::-1]
    total = eigenvalues.sum()
    points = np.zeros((len(states), count))
    fractions = np.zeros(count)
    for n in range(min(count, len(eigenvalues))):
        if eigenvalues[n] > 1e-12 * max(total, np.finfo(np.float64).tiny):
            coordinates = eigenvectors[:, n] * np.sqrt(eigenvalues[n])
            points[:, n] = coordinates * np.sign(coordinates[np.abs(coordinates).argmax()])
            fractions[n] = eigenvalues[n] / total
    return points, fractions


def similar_sentences(
    sentences: Sequence[str], num_groups: int = NUM_GROUPS, group_size: int = GROUP_SIZE
) -> list[GroupedSentence]:
    """Return groups of the most similar sentences, each named after the words that its sentences share.

    The groups are chosen among the first 2,000 different sentences of 4 to 20 words. The similarity is the cosine of
    vectors of lower-cased words, weighted by inverse document frequency. Few sentences give fewer and smaller groups.
    """
    texts = [s for s in dict.fromkeys(sentences) if MIN_WORDS <= len(s.split()) <= MAX_WORDS][:MAX_CANDIDATES]
    if not texts:
        return []
    vectors, vocabulary = _tf_idf(texts)
    similarity = vectors @ vectors.T  # [texts, texts]
    np.fill_diagonal(similarity, 0.0)
    # How similar each sentence is to its nearest ones: the best starts of groups.
    density = np.sort(similarity, axis=1)[:, -(group_size - 1) :].mean(axis=1)
    available = np.ones(len(texts), dtype=bool)
    chosen: list[GroupedSentence] = []
    for _ in range(num_groups):
        if not (available & (density > 0)).any():
            break
        first = int(np.where(available, density, -1.0).argmax())
        group = [first]
        for n in np.argsort(np.where(available, -similarity[first], np.inf), kind="stable").tolist():
            if len(group) < group_size and available[n] and n != first and similarity[first, n] > 0:
                group.append(n)
        name = _shared_words(vectors[group], vocabulary)
        chosen += [GroupedSentence(texts[n], name) for n in group]
        available[group] = False
        available &= similarity[first] < MAX_GROUP_SIMILARITY
    return chosen


def _tf_idf(texts: Sequence[str]) -> tuple[NDArray[np.float64], list[str]]:
    """Return unit vectors [texts, words] with the weight log(texts / texts with the word), and the words."""
    bags = [count_words([text.lower()]) for text in texts]
    vocabulary = sorted(set().union(*bags))
    column = {word: n for n, word in enumerate(vocabulary)}
    contains = np.zeros((len(texts), len(vocabulary)))
    for row, bag in enumerate(bags):
        contains[row, [column[word] for word in bag]] = 1.0
    weights = contains * np.log(len(texts) / np.maximum(contains.sum(axis=0), 1.0))
    return weights / np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-9), vocabulary


def _shared_words(vectors: NDArray[np.float64], vocabulary: list[str]) -> str:
    """Return up to three words that most of the sentences share, highest weight first."""
    is_common = (vectors > 0).sum(axis=0) * 2 > len(vectors)
    total = np.where(is_common, vectors.sum(axis=0), 0.0)
    order = np.argsort(-total, kind="stable")[:3]
    words = [vocabulary[n] for n in order if total[n] > total.max() / 2]  # without words of low weight ("a", "the")
    return ", ".join(words or [vocabulary[int(vectors.sum(axis=0).argmax())]])


# Layout of the scatter plot in the report, in the units of the template's SVG.

_WIDTH = 640
_HEIGHT = 400
_MARGIN = 26
"""Distance of the dots from the frame."""
_MAX_CAPTIONED_DOTS = 12
"""Number of sentences up to which captions are printed next to the dots, as in the paper's figure."""
_MAX_CAPTION_LENGTH = 42
_CHARACTER_WIDTH = 6.6
_LINE_HEIGHT = 15
_CAPTION_DISTANCE = 11
_DOT_RADIUS = 8


class Caption(NamedTuple):
    """A shortened sentence next to its dot."""

    text: str
    side: int
    """1 if it is to the right of the dot, -1 to the left."""
    down: int
    """Offset downwards."""


class PlotPoint(NamedTuple):
    """A sentence in the plot."""

    x: float
    """Horizontal position of the dot."""
    y: float
    """Vertical position of the dot."""
    sentence: str
    """Complete sentence."""
    group: int
    """Index of the group."""
    caption: Caption | None
    """Caption next to the dot, or None without captions."""


def scatter(projection: Projection) -> list[PlotPoint]:
    """Return the dots of a projection."""
    positions = _scale(projection.points)
    sentences = [s.sentence for s in projection.sentences]
    captions: Sequence[Caption | None] = [None] * len(sentences)
    if len(sentences) <= _MAX_CAPTIONED_DOTS:
        captions = _place_captions(sentences, positions)
    groups = projection.groups
    dots = []
    for (x, y), grouped, caption in zip(positions, projection.sentences, captions, strict=True):
        dots.append(PlotPoint(x, y, grouped.sentence, groups.index(grouped.group), caption))
    return dots


def _scale(points: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Scale points to the frame; both axes have the same scale, so that distances are comparable."""
    low = points.min(axis=0)
    high = points.max(axis=0)
    frame = np.array([_WIDTH, _HEIGHT])
    scale = float(((frame - 2 * _MARGIN) / np.maximum(high - low, 1e-9)).min())
    scaled = (points - (low + high) / 2) * scale * np.array([1.0, -1.0]) + frame / 2  # y points downwards
    return [(float(x), float(y)) for x, y in scaled]


def _place_captions(sentences: Sequence[str], positions: Sequence[tuple[float, float]]) -> list[Caption | None]:
    """Return a caption per dot that overlaps neither a dot nor another caption, or None if there is no space."""
    r = _DOT_RADIUS
    boxes = [(x - r, y - r, x + r, y + r) for x, y in positions]
    captions: list[Caption | None] = []
    for n, (sentence, (x, y)) in enumerate(zip(sentences, positions, strict=True)):
        text = sentence if len(sentence) <= _MAX_CAPTION_LENGTH else sentence[: _MAX_CAPTION_LENGTH - 1] + "…"
        width = _CHARACTER_WIDTH * len(text)
        sides = (-1, 1) if x > _WIDTH / 2 else (1, -1)
        offsets = (0, -_LINE_HEIGHT, _LINE_HEIGHT, -2 * _LINE_HEIGHT, 2 * _LINE_HEIGHT)
        other_boxes = (*boxes[:n], *boxes[n + 1 :])
        for side, down in product(sides, offsets):
            left = x + _CAPTION_DISTANCE if side > 0 else x - _CAPTION_DISTANCE - width
            box = (left, y + down - _LINE_HEIGHT / 2, left + width, y + down + _LINE_HEIGHT / 2)
            is_inside = left >= 0 and left + width <= _WIDTH
            if is_inside and not any(_overlap(box, other) for other in other_boxes):
                boxes.append(box)
                captions.append(Caption(text, side, down))
                break
        else:
            captions.append(None)
    return captions


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Return True if two boxes (left, top, right, bottom) have a point in common."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
