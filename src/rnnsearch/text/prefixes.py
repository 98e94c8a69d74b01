"""Target prefixes that a user has typed, as constraints on the tokens of a translation.

Complete words become the tokens that they are segmented into. The last word may be incomplete:
`Hun` may become `Hund` or `Hunderte`, which start with other tokens. For its bytes, every token is
allowed that agrees with them (`ByteContinuations`), and search (`search.prefixes`) follows these
byte by byte.

`translator/requests.py`, `translator/language_model.py` and `runtime/translator.py` create a `PrefixReader` per
tokenizer; `search` and `runtime/search.py` read the `Prefix`. `export/web/module/prefixes.js` does the same in
browsers; tests/page/test_module.py compares them.
"""

from bisect import bisect_left
from dataclasses import replace
from typing import NamedTuple

from rnnsearch.text.normalization import Normalization, Normalized
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.vocabulary import SPECIALS, UNK

MAX_OPEN_TOKENS = 8
"""Maximum number of tokens of the last word that may be segmented differently.

A text without spaces is one long word.
"""


ByteContinuations = tuple[tuple[int, ...], ...]
"""Tokens, per byte position of the open text, that may follow at that position; empty if nothing is open."""


class Prefix(NamedTuple):
    """A text that a translation must start with."""

    text: str
    ids: tuple[int, ...]
    """Tokens that the translation must start with."""
    continuations: ByteContinuations
    """Allowed tokens for the open text after them."""
    unknown: dict[int, str]
    """Text of each UNK among `ids`, by index."""
    normalized: Normalized = Normalized("")
    """The text as the tokens spell it."""

    def restored(self, target: Segmented, normalization: Normalization) -> Segmented:
        """Return a translation that starts with exactly the text of the prefix.

        Args:
            target: The translation, as its tokens spell it.
            normalization: That of its tokenizer, which has changed the text of the prefix.
        """
        length = len(self.normalized.text)
        start = normalization.normalized(target.text[:length], keeps_last_space=True).text
        if target.text.startswith(self.text) or start != self.normalized.text:
            return target
        positions = [self.normalized.raw_span(index, index, len(self.text))[0] for index in range(length)]
        positions += range(len(self.text), len(self.text) + len(target.text) - length + 1)
        offsets = [(positions[start], positions[end]) for start, end in target.offsets]
        return replace(target, text=self.text + target.text[length:], offsets=offsets)


NO_PREFIX = Prefix("", (), (), {})


class PrefixReader:
    """Converts prefixes for a tokenizer.

    In a word-level vocabulary, an unknown word may follow a prefix that ends with a space. This
    does not apply if the model decodes unknown words by characters, because these may not start
    with the space.
    """

    def __init__(self, tokenizer: Tokenizer, char_decoding: bool = False) -> None:
        """Prepare the sorted token texts.

        Args:
            tokenizer: The target tokenizer.
            char_decoding: True if the model decodes unknown words by characters.
        """
        self._tokenizer = tokenizer
        # Tokens that represent any word, with the space before it.
        self._unknown_ids = sorted(tokenizer.unknown_ids) if tokenizer.type == "words" and not char_decoding else []
        known = []
        for id, text in enumerate(tokenizer.token_bytes()):
            if id >= len(SPECIALS) and text and id not in tokenizer.unknown_ids:
                known.append((text, id))
        # Sorted, so that all tokens with the same first bytes are adjacent (`_matching_tokens`).
        known.sort()
        self._token_bytes = [text for text, _ in known]
        self._ids = [id for _, id in known]
        self._max_length = max(map(len, self._token_bytes), default=0)

    def read(self, text: str, upper: bool = False) -> Prefix:
        """Return the prefix for a text.

        Args:
            text: The start of a translation.
            upper: True if the translation will be in capital letters, which its tokens are not.

        Raises:
            DataError: The text is not valid Unicode.
        """
        normalized = self._tokenizer.normalization.normalized(text, keeps_last_space=True)
        if upper:
            normalized = replace(normalized, text=self._tokenizer.true_cased(normalized.text, "upper"))
        # Spelled by the tokens: a last space counts, and offsets are those of the normalised text.
        [segmented] = self._tokenizer.segment_normalized([normalized.text], [Normalized(normalized.text)])
        prefix = self._read(segmented)
        return prefix._replace(text=text, normalized=normalized)

    def _read(self, segmented: Segmented) -> Prefix:
        text = segmented.text
        if not text:
            return Prefix(text, (), (), {})
        num_forced = self._before_last_word(segmented)
        unknown = _unknown_texts(segmented)
        forced_unknown = {index: word for index, word in unknown.items() if index < num_forced}
        forced = tuple(segmented.ids[:num_forced])
        if UNK not in segmented.ids[num_forced:]:
            token_bytes = self._tokenizer.token_bytes()
            open_bytes = b"".join(token_bytes[id] for id in segmented.ids[num_forced:])
            return Prefix(text, forced, self._continuations(open_bytes), forced_unknown)
        # The last word is unknown, but may be the start of a known one.
        open_text = f" {segmented.text}"[_token_start(segmented, num_forced) :]
        continuations = self._continuations(open_text.encode())
        if continuations and continuations[0]:
            return Prefix(text, forced, continuations, forced_unknown)
        return Prefix(text, tuple(segmented.ids), (), unknown)

    def _before_last_word(self, segmented: Segmented) -> int:
        """Return the number of tokens before the last word, or before its last `MAX_OPEN_TOKENS` tokens."""
        space = f" {segmented.text}".rfind(" ")  # positions count the space that the tokenizer puts before the text
        count = sum(1 for n in range(len(segmented.ids)) if _token_start(segmented, n) < space)
        return max(count, len(segmented.ids) - MAX_OPEN_TOKENS)

    def _continuations(self, open_bytes: bytes) -> ByteContinuations:
        """Return the tokens at each byte position after which the remaining bytes can still be produced."""
        allowed: list[tuple[int, ...]] = [()] * len(open_bytes)
        # From the end, because a token is only allowed if the bytes after it can still be produced.
        for position in reversed(range(len(open_bytes))):
            remaining = open_bytes[position:]
            # Tokens that cover all remaining bytes may go on with anything.
            tokens = self._matching_tokens(remaining, longer=True)
            if remaining == b" ":
                tokens += self._unknown_ids
            for size in range(1, min(self._max_length, len(remaining) - 1) + 1):
                if allowed[position + size]:
                    tokens += self._matching_tokens(remaining[:size], longer=False)
            allowed[position] = tuple(tokens)
        return tuple(allowed)

    def _matching_tokens(self, text: bytes, longer: bool) -> list[int]:
        """Return the tokens with exactly these bytes; if `longer`, those that start with them."""
        start = end = bisect_left(self._token_bytes, text)
        matches = bytes.startswith if longer else bytes.__eq__
        while end < len(self._token_bytes) and matches(self._token_bytes[end], text):
            end += 1
        return self._ids[start:end]


def _token_start(segmented: Segmented, n: int) -> int:
    """Return where token n starts in the text with a space before it: where the previous token ends."""
    return 0 if n == 0 else segmented.offsets[n - 1][1] + 1


def _unknown_texts(segmented: Segmented) -> dict[int, str]:
    """Return the text of each unknown token with its leading space, by index."""
    spaced = f" {segmented.text}"
    texts = {}
    for n, id in enumerate(segmented.ids):
        if id == UNK:
            texts[n] = spaced[_token_start(segmented, n) : segmented.offsets[n][1] + 1]
    return texts
