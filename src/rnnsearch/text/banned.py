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

    A symbol may be bytes that are no character yet; so a state is that of the whole characters, and the bytes after
    them. Rows are made when they are first asked for.
    """

    def __init__(self, banned: BannedPhrases, spellings: Sequence[bytes]) -> None:
        """`spellings`: the UTF-8 that each symbol adds to a text."""
        self.banned = banned
        self._states = {(START, b""): 0}
        self._names = [(START, b"")]
        self._rows: dict[int, NDArray[np.int32]] = {}
        each = [_decoded(spelling) for spelling in spellings]
        self._broken = {n: spellings[n] for n, text in enumerate(each) if text is None}
        self._empty = [n for n, text in enumerate(each) if text == ""]
        texts = [banned.classes(text or "") for text in each]
        self._longest = sorted(range(len(texts)), key=lambda n: -len(texts[n]))
        sizes = np.array([len(texts[n]) for n in self._longest])
        width = int(sizes.max(initial=0))
        self._counts = [int((sizes > place).sum()) for place in range(width)]
        self._columns = [
            np.array([texts[n][place] for n in self._longest[:count]]) for place, count in enumerate(self._counts)
        ]

    def __len__(self) -> int:
        """V."""
        return len(self._longest)

    def row(self, state: int) -> NDArray[np.int32]:
        """[V], the state after each symbol; 0 is that of the empty text."""
        if state not in self._rows:
            self._rows[state] = self._made(*self._names[state]).astype(np.int32)
        return self._rows[state]

    def held(self, state: int) -> bool:
        """Whether the text holds a phrase, whatever follows."""
        return self._names[state][0] == HELD

    def pending(self, state: int) -> bool:
        """Whether it holds one if it ends here."""
        return bool(self.banned.pending[self._names[state][0]])

    def _state(self, whole: int, rest: bytes) -> int:
        name = (whole, b"" if whole == HELD else rest)
        if name not in self._states:
            self._states[name] = len(self._names)
            self._names.append(name)
        return self._states[name]

    def _made(self, whole: int, rest: bytes) -> NDArray[np.int64]:
        # Bytes that no character comes of are shown as one, between words.
        begun = self.banned.after(whole, REPLACEMENT) if rest else whole
        after = np.full(len(self._longest), begun)
        for count, column in zip(self._counts, self._columns, strict=True):
            after[:count] = self.banned.next[after[:count], column]
        found = np.empty(len(after), dtype=np.int64)
        found[self._longest] = after
        different, places = np.unique(found, return_inverse=True)
        found = np.array([self._state(int(one), b"") for one in different])[places]
        for symbol, spelling in self._broken.items():
            found[symbol] = self._spelled(whole, rest + spelling)
        if rest:
            found[self._empty] = self._state(whole, rest)
        return found

    def _spelled(self, whole: int, spelling: bytes) -> int:
        """The state after bytes of which the last ones may be no character yet."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return self._state(self.banned.after(whole, decoder.decode(spelling)), decoder.getstate()[0])


def _decoded(spelling: bytes) -> str | None:
    """Its text; None where it is no whole characters."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return None
