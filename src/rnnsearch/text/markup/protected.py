"""Text that must stay letter for letter: how it is detected, and what corresponds to it in a translation.

A model often changes placeholders or numbers: `{Name}` for `{name}`, 21.000 for 21,000.
`Counterparts` finds the complete changed text, but none of the words and punctuation around it, so
that it can be replaced.

`marks.py` detects text with `protected_pattern`, and `placing.py` uses `Counterparts`. Names of types are values of
`--protect`. Patterns must take linear time (tests/text/test_linear.py).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from rnnsearch.text.alignments import word_spans

Span = tuple[int, int]
Protected = Literal["urls", "emails", "placeholders", "codes", "numbers"]
PROTECTED: dict[Protected, str] = {
    "urls": r"(?:https?://|ftp://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]}'’”»]",
    "emails": r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
    "placeholders": r"\{\{[^{}\s]{1,64}\}\}|\$?\{[^{}\s]{0,64}\}|%(?:\([^()\s]{1,64}\))?[sdif](?!\w)|%\d\$[sd](?!\w)",
    "codes": r"(?<![\w.-])(?=[\w.-]{0,64}\d)(?=[\w.-]{0,64}[^\W\d_])(?!\d+(?:st|nd|rd|th)(?!\w))"
    r"[\w-]{1,64}(?:\.[\w-]{1,64}){0,8}(?![\w-])",
    "numbers": r"(?<![\w-])\d(?:[\d.,:/]{0,64}\d)?(?![\w-])",
}
"""Types of protected text by name, with the patterns that detect them; the first that matches wins."""
_ALTERED_PATTERNS: dict[Protected, str] = {
    "urls": f"(?i:{PROTECTED['urls']})",
    "emails": PROTECTED["emails"],
    "placeholders": r"\{ ?\{[^{}]{1,64}\} ?\}|(?:\$ ?)?\{[^{}]{0,64}\}"
    r"|% ?(?:\([^()]{1,64}\) ?)?(?i:[sdif])(?!\w)|% ?\d ?\$ ?(?i:[sd])(?!\w)",
    "codes": PROTECTED["codes"],
    "numbers": r"(?<!\d)\d{1,3}(?:[ \u00a0\u2009\u202f'’]\d{3}){1,8}(?:[.,]\d{1,64})?(?!\d)|\d(?:[\d.,:/]{0,64}\d)?",
}
"""Altered forms that a model may write: with spaces, or with letters around a number."""
TAKEN = -1
"""Owner of characters that already belong to a counterpart."""


def protected_pattern(names: Iterable[Protected]) -> re.Pattern[str]:
    """Return a pattern that detects these types of text; the name of the matching group is the type."""
    return re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in PROTECTED.items() if name in names))


def protected_type(match: re.Match[str]) -> Protected:
    """Return the type of text that `protected_pattern` matched."""
    return next(name for name in PROTECTED if name == match.lastgroup)


class ProtectedSpan(NamedTuple):
    """A span of a source text that must stay letter for letter."""

    text: str
    """Text as in the source."""
    type: Protected
    """Type of protected text."""
    owner: int
    """Owner of the target characters that may correspond to it."""
    word: int
    """Index of the source word that contains it."""


class _Candidate(NamedTuple):
    """Target characters [start, end) that may correspond to protected text of a type."""

    start: int
    end: int
    type: Protected


class Counterparts:
    """The spans of a translation that correspond to the protected spans of its source, at most one each.

    First equal text is matched, then text that differs only by separators and case, then text of the same type:
    in linked words, and finally in order if as many candidates as source spans remain. Each step runs for
    all spans before the next one, so equal text is never taken by another span. The time is linear in the text.
    """

    def __init__(
        self, source_spans: Sequence[ProtectedSpan], target: str, links: Sequence[Sequence[int]], owners: list[int]
    ) -> None:
        """Find the counterparts.

        Args:
            source_spans: The protected spans of the source.
            target: The translation.
            links: Target words of each source word.
            owners: Owner of each target character; set to `TAKEN` for the counterparts.
        """
        self._source_spans = source_spans
        self._target = target
        self._owners = owners
        self.spans: list[Span | None] = [None] * len(source_spans)
        """Target characters [start, end) of each source span, or None."""
        types = {span.type for span in source_spans}
        self._regular = []  # candidates in regular form
        for match in protected_pattern(PROTECTED).finditer(target):
            candidate = _Candidate(*match.span(), protected_type(match))
            if candidate.type in types:
                self._regular.append(candidate)
        self._candidates = list(self._regular)
        for altered_type in types:
            for match in re.finditer(_ALTERED_PATTERNS[altered_type], target):
                self._candidates.append(_Candidate(*match.span(), altered_type))
        if source_spans:
            # From the most to the least reliable evidence.
            self._match_by(lambda text, _: text)
            self._match_by(_letters)
            self._match_inside_words()
            self._match_linked(links)
            self._match_remaining(links)

    def _unmatched(self) -> Iterator[tuple[int, ProtectedSpan]]:
        return ((n, span) for n, span in enumerate(self._source_spans) if self.spans[n] is None)

    def _is_free(self, start: int, end: int, owner: int) -> bool:
        return all(character_owner == owner for character_owner in self._owners[start:end])

    def _take(self, number: int, start: int, end: int) -> None:
        self.spans[number] = (start, end)
        self._owners[start:end] = [TAKEN] * (end - start)

    def _first_free(self, candidates: deque[_Candidate], owner: int) -> _Candidate | None:
        """Return the first free candidate; those before it are removed."""
        # Removed for good: characters never become free again, which keeps the total time linear.
        while candidates and not self._is_free(candidates[0].start, candidates[0].end, owner):
            candidates.popleft()
        return candidates[0] if candidates else None

    def _match_by(self, key: Callable[[str, Protected], Hashable]) -> None:
        """Match each source span with the first candidate of its type and owner that has the same key."""
        candidates = defaultdict[Hashable, deque[_Candidate]](deque)
        for candidate in self._candidates:
            text = self._target[candidate.start : candidate.end]
            candidates[self._owners[candidate.start], candidate.type, key(text, candidate.type)].append(candidate)
        for number, span in self._unmatched():
            match = self._first_free(candidates[span.owner, span.type, key(span.text, span.type)], span.owner)
            if match:
                self._take(number, match.start, match.end)

    def _match_inside_words(self) -> None:
        """Match equal text inside something longer: www.a.org-Seite, %dmal."""
        search_starts = defaultdict[tuple[int, str], int](int)
        for number, span in self._unmatched():
            key = (span.owner, span.text)
            start = self._target.find(span.text, search_starts[key])
            while start >= 0:
                end = start + len(span.text)
                search_starts[key] = end
                if self._is_free(start, end, span.owner) and self._is_separate(start, end, span.type):
                    self._take(number, start, end)
                    break
                start = self._target.find(span.text, end)
            else:
                # The text does not occur again, so later spans with the same text need not search.
                search_starts[key] = len(self._target)

    def _is_separate(self, start: int, end: int, span_type: Protected) -> bool:
        """Return True if the characters around the text do not belong to it."""
        if span_type == "placeholders":
            return True
        before = self._target[max(start - 2, 0) : start]
        after = self._target[end : end + 2]
        if span_type == "numbers":
            return not (re.search(r"\d[.,:/]?$", before) or re.match(r"[.,:/]?\d", after))
        return not (before[-1:].isalnum() or after[:1].isalnum())

    def _match_linked(self, links: Sequence[Sequence[int]]) -> None:
        """Match candidates of the same type in linked words."""
        word_ends = [end for _, end in word_spans(self._target)]
        candidates = defaultdict[Hashable, deque[_Candidate]](deque)
        for candidate in self._candidates:
            first = bisect_right(word_ends, candidate.start)
            last = bisect_right(word_ends, candidate.end - 1)
            for word in range(first, last + 1):
                candidates[self._owners[candidate.start], candidate.type, word].append(candidate)
        linked_words = dict[Hashable, deque[int]]()
        for number, span in self._unmatched():
            # One queue for all spans of a type in a word, so that each linked word is tried once.
            words = linked_words.setdefault((span.owner, span.type, span.word), deque(links[span.word]))
            while words and not self._first_free(candidates[span.owner, span.type, words[0]], span.owner):
                words.popleft()
            if words:
                match = candidates[span.owner, span.type, words[0]].popleft()
                self._take(number, match.start, match.end)

    def _match_remaining(self, links: Sequence[Sequence[int]]) -> None:
        """Match the rest of a type in order, if there are as many free candidates as source spans.

        A linked number is excluded, because its translation may be spelled out.
        """
        free = defaultdict[Hashable, list[_Candidate]](list)
        for candidate in self._regular:
            owner = self._owners[candidate.start]
            if owner != TAKEN and self._is_free(candidate.start, candidate.end, owner):
                free[owner, candidate.type].append(candidate)
        unmatched = defaultdict[Hashable, list[int]](list)
        for number, span in self._unmatched():
            if span.type != "numbers" or not links[span.word]:
                unmatched[span.owner, span.type].append(number)
        for key, numbers in unmatched.items():
            if len(numbers) == len(free[key]):
                for number, candidate in zip(numbers, free[key], strict=True):
                    self._take(number, candidate.start, candidate.end)


def _letters(text: str, span_type: Protected) -> str:
    """Return the text without case and separators, for numbers only its digits."""
    return "".join(filter(str.isdigit if span_type == "numbers" else str.isalnum, text)).casefold()
