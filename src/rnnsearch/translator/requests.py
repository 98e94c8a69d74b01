"""Constraints of a request, converted to what the search understands: terms, banned phrases and prefixes.

Used by `Translator.n_best` and `Translator.options`. The search enforces them (`search.phrases`, `search.banned`,
`search.prefixes`).

`Translator` creates a `ConstraintReader` for its system. It also rejects requests that the search could not satisfy,
with an error that names the term or prefix. Tests: tests/serve/test_translator_help.py.

Axes: V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.align.aligner import Aligner
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.banned import BannedTokens
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.phrases import Phrase, WordPhrase
from rnnsearch.systems.system import System
from rnnsearch.text.banned import INSIDE_WORD, START, BannedPhrases, continues_word
from rnnsearch.text.prefixes import Prefix, PrefixReader
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.text.vocabulary import UNK


class ConstraintReader:
    """Converts the constraints of requests to a system."""

    def __init__(self, system: System[Any], aligner: Aligner | None, replaces_unknown: bool) -> None:
        """Make a reader.

        Args:
            system: The system that translates.
            aligner: Finds the source words that annotated unknown words of prefixes refer to.
            replaces_unknown: True if unknown words in translations are replaced.
        """
        self._system = system
        self._aligner = aligner
        self._target = system.target
        self._replaces_unknown = replaces_unknown or system.can("spell")
        # The last banned phrases and the result, because programs usually ban the same phrases in all requests.
        self._last_banned: tuple[tuple[str, ...], BannedTokens] | None = None

    def banned_phrases(self, phrases: Collection[str], ban_unknown: bool) -> BannedTokens | None:
        """Return phrases that translations must not contain, or None if there are none.

        Args:
            phrases: The phrases.
            ban_unknown: True if `<unk>` is banned.

        Raises:
            RnnsearchError: A phrase is empty, or unknown words are replaced: a banned phrase could replace them.
        """
        if not phrases:
            return None
        if self._replaces_unknown and not ban_unknown:
            raise RnnsearchError("banned phrases need <unk> to be banned, too, because unknown words are replaced")
        key = tuple(phrases)
        last = self._last_banned  # read once: another thread may replace it
        if last is None or last[0] != key:
            last = key, BannedTokens(BannedPhrases(key), self._target.token_bytes())
            self._last_banned = last
        return last[1]

    def required_phrases(
        self, terms: Sequence[Sequence[str]], options: SearchOptions
    ) -> tuple[tuple[Phrase, ...], ...]:
        """Return the terms of each sentence as tokens.

        Raises:
            RnnsearchError: The search does not support terms, or a term is not in the vocabulary or is banned.
        """
        if options.variant is not None:
            raise RnnsearchError(f"terms need an ordinary beam search; got {options.variant.name}")
        # Greedy search has no second hypothesis that could take up a term.
        if options.beam == 1:
            raise RnnsearchError("terms need a beam of at least 2; got 1")
        phrase_by_term: dict[str, Phrase] = {}
        for term in set(chain.from_iterable(terms)):
            [ids] = self._target.ids([term])
            if not ids or UNK in ids:
                raise RnnsearchError(f'the vocabulary has no token for a word of the term "{term}"; got {tuple(ids)}')
            self.require_allowed([term], options)
            # A term that ends with a letter must not be continued to a longer word.
            ends_in_word = continues_word(term[-1:].encode())
            phrase_by_term[term] = WordPhrase(ids, self._continues_word) if ends_in_word else tuple(ids)
        return tuple(tuple(phrase_by_term[term] for term in sentence_terms) for sentence_terms in terms)

    @cached_property
    def _continues_word(self) -> NDArray[np.bool_]:
        """[V], True for each token that continues the word before it."""
        return np.array([continues_word(spelling) for spelling in self._target.token_bytes()])

    def require_allowed(self, terms: Iterable[str], options: SearchOptions) -> None:
        """Raise RnnsearchError if a term contains a banned phrase."""
        if options.banned_phrases is None:
            return
        for term in terms:
            if options.banned_phrases.banned.occurs_in(term):
                raise RnnsearchError(f'a term must not contain a banned phrase; got "{term}"')

    def can_write(self, term: str) -> bool:
        """Return True if a term is not empty and all its words are in the vocabulary."""
        [ids] = self._target.ids([term])
        return bool(ids) and UNK not in ids

    def read_prefixes(
        self, prefixes: Sequence[str], sources: Sequence[Segmented], options: SearchOptions
    ) -> list[Prefix]:
        """Return the prefix of each sentence's translations as tokens.

        Raises:
            RnnsearchError: Their number differs from that of the sentences, an empty sentence has a prefix, or a prefix
                contains a banned phrase or ends with the start of one in words that are not in the vocabulary.
        """
        if len(prefixes) != len(sources):
            raise RnnsearchError(f"prefixes must be one per sentence ({len(sources)}); got {len(prefixes)}")
        for number, (source, text) in enumerate(zip(sources, prefixes, strict=True)):
            if text and not source.ids:
                raise RnnsearchError(f'the prefix of empty sentence {number} (from 0) must be empty; got "{text}"')
        token_prefixes = []
        for source, text in zip(sources, prefixes, strict=True):
            token_prefixes.append(self._prefix_reader.read(text, upper=source.case == "upper"))
        if options.banned_phrases is not None:
            for prefix in token_prefixes:
                self._require_not_banned(prefix, options.banned_phrases.banned)
        if self._system.annotation is None:
            return token_prefixes
        # Annotated texts have several tokens per word.
        tokens_per_word = self._system.annotation.tokens_per_word
        annotated_texts = self._system.segment_targets(prefixes, sources, self._aligner)
        annotated = []
        for prefix, target in zip(token_prefixes, annotated_texts, strict=True):
            ids = tuple(target.ids[: tokens_per_word * len(prefix.ids)])
            unknown = {tokens_per_word * position: word for position, word in prefix.unknown.items()}
            annotated.append(prefix._replace(ids=ids, unknown=unknown))
        return annotated

    @cached_property
    def _prefix_reader(self) -> PrefixReader:
        return PrefixReader(self._target, char_decoding=self._system.can("spell"))

    def _require_not_banned(self, prefix: Prefix, banned: BannedPhrases) -> None:
        """Raise RnnsearchError if a prefix contains a banned phrase, or could become one unnoticed by the search.

        The search sees words that are not in the vocabulary as `<unk>`.
        """
        # Without a rest, the last word is complete, so a phrase at the end counts, too.
        text = prefix.normalized.text
        if banned.is_certain_in(text) or (not prefix.continuations and banned.occurs_in(text)):
            raise RnnsearchError(f'a prefix must not contain a banned phrase; got "{prefix.text}"')
        if prefix.unknown:
            known_text = self._target.join_with_offsets(prefix.ids, prefix.unknown).text
            seen_text = self._target.join(prefix.ids) + text.removeprefix(known_text)
            state = banned.advance(START, text)
            # The state of a banned phrase in progress would be lost, because search sees `<unk>` instead of the word.
            if state > INSIDE_WORD and state != banned.advance(START, seen_text):
                raise RnnsearchError(
                    "a prefix must not end with the start of a banned phrase that contains a word outside the "
                    f'vocabulary; got "{prefix.text}"'
                )
