"""Placement of a text's marks in its translation, from the links between the words of both.

`marks.MarkedText` takes the marks out of the source and calls `MarkPlacement.render`.

Results never lose or repeat a mark, whatever the links (between existing words) are (tests/text/test_marks.py). Place 0
is the whole text, place n + 1 that of mark n. Offsets are characters; words and links are counted from 0.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

from rnnsearch.text.alignments import Link, bare_word_spans, word_spans

Span = tuple[int, int]


@dataclass
class Mark:
    """An element or a point at characters [start, end) of a plain text."""

    start: int
    """Offset of the first character in the plain text."""
    end: int
    """Offset after the last character; equal to `start` for a point."""
    opens: str = ""
    """Markup before the characters."""
    closes: str = ""
    """Markup after the characters; empty for a point."""
    content: str | None = None
    """Fixed content that replaces the translation of the characters, if any."""
    spaced: bool = False
    """True for a point between two spaces, one of which was removed."""
    ends_word: bool = False
    """True for a point directly after a word and not directly before another one."""
    parent: int = -1
    """Index of the enclosing element; -1 for the text."""


@dataclass
class _Place:
    """Position of a mark in a translation: characters [start, end) and words [first, last)."""

    start: int
    end: int
    first: int = 0
    last: int = 0
    source_words: Span = (0, 0)
    """Source words inside the mark."""
    taken: list[Span] = field(default_factory=list)
    """Sorted word ranges of the elements inside it."""


class MarkPlacement:
    """Positions of a text's marks in one translation."""

    def __init__(self, marks: Sequence[Mark], source: str, target: str, links: Collection[Link]) -> None:
        """Place all marks.

        Args:
            marks: Marks of the source, outer elements before inner ones.
            source: The plain source text.
            target: Its translation.
            links: Links between the words of both.
        """
        self._marks = marks
        self._source = source
        self._target = target
        # Character spans of words, with and without the punctuation around them.
        self._source_words = word_spans(source)
        self._bare_source_words = bare_word_spans(source)
        self._target_words = word_spans(target)
        self._bare_target_words = bare_word_spans(target)
        self._links: list[list[int]] = [[] for _ in self._bare_source_words]  # target words of each source word
        for source_word, target_word in sorted(links):
            # Sorted by target word, which `_point_position` relies on.
            self._links[source_word].append(target_word)
        self._linked_source_words = [word for word, targets in enumerate(self._links) if targets]
        is_linked = [0] * (len(self._bare_target_words) + 1)
        for _, target_word in links:
            is_linked[target_word + 1] = 1
        # Prefix sums: the number of linked words in a range is a difference.
        self._num_linked_before = list(accumulate(is_linked))
        """Number of linked target words before each target word."""
        self._search_starts: dict[str, int] = {}  # where to continue to search for each fixed text
        whole_text = _Place(0, len(target), 0, len(self._bare_target_words), (0, len(self._bare_source_words)))
        self._places = [whole_text]
        """Places of the whole text and of each mark."""
        for mark in self._marks:
            self._places.append(self._place(mark, self._places[mark.parent + 1]))

    def render(self, escape: Callable[[str], str]) -> str:
        """Return the translation with all marks, its text escaped."""
        children: list[list[int]] = [[] for _ in self._places]
        for number, mark in enumerate(self._marks, 1):
            children[mark.parent + 1].append(number)
        output: list[str] = []
        position = 0
        # A stack of open elements with their remaining children, instead of recursion.
        open_elements = [(0, iter(self._in_order(self._places[0], children[0])))]
        while open_elements:
            number, remaining = open_elements[-1]
            child = next(remaining, None)
            if child is None:
                end = self._places[number].end
                output += escape(self._target[position:end]), self._marks[number - 1].closes if number else ""
                position = end
                open_elements.pop()
                continue
            mark = self._marks[child - 1]
            place = self._places[child]
            output.append(escape(self._target[position : place.start]))
            position = place.start
            if mark.content is not None:
                element = f"{mark.opens}{mark.content}{mark.closes}"
                output.append(self._separate(element, place.start) if place.start == place.end else element)
                position = place.end
            elif not mark.closes:
                output.append(self._separate(mark.opens, place.start) if mark.spaced else mark.opens)
            else:
                output.append(mark.opens)
                open_elements.append((child, iter(self._in_order(place, children[child]))))
        return "".join(output)

    def _place(self, mark: Mark, parent: _Place) -> _Place:
        """Return the place of a mark inside its parent's, and add its words to those that the parent has taken."""
        source_words = (
            bisect_right(self._bare_source_words, mark.start, key=lambda span: span[1]),
            bisect_left(self._bare_source_words, mark.end, key=lambda span: span[0]),
        )
        place = None
        if source_words[0] < source_words[1] and mark.start < mark.end:
            if mark.content is not None:
                place = self._find_unchanged(mark, parent)
            place = place or self._linked_run(mark, source_words, parent)
        if place is None:
            position = self._point_position(mark, source_words, parent)
            return _Place(position, position, source_words=source_words)
        place.source_words = source_words
        # Sorted, so that `_is_free` is a binary search.
        insort(parent.taken, (place.first, place.last))
        return place

    def _words_at(self, start: int, end: int) -> Span:
        """Return the target words [first, last) that contain characters [start, end)."""
        first = bisect_right(self._target_words, start, key=lambda span: span[1])
        last = bisect_right(self._target_words, end - 1, key=lambda span: span[1])
        return first, last + 1

    def _find_unchanged(self, mark: Mark, parent: _Place) -> _Place | None:
        """Return where the translation already contains the text of an element with fixed content."""
        text = self._source[mark.start : mark.end]
        start = self._target.find(text, max(parent.start, self._search_starts.get(text, 0)), parent.end)
        while start >= 0:
            end = start + len(text)
            self._search_starts[text] = end
            words = self._words_at(start, end)
            is_whole_word = not (self._target[start - 1 : start].isalnum() or self._target[end : end + 1].isalnum())
            if is_whole_word and _is_free(parent.taken, *words):
                return _Place(start, end, *words)
            start = self._target.find(text, end, parent.end)
        return None

    def _linked_run(self, mark: Mark, source_words: Span, parent: _Place) -> _Place | None:
        """Return the run of free target words with the best score, or None.

        The score is the number of words linked to the element minus the number of words linked to others only
        (a maximum subarray, computed from left to right).
        """
        if source_words == parent.source_words and not parent.taken and parent.first < parent.last:
            return self._surround(mark, source_words, parent.first, parent.last, parent)
        linked: set[int] = set()
        for targets in self._links[slice(*source_words)]:
            linked.update(word for word in targets if parent.first <= word < parent.last)
        best_score = best_first = best_last = 0
        score = 0
        first = 0
        previous = -1
        for word in sorted(linked):
            if not _is_free(parent.taken, word, word + 1):
                continue
            # Words between the last one and this one that are linked to other source words count against the run.
            score -= self._num_linked_before[word] - self._num_linked_before[previous + 1]
            if score <= 0 or previous < 0 or not _is_free(parent.taken, previous, word):
                score = 0
                first = word
            score += 1
            previous = word
            if score > best_score:
                best_score = score
                best_first = first
                best_last = word + 1
        return self._surround(mark, source_words, best_first, best_last, parent) if best_score else None

    def _surround(self, mark: Mark, source_words: Span, first: int, last: int, parent: _Place) -> _Place:
        """Return a place around target words [first, last).

        It includes the punctuation around them if the element includes all punctuation around its source
        words; if it includes a part of it, the corresponding characters.
        """
        left = source_words[0]
        right = source_words[1] - 1
        left_start = self._source_words[left][0]
        left_bare_start = self._bare_source_words[left][0]
        right_end = self._source_words[right][1]
        right_bare_end = self._bare_source_words[right][1]
        start = self._bare_target_words[first][0]
        end = self._bare_target_words[last - 1][1]
        opening = self._target[self._target_words[first][0] : start]
        closing = self._target[end : self._target_words[last - 1][1]]
        if mark.start <= left_start < left_bare_start:
            start -= len(opening)
        elif mark.start < left_bare_start:
            start -= _common_prefix_length(reversed(opening), reversed(self._source[mark.start : left_bare_start]))
        if mark.end >= right_end > right_bare_end:
            end += len(closing)
        elif mark.end > right_bare_end:
            end += _common_prefix_length(closing, self._source[right_bare_end : mark.end])
        return _Place(max(start, parent.start), min(end, parent.end), first, last)

    def _point_position(self, mark: Mark, source_words: Span, parent: _Place) -> int:
        """Return the position of a point: next to the translation of the nearest linked source word.

        It is before the translation of the next linked word, or after that of the previous one.
        """
        if mark.start == mark.end:
            source_words = (bisect_left(self._source_words, mark.start, key=lambda span: span[0]),) * 2
        nearest = None  # distance in source words, position
        index = bisect_left(self._linked_source_words, source_words[1])
        if index < len(self._linked_source_words):
            following = self._linked_source_words[index]
            if following < parent.source_words[1]:
                # A point at the end of a word belongs to that word.
                nearest = (
                    following - source_words[1] + mark.ends_word,
                    self._target_words[self._links[following][0]][0],
                )
        index = bisect_left(self._linked_source_words, source_words[0]) - 1
        if index >= 0:
            previous = self._linked_source_words[index]
            distance = source_words[0] - 1 - previous
            if previous >= parent.source_words[0] and (nearest is None or distance < nearest[0]):
                is_at_end = mark.ends_word and self._bare_source_words[previous][1] == mark.start
                words = self._bare_target_words if is_at_end else self._target_words
                nearest = (distance, words[self._links[previous][-1]][1])
        if nearest:
            position = nearest[1]
        elif source_words[0] > parent.source_words[0]:
            position = parent.end
        else:
            position = parent.start
        return min(max(position, parent.start), parent.end)

    def _in_order(self, parent: _Place, children: list[int]) -> list[int]:
        """Return the marks in one element in the order of their places, which may no longer overlap.

        A point inside another mark moves, with its content, to the nearer end of that mark.
        """
        for number in children:
            place = self._places[number]
            place.start = min(max(place.start, parent.start), parent.end)
            place.end = min(max(place.end, parent.start), parent.end)
        wide = sorted((self._places[n].start, self._places[n].end) for n in children if not self._is_point(n))
        for number in filter(self._is_point, children):
            position = self._places[number].start
            index = bisect_left(wide, position, key=lambda span: span[1])
            if index < len(wide) and wide[index][0] < position < wide[index][1]:
                start, end = wide[index]
                nearer_end = start if position - start < end - position else end
                self._places[number].start = nearer_end
                self._places[number].end = nearer_end
        return sorted(children, key=lambda n: (self._places[n].start, self._places[n].end, n))

    def _is_point(self, number: int) -> bool:
        return self._places[number].start == self._places[number].end

    def _separate(self, markup: str, position: int) -> str:
        """Return markup with the space that it needs between two words."""
        before = self._target[max(position - 1, 0) : position]
        after = self._target[position : position + 1]
        left = " " if before and not before.isspace() and (not after or after.isspace()) else ""
        right = " " if after and not after.isspace() and (not before or before.isspace()) else ""
        return f"{left}{markup}{right}"


def _is_free(taken: Sequence[Span], first: int, last: int) -> bool:
    """Return True if no word of [first, last) is in one of the sorted ranges."""
    index = bisect_right(taken, first, key=lambda span: span[1])
    return index == len(taken) or taken[index][0] >= last


def _common_prefix_length(one: Iterable[str], other: Iterable[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
