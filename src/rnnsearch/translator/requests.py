"""What a user asks of translations beside their sources, as a search reads it: terms that they hold, phrases that they
do not hold, text that they begin with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
from rnnsearch.text.banned import IN_WORD, START, BannedPhrases, goes_on
from rnnsearch.text.prefixes import Prefix, Prefixes
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.text.vocabulary import UNK


class Demands:
    """What can be asked of one system."""

    def __init__(self, system: System[Any], aligner: Aligner | None, replaces: bool) -> None:
        """`replaces`: other text takes the place of the system's unknown words."""
        self.system, self.aligner = system, aligner
        self.target = system.target
        self.replaces = replaces or system.can("spell")
        self._banned: tuple[tuple[str, ...], BannedTokens] | None = None
        """The last banned phrases and what was made of them: a program asks for the same ones over and over."""

    def banned(self, phrases: Collection[str], ban_unknown: bool) -> BannedTokens | None:
        """Phrases that no translation holds; None for none. Errors: RnnsearchError for empty ones, and where other text
        takes the place of unknown words, which are not banned."""
        if not phrases:
            return None
        if self.replaces and not ban_unknown:
            raise RnnsearchError("banned phrases need <unk> banned, too, where other text takes its place; it is not")
        last, asked = self._banned, tuple(phrases)
        if last is None or last[0] != asked:
            self._banned = last = asked, BannedTokens(BannedPhrases(asked), self.target.spellings())
        return last[1]

    def phrases(self, terms: Sequence[Sequence[str]], options: SearchOptions) -> tuple[tuple[Phrase, ...], ...]:
        """Each sentence's terms in symbols. Errors: RnnsearchError for a search that forces none, and terms that cannot
        be."""
        if options.variant is not None:
            raise RnnsearchError(f"terms need an ordinary beam search; got {options.variant.name}")
        if options.beam == 1:
            raise RnnsearchError("terms need a beam of 2 or more; got 1")
        ids = {term: tuple(self.target.ids([term])[0]) for term in set(chain.from_iterable(terms))}
        for term, phrase in ids.items():
            if not phrase or UNK in phrase:
                raise RnnsearchError(f'the model has no symbol for a word of the term "{term}"; got {phrase}')
            if options.banned_phrases is not None and options.banned_phrases.banned.held(term):
                raise RnnsearchError(f'a term must not contain a banned phrase; got "{term}"')
        whole = {
            term: WordPhrase(phrase, self._goes_on) if goes_on(term[-1:].encode()) else phrase
            for term, phrase in ids.items()
        }
        return tuple(tuple(whole[term] for term in own) for own in terms)

    @cached_property
    def _goes_on(self) -> NDArray[np.bool_]:
        """[V], whether each symbol goes on with a word before it."""
        return np.array([goes_on(spelling) for spelling in self.target.spellings()])

    def writes(self, term: str) -> bool:
        """Whether a translation can hold a text: it is not empty, and all of it is in the vocabulary."""
        [ids] = self.target.ids([term])
        return bool(ids) and UNK not in ids

    @cached_property
    def _prefixes(self) -> Prefixes:
        return Prefixes(self.target, spells=self.system.can("spell"))

    def begun(self, prefixes: Sequence[str], sources: Sequence[Segmented], options: SearchOptions) -> list[Prefix]:
        """What each sentence's translations begin with, in symbols. Errors: RnnsearchError where they are not as many
        as the sentences, of an empty sentence, or hold a banned phrase or, in words without a symbol, begin one."""
        if len(prefixes) != len(sources):
            raise RnnsearchError(f"prefixes must be one a sentence ({len(sources)}); got {len(prefixes)}")
        for number, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            if prefix and not source.ids:
                raise RnnsearchError(f'the prefix of empty sentence {number} (from 0) must be empty; got "{prefix}"')
        begins = [self._prefixes.read(prefix) for prefix in prefixes]
        if options.banned_phrases is not None:
            for begin in begins:
                self._require_none_banned(begin, options.banned_phrases.banned)
        if self.system.annotation is None:
            return begins
        each, whole = self.system.annotation.symbols_a_word, self.system.segment_targets(prefixes, sources, self.aligner)
        return [
            begin._replace(
                ids=tuple(text.ids[: each * len(begin.ids)]),
                unknown={each * place: word for place, word in begin.unknown.items()},
            )
            for begin, text in zip(begins, whole, strict=True)
        ]

    def _require_none_banned(self, begin: Prefix, banned: BannedPhrases) -> None:
        """Errors: RnnsearchError for a beginning that holds a banned phrase, or may come to one that the search would
        not see, for it reads words without a symbol as `<unk>`."""
        # Without a rest it ends with such a word, or with what stands by it: nothing makes the word longer.
        if banned.begun(begin.text) or (not begin.rest and banned.held(begin.text)):
            raise RnnsearchError(f'a prefix must not contain a banned phrase; got "{begin.text}"')
        if begin.unknown:
            known = self.target.joined(begin.ids, begin.unknown).text
            read = self.target.join(begin.ids) + begin.text.removeprefix(known)
            state = banned.after(START, begin.text)
            if state > IN_WORD and state != banned.after(START, read):
                raise RnnsearchError(
                    f"a prefix must not end with the beginning of a banned phrase in which the model has no symbol for "
                    f'a word; got "{begin.text}"'
                )
