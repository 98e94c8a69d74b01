"""What is to stay letter for letter, how it is found, and what a translation has in its place.

A model that is not sure of a placeholder or a number writes another one: `{Name}` for `{name}`, 21.000 for 21,000. What
is put in its place must take away all of that, and nothing of the words and punctuation around it.
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
"""What can be kept letter for letter, by name, and how it is found. The first that matches at a place has it."""
_ALTERED: dict[Protected, str] = {
    "urls": f"(?i:{PROTECTED['urls']})",
    "emails": PROTECTED["emails"],
    "placeholders": r"\{ ?\{[^{}]{1,64}\} ?\}|(?:\$ ?)?\{[^{}]{0,64}\}"
    r"|% ?(?:\([^()]{1,64}\) ?)?(?i:[sdif])(?!\w)|% ?\d ?\$ ?(?i:[sd])(?!\w)",
    "codes": PROTECTED["codes"],
    "numbers": r"(?<!\d)\d{1,3}(?:[ \u00a0\u2009\u202f'’]\d{3}){1,8}(?:[.,]\d{1,64})?(?!\d)|\d(?:[\d.,:/]{0,64}\d)?",
}
"""How a model may write them that does not keep to the letters: with spaces, or with letters around a number."""
TAKEN = -1
"""The owner of characters that are somebody's already."""


def protected(names: Iterable[Protected]) -> re.Pattern[str]:
    """What finds some of `PROTECTED`; the group that matched bears the name."""
    return re.compile("|".join(f"(?P<{name}>{found})" for name, found in PROTECTED.items() if name in names))


def kind_of(match: re.Match[str]) -> Protected:
    """Which of `PROTECTED` it is that `protected` found."""
    return next(name for name in PROTECTED if name == match.lastgroup)


class Stretch(NamedTuple):
    """A stretch of a source text that is to stay letter for letter."""

    text: str
    kind: Protected
    owner: int
    """What the characters belong to that may be its."""
    word: int
    """The number of the source word that it is in."""


class _Token(NamedTuple):
    start: int
    end: int
    kind: Protected


class Counterparts:
    """What a translation has in the places of protected stretches, of each one stretch of its own at most.

    First what is the same, then what differs by separators and case, then what is of its kind: in words that are linked
    to it, then where there is as much of it left as of the source's. Each step is taken for all stretches before
    the next one, so what is the same is nobody else's, and takes time linear in the text.
    """

    def __init__(
        self, stretches: Sequence[Stretch], target: str, links: Sequence[Sequence[int]], owners: list[int]
    ) -> None:
        """`links`: the target words of each source word; `owners`: of each character of the target; those of what is
        found become `TAKEN`."""
        self._stretches, self._target, self._owners = stretches, target, owners
        self.found: list[Span | None] = [None] * len(stretches)
        """Characters of the target."""
        kinds = {stretch.kind for stretch in stretches}
        whole = [_Token(*match.span(), kind_of(match)) for match in protected(PROTECTED).finditer(target)]
        self._whole = [token for token in whole if token.kind in kinds]
        self._tokens = [
            *self._whole,
            *(_Token(*match.span(), kind) for kind in kinds for match in re.finditer(_ALTERED[kind], target)),
        ]
        if stretches:
            self._match(lambda text, _: text)
            self._match(_letters)
            self._standing()
            self._linked(links)
            self._left(links)

    def _waiting(self) -> Iterator[tuple[int, Stretch]]:
        return ((n, stretch) for n, stretch in enumerate(self._stretches) if self.found[n] is None)

    def _free(self, start: int, end: int, owner: int) -> bool:
        return all(own == owner for own in self._owners[start:end])

    def _take(self, number: int, start: int, end: int) -> None:
        self.found[number] = start, end
        self._owners[start:end] = [TAKEN] * (end - start)

    def _first(self, tokens: deque[_Token], owner: int) -> _Token | None:
        """The first that is free; those before it go."""
        while tokens and not self._free(tokens[0].start, tokens[0].end, owner):
            tokens.popleft()
        return tokens[0] if tokens else None

    def _match(self, key: Callable[[str, Protected], Hashable]) -> None:
        """For each stretch the first token of its kind with the same key."""
        tokens = defaultdict[Hashable, deque[_Token]](deque)
        for token in self._tokens:
            text = self._target[token.start : token.end]
            tokens[self._owners[token.start], token.kind, key(text, token.kind)].append(token)
        for number, stretch in self._waiting():
            same = tokens[stretch.owner, stretch.kind, key(stretch.text, stretch.kind)]
            if found := self._first(same, stretch.owner):
                self._take(number, found.start, found.end)

    def _standing(self) -> None:
        """What is the same in something longer: www.a.org-Seite, %dmal."""
        searched = defaultdict[tuple[int, str], int](int)
        for number, stretch in self._waiting():
            text, owner = stretch.text, stretch.owner
            at = self._target.find(text, searched[owner, text])
            while at >= 0:
                end = searched[owner, text] = at + len(text)
                if self._free(at, end, owner) and self._alone(at, end, stretch.kind):
                    self._take(number, at, end)
                    break
                at = self._target.find(text, end)
            else:
                searched[owner, text] = len(self._target)

    def _alone(self, start: int, end: int, kind: Protected) -> bool:
        if kind == "placeholders":
            return True
        before, after = self._target[max(start - 2, 0) : start], self._target[end : end + 2]
        if kind == "numbers":
            return not (re.search(r"\d[.,:/]?$", before) or re.match(r"[.,:/]?\d", after))
        return not (before[-1:].isalnum() or after[:1].isalnum())

    def _linked(self, links: Sequence[Sequence[int]]) -> None:
        """What is of its kind in a linked word."""
        ends = [end for _, end in word_spans(self._target)]
        tokens = defaultdict[Hashable, deque[_Token]](deque)
        for token in self._tokens:
            for word in range(bisect_right(ends, token.start), bisect_right(ends, token.end - 1) + 1):
                tokens[self._owners[token.start], token.kind, word].append(token)
        inside = dict[Hashable, deque[int]]()
        for number, stretch in self._waiting():
            own = stretch.owner, stretch.kind
            words = inside.setdefault((*own, stretch.word), deque(links[stretch.word]))
            while words and not self._first(tokens[*own, words[0]], stretch.owner):
                words.popleft()
            if words:
                found = tokens[*own, words[0]].popleft()
                self._take(number, found.start, found.end)

    def _left(self, links: Sequence[Sequence[int]]) -> None:
        """Those of a kind in order, if there are as many of both; but a number that is linked may be spelled out."""
        free = defaultdict[Hashable, list[_Token]](list)
        for token in self._whole:
            owner = self._owners[token.start]
            if owner != TAKEN and self._free(token.start, token.end, owner):
                free[owner, token.kind].append(token)
        waiting = defaultdict[Hashable, list[int]](list)
        for number, stretch in self._waiting():
            if stretch.kind != "numbers" or not links[stretch.word]:
                waiting[stretch.owner, stretch.kind].append(number)
        for kind, numbers in waiting.items():
            if len(numbers) == len(free[kind]):
                for number, token in zip(numbers, free[kind], strict=True):
                    self._take(number, token.start, token.end)


def _letters(text: str, kind: Protected) -> str:
    """What is left of it where case and separators do not count."""
    return "".join(filter(str.isdigit if kind == "numbers" else str.isalnum, text)).casefold()
