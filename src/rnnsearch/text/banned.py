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
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.errors import RnnsearchError

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
        """`next` [S, classes] and `pending` [S]."""
        inside = np.array([False, True, *map(inside_word, self._classes)])
        nodes: dict[str, int] = {}
        for phrase in self.phrases:
            for size in range(1, len(phrase) + 1):
                nodes.setdefault(phrase[:size], len(nodes) + 3)
        self.next = np.empty((len(nodes) + 3, len(inside)), dtype=np.int64)
        """[S, classes], the state after one more character."""
        self.pending = np.zeros(len(self.next), dtype=bool)
        """[S], whether the text holds a phrase if it ends here, or goes on with what is inside of no word."""
        self.next[HELD] = HELD
        self.next[[START, IN_WORD]] = np.where(inside, IN_WORD, START)
        for text, node in nodes.items():
            if len(text) == 1:
                self.next[START, self._classes[text]] = node
                if not inside_word(text):
                    self.next[IN_WORD, self._classes[text]] = node
        held = np.zeros(len(self.next), dtype=bool)
        whole = set(self.phrases)
        for text, node in sorted(nodes.items(), key=lambda item: len(item[0])):
            back = self._longest_end(text, nodes)
            self.pending[node] = self.pending[back] or (text in whole and inside_word(text[-1]))
            held[node] = held[back] or (text in whole and not inside_word(text[-1]))
            self.next[node] = self.next[back]
            for c, number in self._classes.items():
                self.next[node, number] = nodes.get(text + c, self.next[back, number])
        self.next[held[self.next]] = HELD
        self.next[np.ix_(self.pending, ~inside)] = HELD

    @staticmethod
    def _longest_end(text: str, nodes: dict[str, int]) -> int:
        """The state of the longest end of a beginning of a phrase, shorter than it, that begins a phrase."""
        for at in range(1, len(text)):
            if text[at:] in nodes and not (inside_word(text[at - 1]) and inside_word(text[at])):
                return nodes[text[at:]]
        return IN_WORD if inside_word(text[-1]) else START

    def classes(self, text: str) -> list[int]:
        """The classes of a text's characters."""
        return [self._classes.get(c, LETTER if inside_word(c) else OTHER) for c in text]

    def after(self, state: int, text: str) -> int:
        """The state after a text that follows one in `state`."""
        for number in self.classes(text):
            state = int(self.next[state, number])
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
        self._longest = sorted(range(len(texts)), key=lambda n: -len(texts[n]))
        sizes = np.array([len(texts[n]) for n in self._longest])
        self._counts = [int((sizes > place).sum()) for place in range(int(sizes.max(initial=0)))]
        self._columns = [
            np.array([texts[n][place] for n in self._longest[:count]]) for place, count in enumerate(self._counts)
        ]

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
        own = len(self.banned.next)
        return (state, b"") if state < own else self._within[state - own]

    def _state(self, whole: int, rest: bytes) -> int:
        if not rest or whole == HELD:
            return whole
        if (whole, rest) not in self._numbers:
            self._numbers[whole, rest] = len(self.banned.next) + len(self._within)
            self._within.append((whole, rest))
        return self._numbers[whole, rest]

    def _made(self, whole: int, rest: bytes) -> NDArray[np.int32]:
        # Bytes that no character comes of are shown as one, between words.
        begun = self.banned.after(whole, REPLACEMENT) if rest else whole
        after = np.full(len(self._longest), begun)
        for count, column in zip(self._counts, self._columns, strict=True):
            after[:count] = self.banned.next[after[:count], column]
        found = np.empty(len(after), dtype=np.int32)
        found[self._longest] = after
        for symbol, spelling in self._broken.items():
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text = decoder.decode(rest + spelling)
            found[symbol] = self._state(self.banned.after(whole, text), decoder.getstate()[0])
        if rest:
            found[self._empty] = self._state(whole, rest)
        return found


def _decoded(spelling: bytes) -> str | None:
    """Its text; None where it is no whole characters."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return None
