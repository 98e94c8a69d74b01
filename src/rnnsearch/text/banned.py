"""Automata that detect banned phrases in a text, over characters and over tokens.

A text contains a phrase if it occurs letter for letter, and if no word character is adjacent to a
word character at the phrase's start or end: `Hund` is in `der Hund.` and in `Hund-Katze`, but not
in `Hunde`. So a match is certain only one character later; until then it is pending.

The automaton is that of Aho & Corasick (1975, "Efficient string matching: an aid to bibliographic search"). A state
is the longest suffix of the text that is a prefix of a phrase, except for suffixes that start inside a word.
Characters that occur in no phrase form two classes: word characters and others.

`translator/requests.py` builds the automata of a request, and `search/banned.py` follows them. Time and memory are
bounded for phrases of strangers (tests/text/test_linear.py).

Axes: S states, V vocabulary.
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
from rnnsearch.text.languages import is_unspaced_letter

MATCHED = 0
"""State of texts that contain a phrase."""
START = 1
"""State of texts after which a word may start, with no phrase in progress."""
INSIDE_WORD = 2
"""State of texts that end inside a word, with no phrase in progress."""
OTHER_CLASS = 0
"""Class of non-word characters that occur in no phrase."""
LETTER_CLASS = 1
"""Class of word characters that occur in no phrase."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@cache
def is_word_character(character: str) -> bool:
    """Return True for letters, marks, digits, and the other word characters of `words`."""
    return unicodedata.category(character)[0] in "LMN" or character in "_\u200c\u200d"


def continues_word(token: bytes) -> bool:
    """Return True if a token continues the word before it.

    Bytes that are not yet a character do, because most such characters are letters. In scripts
    without spaces a word ends anywhere.

    Args:
        token: The UTF-8 that the token adds to a text.
    """
    first = token.decode(errors="replace")[:1]
    return first == REPLACEMENT or (first != "" and is_word_character(first) and not is_unspaced_letter(first))


class BannedPhrases:
    """An automaton over characters for one or more phrases."""

    def __init__(self, phrases: Iterable[str]) -> None:
        """Build the automaton.

        Raises:
            RnnsearchError: There is no phrase, or one is only white space.
        """
        self.phrases = tuple(dict.fromkeys(phrase.strip() for phrase in phrases))
        if not self.phrases or not all(self.phrases):
            raise RnnsearchError(f"banned must be phrases that are not empty; got {list(self.phrases)}")
        self._classes = {c: n for n, c in enumerate(sorted(set("".join(self.phrases))), 2)}
        self._build()

    def _build(self) -> None:
        """Build the states and transitions.

        Each prefix of a phrase is a state, and stores only the transitions that extend the prefix. All other
        transitions are those of the state of the longest shorter suffix (`_fallback`).
        """
        # [classes]: True for classes of word characters
        self._is_letter_class = np.array([False, True, *map(is_word_character, self._classes)])
        num_classes = len(self._is_letter_class)

        # The trie: keys are state * num_classes + class, grouped by depth.
        count = INSIDE_WORD + 1
        transitions: dict[int, int] = {}
        levels: list[list[int]] = [[] for _ in range(max(map(len, self.phrases)))]
        ends: dict[int, bool] = {}  # final states; True if the phrase ends with a word character
        for phrase in self.phrases:
            state = START
            for level, cls in zip(levels, self.character_classes(phrase), strict=False):
                key = state * num_classes + cls
                if key not in transitions:
                    transitions[key] = count
                    level.append(key)
                    count += 1
                state = transitions[key]
            ends[state] = is_word_character(phrase[-1])

        # Fallbacks, breadth first.
        self._transitions = transitions
        self._fallback = [START] * count
        pending = [False] * count
        matched = [False] * count
        # Breadth first: a fallback is shorter than its state, so its own fallback is known.
        for key in chain.from_iterable(levels):
            parent, cls = divmod(key, num_classes)
            root = INSIDE_WORD if self._is_letter_class[cls] else START
            state = transitions[key]
            fallback = root if parent == START else self._next(self._fallback[parent], cls)
            self._fallback[state] = fallback
            # A phrase that ends with a word character matches only if no word character follows.
            pending[state] = pending[fallback] or ends.get(state, False)
            # A phrase that ends with punctuation matches at once.
            matched[state] = matched[fallback] or not ends.get(state, True)
        self.pending = np.array(pending)
        """[S], True if the text contains a phrase if it ends here or continues with a non-word character."""
        self._transitions = {key: MATCHED if matched[state] else state for key, state in transitions.items()}
        roots = []
        for state in (START, INSIDE_WORD):
            roots.append([self._next(state, cls) for cls in range(num_classes)])
        # [3, classes]: transitions of the three states in which no phrase is in progress
        self._root_transitions = np.array([[MATCHED] * num_classes, *roots])

    def _next(self, state: int, cls: int) -> int:
        """Return the state after one more character, ignoring pending matches."""
        num_classes = len(self._is_letter_class)
        while state > INSIDE_WORD:
            following = self._transitions.get(state * num_classes + cls)
            if following is not None:
                return following
            state = self._fallback[state]
        is_letter = self._is_letter_class[cls]
        root = INSIDE_WORD if is_letter else START
        if is_letter and state == INSIDE_WORD:  # no phrase starts inside a word
            return root
        return self._transitions.get(START * num_classes + cls, root)

    def __len__(self) -> int:
        """Return the number of states S."""
        return len(self.pending)

    @cached_property
    def _table(self) -> tuple[NDArray[np.int64], ...]:
        """Sorted keys of `_transitions`, their values, and `_fallback`, as arrays."""
        keys = np.array(sorted(self._transitions))
        return keys, np.array([self._transitions[key] for key in keys.tolist()]), np.array(self._fallback)

    def advance_all(self, states: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the states of several texts after one more character of the given classes."""
        keys, values, fallback = self._table
        # Right for states without a phrase in progress; the others are replaced below.
        result = self._root_transitions[np.minimum(states, INSIDE_WORD), classes]
        # Indices, current states and classes of the texts that are not resolved yet.
        open_texts = np.flatnonzero(states > INSIDE_WORD)
        current = states[open_texts]
        cls = classes[open_texts]
        # A non-word character confirms a pending match.
        matched = self.pending[current] & ~self._is_letter_class[cls]
        result[open_texts[matched]] = MATCHED
        open_texts, current, cls = open_texts[~matched], current[~matched], cls[~matched]
        while len(open_texts):
            wanted = current * len(self._is_letter_class) + cls
            # Binary search in the sparse transitions; those that fail go on from the fallback state.
            indices = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
            found = keys[indices] == wanted
            result[open_texts[found]] = values[indices[found]]
            open_texts, current, cls = open_texts[~found], fallback[current[~found]], cls[~found]
            at_root = current <= INSIDE_WORD
            result[open_texts[at_root]] = self._root_transitions[current[at_root], cls[at_root]]
            open_texts, current, cls = open_texts[~at_root], current[~at_root], cls[~at_root]
        return result

    def root(self, state: int) -> int:
        """Return the state of texts with the same end but no phrase in progress."""
        while state > INSIDE_WORD:
            state = self._fallback[state]
        return state

    def transitions(self, state: int) -> NDArray[np.int64]:
        """Return the state after one more character of each class, [classes]."""
        num_classes = len(self._is_letter_class)
        return self.advance_all(np.full(num_classes, state), np.arange(num_classes))

    def character_classes(self, text: str) -> list[int]:
        """Return the class of each character of a text."""
        return [self._classes.get(c, LETTER_CLASS if is_word_character(c) else OTHER_CLASS) for c in text]

    def advance(self, state: int, text: str) -> int:
        """Return the state after appending a text to one in `state`."""
        for cls in self.character_classes(text):
            if state == MATCHED or (self.pending[state] and not self._is_letter_class[cls]):
                return MATCHED
            state = self._next(state, cls)
        return state

    def occurs_in(self, text: str) -> bool:
        """Return True if a text contains a phrase."""
        return self.is_certain_in(text) or bool(self.pending[self.advance(START, text)])

    def is_certain_in(self, text: str) -> bool:
        """Return True if a text contains a phrase, whatever follows it."""
        return self.advance(START, text) == MATCHED


class TokenAutomaton:
    """The automaton over tokens: texts are concatenated tokens, with the space before the first.

    A token may be bytes that are not a character yet. In addition to the states of `BannedPhrases`, there are
    therefore states of complete characters followed by some bytes. Transitions are computed on first use.
    """

    def __init__(self, banned: BannedPhrases, token_bytes: Sequence[bytes]) -> None:
        """Build the automaton for the tokens that add these bytes (UTF-8) to a text."""
        self.banned = banned
        self._partial_states: list[tuple[int, bytes]] = []  # state of the complete characters, bytes after them
        self._partial_ids: dict[tuple[int, bytes], int] = {}
        self._transitions: dict[int, NDArray[np.int32]] = {}
        texts = [_decode(encoded) for encoded in token_bytes]
        self._byte_tokens = {token: token_bytes[token] for token, text in enumerate(texts) if text is None}
        self._empty_tokens = [token for token, text in enumerate(texts) if text == ""]
        classes = [banned.character_classes(text or "") for text in texts]
        self.single_characters = {token: row[0] for token, row in enumerate(classes) if len(row) == 1}
        """Character class of each token of one character."""
        # Tokens by descending length, so that those with an n-th character are a prefix of the order.
        self._by_length = np.array(sorted(range(len(texts)), key=lambda n: -len(classes[n])), dtype=np.int64)
        lengths = np.array([len(classes[token]) for token in self._by_length])
        self._columns = []  # classes of the n-th character of each token that has one
        for position in range(int(lengths.max(initial=1))):
            longer = self._by_length[: int((lengths > position).sum())]
            self._columns.append(np.array([classes[token][position] for token in longer], dtype=np.int64))

    def __len__(self) -> int:
        """Return the vocabulary size V."""
        return len(self._by_length)

    def transitions(self, state: int) -> NDArray[np.int32]:
        """Return the state after each token, [V]; START is the state of the empty text."""
        # A whole vocabulary per state: only states that occur in a search are computed.
        if state not in self._transitions:
            self._transitions[state] = self._compute_transitions(*self._split_state(state))
        return self._transitions[state]

    def is_pending(self, states: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return True for each state in which a text contains a phrase if it ends there."""
        return self.banned.pending[[self._split_state(int(state))[0] for state in states]]

    def inside_character(self, state: int) -> bool:
        """Return True if the last bytes are not a complete character."""
        return bool(self._split_state(state)[1])

    def _split_state(self, state: int) -> tuple[int, bytes]:
        """Return the state of the complete characters, and the bytes after them."""
        num_states = len(self.banned)
        return (state, b"") if state < num_states else self._partial_states[state - num_states]

    def _join_state(self, state: int, remainder: bytes) -> int:
        if not remainder or state == MATCHED:
            return state
        key = (state, remainder)
        if key not in self._partial_ids:
            self._partial_ids[key] = len(self.banned) + len(self._partial_states)
            self._partial_states.append(key)
        return self._partial_ids[key]

    def _compute_transitions(self, state: int, remainder: bytes) -> NDArray[np.int32]:
        # Bytes that never become a character are displayed as one replacement character, a non-word character.
        start = self.banned.advance(state, REPLACEMENT) if remainder else state
        by_class = self.banned.transitions(start)
        root = self.banned.root(start)
        if root == start:
            result = np.full(len(self), start, dtype=np.int32)
            differs = np.ones(len(by_class), dtype=bool)
        else:  # a token that does not continue a phrase has the same transition as from the root
            result = self.transitions(root).copy()
            differs = by_class != self.banned.transitions(root)
        # Indices in the order of `_by_length`, of tokens whose first character changes the result.
        tokens = np.flatnonzero(differs[self._columns[0]])
        states = by_class[self._columns[0][tokens]]
        for column in self._columns[1:]:
            # Tokens are sorted by descending length, so the first ones have another character.
            count = np.searchsorted(tokens, len(column))
            states[:count] = self.banned.advance_all(states[:count], column[tokens[:count]])
        result[self._by_length[tokens]] = states
        for token, encoded in self._byte_tokens.items():
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text = decoder.decode(remainder + encoded)
            result[token] = self._join_state(self.banned.advance(state, text), decoder.getstate()[0])
        result[self._empty_tokens] = self._join_state(state, remainder)
        return result


def _decode(encoded: bytes) -> str | None:
    """Return the text of the bytes, or None if they are not complete characters."""
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return None
