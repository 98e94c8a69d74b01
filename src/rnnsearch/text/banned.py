"""Phrases that a text must not hold, as an automaton over its characters, and over the symbols that spell it.

A text holds a phrase where it has it letter for letter, and where the phrase begins or ends with a letter, mark or
digit, no other stands beside: `Hund` is in `der Hund.` and in `Hund-Katze`, not in `Hunde`. So whether it is there can
be known one character later only; until then it is pending.

The automaton is that of Aho & Corasick (1975, "Efficient string matching: an aid to bibliographic search"): a state is
the longest end of the text that begins a phrase, but for ends that begin inside a word. Characters that no phrase has
are of two classes, inside words or not.
"""

import codecs
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.errors import RnnsearchError
from rnnsearch.text.languages import unspaced_letter

HELD = 0
"""The state of texts that hold a phrase."""
START, IN_WORD = 1, 2
"""Of those that end with the beginning of none: where a word may begin, and inside of one."""
OTHER, LETTER = 0, 1
"""Classes of characters that no phrase has: between words, and inside them."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@cache
def inside_word(character: str) -> bool:
    """Whether it is a letter, a mark, a digit, or what else `words` counts as inside of words."""
    return unicodedata.category(character)[0] in "LMN" or character in "_\u200c\u200d"


def goes_on(spelling: bytes) -> bool:
    """Whether what a symbol spells (UTF-8) goes on with a word that stands before it; bytes that are no character yet
    do, for they are of letters mostly. Where no spaces are written a word ends anywhere."""
    first = spelling.decode(errors="replace")[:1]
    return first == REPLACEMENT or (first != "" and inside_word(first) and not unspaced_letter(first))


class BannedPhrases:
    """Phrases, at least one, and the states that texts leave their automaton in."""

    def __init__(self, phrases: Iterable[str]) -> None:
        """Errors: RnnsearchError for a phrase of nothing but space, or without any phrase."""
        self.phrases = tuple(dict.fromkeys(phrase.strip() for phrase in phrases))
        if not self.phrases or not all(self.phrases):
            raise RnnsearchError(f"banned must be phrases that are not empty; got {list(self.phrases)}")
        self._classes = {c: n for n, c in enumerate(sorted(set("".join(self.phrases))), 2)}
        self._build()

    def _build(self) -> None:
        """The states: of a phrase's beginnings one each, which say where one more character leads. All others lead
        where the state of the longest shorter end of the text does, so a state holds nothing of them."""
        self._inside = np.array([False, True, *map(inside_word, self._classes)])
        """Of each class, whether it is inside words."""
        size, count = len(self._inside), IN_WORD + 1
        goes: dict[int, int] = {}
        levels: list[list[int]] = [[] for _ in range(max(map(len, self.phrases)))]
        ends: dict[int, bool] = {}
        for phrase in self.phrases:
            node = START
            for level, number in zip(levels, self.classes(phrase), strict=False):
                key = node * size + number
                if key not in goes:
                    goes[key] = count
                    level.append(key)
                    count += 1
                node = goes[key]
            ends[node] = inside_word(phrase[-1])
        self._goes, self._back = goes, [START] * count
        """The state after a state's class, by state * classes + class; of each state, that of the longest end."""
        pending, held = [False] * count, [False] * count
        for key in chain.from_iterable(levels):
            parent, number = divmod(key, size)
            root = IN_WORD if self._inside[number] else START
            node, back = goes[key], root if parent == START else self._next(self._back[parent], number)
            self._back[node] = back
            pending[node] = pending[back] or ends.get(node, False)
            held[node] = held[back] or not ends.get(node, True)
        self.pending = np.array(pending)
        """[S], whether the text holds a phrase if it ends here, or goes on with what is inside of no word."""
        self._goes = {key: HELD if held[node] else node for key, node in goes.items()}
        roots = [[self._next(state, number) for number in range(size)] for state in (START, IN_WORD)]
        self._roots = np.array([[HELD] * size, *roots])
        """[3, classes], the state after one more character of the three that no phrase begins in."""

    def _next(self, state: int, number: int) -> int:
        """The state after one more character, if none is held."""
        while state > IN_WORD:
            found = self._goes.get(state * len(self._inside) + number)
            if found is not None:
                return found
            state = self._back[state]
        inside = self._inside[number]
        root = IN_WORD if inside else START
        # Inside a word none begins.
        return root if inside and state == IN_WORD else self._goes.get(START * len(self._inside) + number, root)

    def __len__(self) -> int:
        """S."""
        return len(self.pending)

    @cached_property
    def _table(self) -> tuple[NDArray[np.int64], ...]:
        """The keys of `_goes` in order, where they lead, and `_back`."""
        keys = np.array(sorted(self._goes))
        return keys, np.array([self._goes[key] for key in keys.tolist()]), np.array(self._back)

    def next(self, states: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The states after one more character of texts in some states, by its class in each."""
        keys, goals, back = self._table
        found = self._roots[np.minimum(states, IN_WORD), numbers]
        left = np.flatnonzero(states > IN_WORD)
        own, asked = states[left], numbers[left]
        held = self.pending[own] & ~self._inside[asked]
        found[left[held]] = HELD
        left, own, asked = left[~held], own[~held], asked[~held]
        while len(left):
            wanted = own * len(self._inside) + asked
            places = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
            goes = keys[places] == wanted
            found[left[goes]] = goals[places[goes]]
            left, own, asked = left[~goes], back[own[~goes]], asked[~goes]
            none = own <= IN_WORD
            found[left[none]] = self._roots[own[none], asked[none]]
            left, own, asked = left[~none], own[~none], asked[~none]
        return found

    def root(self, state: int) -> int:
        """The state of texts that end as those in a state do, with the beginning of no phrase."""
        while state > IN_WORD:
            state = self._back[state]
        return state

    def row(self, state: int) -> NDArray[np.int64]:
        """[classes], the state after one more character of each class."""
        return self.next(np.full(len(self._inside), state), np.arange(len(self._inside)))

    def classes(self, text: str) -> list[int]:
        """The classes of a text's characters."""
        return [self._classes.get(c, LETTER if inside_word(c) else OTHER) for c in text]

    def after(self, state: int, text: str) -> int:
        """The state after a text that follows one in `state`."""
        for number in self.classes(text):
            if state == HELD or (self.pending[state] and not self._inside[number]):
                return HELD
            state = self._next(state, number)
        return state

    def held(self, text: str) -> bool:
        """Whether a text holds a phrase."""
        return self.begun(text) or bool(self.pending[self.after(START, text)])

    def begun(self, text: str) -> bool:
        """Whether it does, whatever follows it."""
        return self.after(START, text) == HELD


class SpelledStates:
    """The automaton over symbols: texts of their spellings, one after another, with the space before the first.

    A symbol may be bytes that are no character yet; so beside the automaton's own states there are those of whole
    characters and the bytes after them. Rows are made when they are first asked for.
    """

    def __init__(self, banned: BannedPhrases, spellings: Sequence[bytes]) -> None:
        """`spellings`: the UTF-8 that each symbol adds to a text."""
        self.banned = banned
        self._within: list[tuple[int, bytes]] = []
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._rows: dict[int, NDArray[np.int32]] = {}
        each = [_decoded(spelling) for spelling in spellings]
        self._broken = {n: spellings[n] for n, text in enumerate(each) if text is None}
        self._empty = [n for n, text in enumerate(each) if text == ""]
        texts = [banned.classes(text or "") for text in each]
        self.letters = {n: own[0] for n, own in enumerate(texts) if len(own) == 1}
        """Symbols of one character, and its class."""
        self._longest = np.array(sorted(range(len(texts)), key=lambda n: -len(texts[n])), dtype=np.int64)
        sizes = np.array([len(texts[n]) for n in self._longest])
        counts = [int((sizes > place).sum()) for place in range(int(sizes.max(initial=1)))]
        self._columns = [
            np.array([texts[n][place] for n in self._longest[:count]], dtype=np.int64)
            for place, count in enumerate(counts)
        ]
        """The classes of the first character of each that has one, of the second, ..."""

    def __len__(self) -> int:
        """V."""
        return len(self._longest)

    def row(self, state: int) -> NDArray[np.int32]:
        """[V], the state after each symbol; START is that of the empty text."""
        if state not in self._rows:
            self._rows[state] = self._made(*self._parts(state))
        return self._rows[state]

    def pending(self, states: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Whether texts in some states hold a phrase if they end there."""
        return self.banned.pending[[self._parts(int(state))[0] for state in states]]

    def within_character(self, state: int) -> bool:
        """Whether its last bytes are no character yet."""
        return bool(self._parts(state)[1])

    def _parts(self, state: int) -> tuple[int, bytes]:
        """The automaton's state, and the bytes after it."""
        own = len(self.banned)
        return (state, b"") if state < own else self._within[state - own]

    def _state(self, whole: int, rest: bytes) -> int:
        if not rest or whole == HELD:
            return whole
        if (whole, rest) not in self._numbers:
            self._numbers[whole, rest] = len(self.banned) + len(self._within)
            self._within.append((whole, rest))
        return self._numbers[whole, rest]

    def _made(self, whole: int, rest: bytes) -> NDArray[np.int32]:
        # Bytes that no character comes of are shown as one, between words.
        begun = self.banned.after(whole, REPLACEMENT) if rest else whole
        row, root = self.banned.row(begun), self.banned.root(begun)
        if root == begun:
            found, other = np.full(len(self), begun, dtype=np.int32), np.ones(len(row), dtype=bool)
        else:  # what does not go on with a phrase comes to where it does without one
            found, other = self.row(root).copy(), row != self.banned.row(root)
        own = np.flatnonzero(other[self._columns[0]])
        after = row[self._columns[0][own]]
        for column in self._columns[1:]:
            count = np.searchsorted(own, len(column))
            after[:count] = self.banned.next(after[:count], column[own[:count]])
        found[self._longest[own]] = after
        for symbol, spelling in self._broken.items():
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text = decoder.decode(rest + spelling)
            found[symbol] = self._state(self.banned.after(whole, text), decoder.getstate()[0])
        found[self._empty] = self._state(whole, rest)
        return found


def _decoded(spelling: bytes) -> str | None:
    """Its text; None where it is no whole characters."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return None
