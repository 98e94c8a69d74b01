"""Where the marks of a text come to stand in its translation, by the links between the words of both."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

from rnnsearch.text.alignments import Link, spoken_spans, word_spans
from rnnsearch.text.markup.protected import Counterparts, Protected, Stretch

Span = tuple[int, int]


@dataclass
class Mark:
    """An element, or a single point, of a plain text: its characters, and the markup before and after them."""

    start: int
    end: int
    opens: str = ""
    closes: str = ""
    kept: str | None = None
    """What is to come out in the place of the translation of its characters."""
    kind: Protected | None = None
    """Of what was not marked, but found: which of `PROTECTED` it is."""
    spaced: bool = False
    """Of a point: whether it stood between two spaces, one of which was taken out."""
    parent: int = -1
    """The number of the element that it stands in; -1: the text."""


@dataclass
class _Place:
    """Where a mark comes to stand in a translation: its words [first, last) and characters [start, end)."""

    start: int
    end: int
    first: int = 0
    last: int = 0
    words: Span = (0, 0)
    """The source words that it stood around."""
    taken: list[Span] = field(default_factory=list)
    """Words that elements inside it have, in order."""


class Placing:
    """The places of a text's marks in one translation."""

    def __init__(self, marks: Sequence[Mark], source: str, target: str, links: Collection[Link]) -> None:
        self._marks, self._source, self._target = marks, source, target
        self._outer, self._spoken = word_spans(source), spoken_spans(source)
        self._target_outer, self._target_spoken = word_spans(target), spoken_spans(target)
        self._links: list[list[int]] = [[] for _ in self._spoken]
        for s, t in sorted(links):
            self._links[s].append(t)
        self._linked = [s for s, found in enumerate(self._links) if found]
        counts = [0] * (len(self._target_spoken) + 1)
        for t in {t for _, t in links}:
            counts[t + 1] = 1
        self._linked_before = list(accumulate(counts))
        """How many target words before each are linked."""
        self._searched: dict[str, int] = {}
        whole = _Place(0, len(target), 0, len(self._target_spoken), (0, len(self._spoken)))
        self._places = [whole]
        """Of the text, and of each mark."""
        for mark in self._marks:
            if mark.kind is None:
                self._places.append(self._place(mark, self._places[mark.parent + 1]))
        self._place_protected()

    def _place(self, mark: Mark, parent: _Place) -> _Place:
        words = (
            bisect_right(self._spoken, mark.start, key=lambda span: span[1]),
            bisect_left(self._spoken, mark.end, key=lambda span: span[0]),
        )
        found = None
        if words[0] < words[1] and mark.start < mark.end:
            if mark.kept is not None and mark.kind is None:
                found = self._as_it_stands(mark, parent)
            found = found or self._linked_run(mark, words, parent)
        if found is None:
            at = self._point(mark, words, parent)
            return _Place(at, at, words=words)
        found.words = words
        insort(parent.taken, (found.first, found.last))
        return found

    def _place_protected(self) -> None:
        """Each takes its counterpart in the translation; those that have none, the words linked to it."""
        kept = [(mark, mark.kind) for mark in self._marks if mark.kind]
        if not kept:
            return
        owners = [0] * len(self._target)
        for number, place in enumerate(self._places):
            owners[place.start : place.end] = [number] * (place.end - place.start)
        stretches = list[Stretch]()
        for mark, kind in kept:
            word = bisect_right(self._outer, mark.start, key=lambda span: span[1])
            stretches.append(Stretch(self._source[mark.start : mark.end], kind, mark.parent + 1, word))
        found = Counterparts(stretches, self._target, self._links, owners).found
        parents = [self._places[mark.parent + 1] for mark, _ in kept]
        known = [self._taking(*span, parent) if span else None for span, parent in zip(found, parents, strict=True)]
        for (mark, _), parent, own in zip(kept, parents, known, strict=True):
            self._places.append(own or self._place(mark, parent))

    def _taking(self, start: int, end: int, parent: _Place) -> _Place:
        words = self._words_of(start, end)
        insort(parent.taken, words)
        return _Place(start, end, *words)

    def _words_of(self, start: int, end: int) -> Span:
        """The target words [first, last) that hold characters [start, end)."""
        first, last = (bisect_right(self._target_outer, at, key=lambda span: span[1]) for at in (start, end - 1))
        return first, last + 1

    def _as_it_stands(self, mark: Mark, parent: _Place) -> _Place | None:
        """Where the translation has already what is to be kept."""
        text = self._source[mark.start : mark.end]
        at = self._target.find(text, max(parent.start, self._searched.get(text, 0)), parent.end)
        while at >= 0:
            end = self._searched[text] = at + len(text)
            words = self._words_of(at, end)
            alone = not (self._target[at - 1 : at].isalnum() or self._target[end : end + 1].isalnum())
            if alone and _free(parent.taken, *words):
                return _Place(at, end, *words)
            at = self._target.find(text, end, parent.end)
        return None

    def _linked_run(self, mark: Mark, words: Span, parent: _Place) -> _Place | None:
        """The run of free target words with most of the element's, less those that are others'."""
        if words == parent.words and not parent.taken and parent.first < parent.last:
            return self._around(mark, words, parent.first, parent.last, parent)
        own = {t for found in self._links[slice(*words)] for t in found if parent.first <= t < parent.last}
        best, score, begin, last = (0, 0, 0), 0, 0, -1
        for t in sorted(own):
            if not _free(parent.taken, t, t + 1):
                continue
            others = self._linked_before[t] - self._linked_before[last + 1]
            score -= others
            if score <= 0 or last < 0 or not _free(parent.taken, last, t):
                score, begin = 0, t
            score, last = score + 1, t
            if score > best[0]:
                best = score, begin, t + 1
        return self._around(mark, words, best[1], best[2], parent) if best[0] else None

    def _around(self, mark: Mark, words: Span, first: int, last: int, parent: _Place) -> _Place:
        """The characters of target words; punctuation around them where the element has its words' own, and what is the
        same where it has a part of it."""
        left, right = words[0], words[1] - 1
        (left_outer, _), (left_spoken, _) = self._outer[left], self._spoken[left]
        (_, right_outer), (_, right_spoken) = self._outer[right], self._spoken[right]
        (start, _), (_, end) = self._target_spoken[first], self._target_spoken[last - 1]
        opening = self._target[self._target_outer[first][0] : start]
        closing = self._target[end : self._target_outer[last - 1][1]]
        if mark.start <= left_outer < left_spoken:
            start -= len(opening)
        elif mark.start < left_spoken:
            start -= _same(reversed(opening), reversed(self._source[mark.start : left_spoken]))
        if mark.end >= right_outer > right_spoken:
            end += len(closing)
        elif mark.end > right_spoken:
            end += _same(closing, self._source[right_spoken : mark.end])
        return _Place(max(start, parent.start), min(end, parent.end), first, last)

    def _point(self, mark: Mark, words: Span, parent: _Place) -> int:
        """Before what comes of the next source word that is linked, or after what comes of the one before."""
        if mark.start == mark.end:
            words = (bisect_left(self._outer, mark.start, key=lambda span: span[0]),) * 2
        nearest = None
        place = bisect_left(self._linked, words[1])
        if place < len(self._linked) and (following := self._linked[place]) < parent.words[1]:
            nearest = following - words[1], self._target_outer[self._links[following][0]][0]
        place = bisect_left(self._linked, words[0]) - 1
        if place >= 0 and (before := self._linked[place]) >= parent.words[0]:
            distance = words[0] - 1 - before
            if nearest is None or distance < nearest[0]:
                nearest = distance, self._target_outer[self._links[before][-1]][1]
        at = nearest[1] if nearest else parent.end if words[0] > parent.words[0] else parent.start
        return min(max(at, parent.start), parent.end)

    def written(self, escaped: Callable[[str], str]) -> str:
        """The translation with all marks in their places."""
        inner: list[list[int]] = [[] for _ in self._places]
        for number, mark in enumerate(self._marks, 1):
            inner[mark.parent + 1].append(number)
        out, done = list[str](), 0
        around = [(0, iter(self._in_order(self._places[0], inner[0])))]
        while around:
            number, waiting = around[-1]
            place, following = self._places[number], next(waiting, None)
            if following is None:
                out += escaped(self._target[done : place.end]), self._marks[number - 1].closes if number else ""
                done = place.end
                around.pop()
                continue
            mark, found = self._marks[following - 1], self._places[following]
            out.append(escaped(self._target[done : found.start]))
            done = found.start
            if mark.kept is not None:
                content = f"{mark.opens}{mark.kept}{mark.closes}"
                out.append(self._apart(content, found.start) if found.start == found.end else content)
                done = found.end
            elif not mark.closes:
                out.append(self._apart(mark.opens, found.start) if mark.spaced else mark.opens)
            else:
                out.append(mark.opens)
                around.append((following, iter(self._in_order(found, inner[following]))))
        return "".join(out)

    def _in_order(self, around: _Place, numbers: list[int]) -> list[int]:
        """Marks in one element as they follow one another; a point inside another mark moves to its nearer side, and
        with it what is in it."""
        for number in numbers:
            place = self._places[number]
            place.start, place.end = (min(max(at, around.start), around.end) for at in (place.start, place.end))
        wide = sorted((self._places[n].start, self._places[n].end) for n in numbers if not self._is_point(n))
        for number in filter(self._is_point, numbers):
            at = self._places[number].start
            near = bisect_left(wide, at, key=lambda span: span[1])
            if near < len(wide) and wide[near][0] < at < wide[near][1]:
                start, end = wide[near]
                self._places[number].start = self._places[number].end = start if at - start < end - at else end
        return sorted(numbers, key=lambda n: (self._places[n].start, self._places[n].end, n))

    def _is_point(self, number: int) -> bool:
        return self._places[number].start == self._places[number].end

    def _apart(self, markup: str, at: int) -> str:
        """What is put between two words, with the space that it needs on the other side."""
        before, after = self._target[max(at - 1, 0) : at], self._target[at : at + 1]
        left = " " if before and not before.isspace() and (not after or after.isspace()) else ""
        right = " " if after and not after.isspace() and (not before or before.isspace()) else ""
        return f"{left}{markup}{right}"


def _free(taken: Sequence[Span], first: int, last: int) -> bool:
    """Whether no word of [first, last) is taken."""
    at = bisect_right(taken, first, key=lambda span: span[1])
    return at == len(taken) or taken[at][0] >= last


def _same(one: Iterable[str], other: Iterable[str]) -> int:
    """How many characters are the same at the beginning of both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
