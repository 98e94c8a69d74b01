"""Dictionaries: p(e | f) of words and short phrases, counted in word alignments.

As unknown words are looked up in Luong et al. 2015, "Addressing the Rare Word Problem" (section 3.3), and Jean et al.
2015 (section 3.3). What counts as a translation is what Och & Ney 2004 (equation 9) take for a phrase pair: words that
stand together on both sides and are linked with one another, and with no other word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from rnnsearch.text.alignments import Link, spoken_spans
from rnnsearch.text.words import forget_rare

Span = tuple[int, int]


class Entry(NamedTuple):
    """A source word or phrase, one translation of it, p(e | f), and how often they stood for one another."""

    source: str
    target: str
    probability: float
    seen: int


class Dictionary:
    """Counts the phrase pairs of sentence pairs, of at most `words` words a side, their case kept. Memory is bounded:
    of millions of different ones the rarest are forgotten."""

    def __init__(self, words: int) -> None:
        self._words = words
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, source: str, target: str, links: Collection[Link]) -> None:
        """Count those of one sentence pair, with links of its words."""
        f, e = spoken_spans(source), spoken_spans(target)
        for (j, l), (i, k) in phrase_pairs(links, self._words):
            if _together(source, f[j : l + 1]) and _together(target, e[i : k + 1]):
                pair = source[f[j][0] : f[l][1]], target[e[i][0] : e[k][1]]
                if any(map(str.isalnum, pair[0])) and any(map(str.isalnum, pair[1])):
                    self._counts[pair] += 1
        forget_rare(self._counts)

    def entries(self, min_count: int = 1, min_probability: float = 0.0) -> Iterator[Entry]:
        """All entries by their source; of one source the most probable first. `min_count` is of the pair."""
        totals: Counter[str] = Counter()
        for (source, _), count in self._counts.items():
            totals[source] += count
        for (source, target), count in sorted(self._counts.items(), key=lambda item: (item[0][0], -item[1], item[0])):
            entry = Entry(source, target, count / totals[source], count)
            if count >= min_count and entry.probability >= min_probability:
                yield entry


def phrase_pairs(links: Collection[Link], most: int) -> Iterator[tuple[Span, Span]]:
    """First and last word, source and target, of each phrase pair of at most so many words a side: its outer words are
    linked, and no link leaves it."""
    of_source, of_target = _reach(links), _reach((t, s) for s, t in links)
    for begin in sorted(of_source):
        low, high = of_source[begin]
        for end in range(begin, begin + most):
            if end not in of_source:
                continue
            low, high = min(low, of_source[end][0]), max(high, of_source[end][1])
            if high - low >= most:
                break
            back = [of_target[t] for t in range(low, high + 1) if t in of_target]
            if min(back)[0] >= begin and max(last for _, last in back) <= end:
                yield (begin, end), (low, high)


def _reach(links: Iterable[Link]) -> dict[int, Span]:
    """The first and the last word that each is linked to."""
    reach: dict[int, Span] = {}
    for one, other in links:
        low, high = reach.get(one, (other, other))
        reach[one] = min(low, other), max(high, other)
    return reach


def _together(text: str, spans: list[Span]) -> bool:
    """Whether nothing but a space stands between the words."""
    return all(text[left[1] : right[0]].isspace() for left, right in pairwise(spans))
