"""Dictionaries of words and short phrases with p(target | source), counted in word alignments.

They are used to translate unknown words (Luong et al. 2015, "Addressing the Rare Word Problem", section
3.3; Jean et al. 2015, section 3.3). A translation is a phrase pair as in Och & Ney 2004 (equation 9): words
that are adjacent in both sentences and linked to one another, and to no other word. `rnnsearch dictionary`
builds them.

`cli/lexicons.py` writes the entries as TSV, which `search/unknown_words.py` reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from rnnsearch.text.alignments import Link, bare_word_spans
from rnnsearch.text.words import prune_counts

Span = tuple[int, int]


class DictionaryEntry(NamedTuple):
    """A source word or phrase with one of its translations."""

    source: str
    """Source word or phrase."""
    target: str
    """Translation of the source word or phrase."""
    probability: float
    """p(target | source)."""
    occurrences: int
    """Number of times that the phrase pair was seen."""


class Dictionary:
    """Counter of the phrase pairs in aligned sentence pairs; upper and lower case differ.

    Memory is bounded: among millions of distinct pairs the rarest are dropped.
    """

    def __init__(self, max_words: int) -> None:
        """Count phrases of at most `max_words` words."""
        self._max_words = max_words
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, source: str, target: str, links: Collection[Link]) -> None:
        """Count the phrase pairs of one sentence pair.

        Args:
            source: The source sentence.
            target: The target sentence.
            links: Word alignment: index of the source word and of the target word of each link, where words are
                numbered like the spans of `bare_word_spans`.
        """
        source_spans = bare_word_spans(source)
        target_spans = bare_word_spans(target)
        for (first_source, last_source), (first_target, last_target) in phrase_pairs(links, self._max_words):
            source_words = source_spans[first_source : last_source + 1]
            target_words = target_spans[first_target : last_target + 1]
            if not (_are_adjacent(source, source_words) and _are_adjacent(target, target_words)):
                continue
            source_phrase = source[source_words[0][0] : source_words[-1][1]]
            target_phrase = target[target_words[0][0] : target_words[-1][1]]
            if any(map(str.isalnum, source_phrase)) and any(map(str.isalnum, target_phrase)):
                self._counts[source_phrase, target_phrase] += 1
        prune_counts(self._counts)

    def entries(self, min_count: int = 1, min_probability: float = 0.0) -> Iterator[DictionaryEntry]:
        """Yield the entries sorted by source phrase, the most probable translation first.

        Args:
            min_count: Minimum count of the phrase pair.
            min_probability: Minimum p(target | source).
        """
        totals: Counter[str] = Counter()
        for (source, _), count in self._counts.items():
            totals[source] += count
        for (source, target), count in sorted(self._counts.items(), key=lambda item: (item[0][0], -item[1], item[0])):
            entry = DictionaryEntry(source, target, count / totals[source], count)
            if count >= min_count and entry.probability >= min_probability:
                yield entry


def phrase_pairs(links: Collection[Link], max_words: int) -> Iterator[tuple[Span, Span]]:
    """Yield the first and last word, in source and target, of each phrase pair of at most `max_words` words.

    The outer words of a phrase pair are linked, and no link leaves it.
    """
    source_ranges = _link_ranges(links)
    target_ranges = _link_ranges((target, source) for source, target in links)
    for first in sorted(source_ranges):
        low, high = source_ranges[first]
        for last in range(first, first + max_words):
            if last not in source_ranges:
                continue
            low = min(low, source_ranges[last][0])
            high = max(high, source_ranges[last][1])
            # Longer source phrases only widen the range, so none of them can fit.
            if high - low >= max_words:
                break
            # Words in the range without a link do not prevent a phrase pair.
            linked_back = [target_ranges[target] for target in range(low, high + 1) if target in target_ranges]
            if min(linked_back)[0] >= first and max(end for _, end in linked_back) <= last:
                yield (first, last), (low, high)


def _link_ranges(links: Iterable[Link]) -> dict[int, Span]:
    """Return the first and the last word that each word is linked to."""
    ranges: dict[int, Span] = {}
    for word, other in links:
        low, high = ranges.get(word, (other, other))
        ranges[word] = (min(low, other), max(high, other))
    return ranges


def _are_adjacent(text: str, spans: list[Span]) -> bool:
    """Return True if only white space separates the words."""
    return all(text[left[1] : right[0]].isspace() for left, right in pairwise(spans))
